"""What each kind of line, or of block of lines, states about a job that hangs or has ended: the table `KINDS`.

Names of groups in the patterns: `by` is the rank that speaks, by its number in its group; `ranks` are those of which it
speaks; `call` is the number of a collective; `host`, `code` and `signal` are of a process; `who` and `what` are for the
answer. Digits behind a name tell several wordings of the same apart.
"""

from __future__ import annotations

from typing import NamedTuple

_BY = r"\[(?:PG (?:ID \d+ PG GUID )?(?P<group>[^\s(\]]*) ?(?:\((?P<desc>[^)\]]*)\))? ?)?Rank (?P<by>\d{1,6})\] *"
_WORK = (
    r"WorkNCCL\(\s?(?:SeqNum=(?P<call>\d{1,18}), )?OpType=(?P<collective>\w+), "
    r"(?:Tensor[Ss]hape=\[(?P<size>[\d, ]*)\], |NumelIn=(?P<num_in>\d+), NumelOut=(?P<num_out>\d+), )?"
    r"Timeout\(ms\)=(?P<timeout>\d+)\)"
)
_FINGERPRINT = (
    r"CollectiveFingerPrint\((?:SequenceNumber=(?P<{0}_call>\d+),? ?)?OpType=(?P<{0}_collective>\w+)"
    r"(?:, TensorShape=\[(?P<{0}_size>[\d, ]*)\], TensorDtypes=\(?(?P<{0}_dtype>\w+))?"
)
_ADDRESS = r"(?P<host>[\w.:%-]{1,99})<\d+>"


class Kind(NamedTuple):
    """A kind of evidence: words with | between them, of which a line must have one, and a pattern.

    If the pattern has a line end, it is looked for in all lines of a process together.

    If the text itself says what is wrong, `cause` and `words` are the answer. `accused` says which value of the pattern
    has the ranks to look at; it is "speaker" for the rank that printed the line, and empty if there are none.
    """

    literals: str
    pattern: str
    cause: str = ""
    accused: str = ""
    words: str = ""
    is_certain: bool = True


KINDS = {
    "wait": Kind(
        "WorkNCCL",
        rf"{_BY}(?:Watchdog caught collective operation timeout: +|Work ){_WORK} "
        r"(?:ran for \d+ milli|timed out in block)",
    ),
    "queue": Kind(
        "ast enqueued",
        _BY + r"(?:Exception \(either an error or timeout\) detected by watchdog at work: (?P<failed>\d+), "
        r"|Timeout at NCCL work: (?P<failed2>\d+), |failure detected by watchdog at work sequence id: (?P<failed3>\d+) "
        r"PG status: |Received a (?:dump signal|timeout signal|global timeout)(?:(?!\[PG).){0,250}?)"
        r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: (?P<completed>-?\d+)",
    ),
    "error": Kind(
        "Traceback (most",
        r"^(?P<ignored>Exception ignored in.*\n)?"
        r"(?:-- (?P<who>Process \d+) terminated with the following error:\n)?"
        r"Traceback \(most recent call last\):\n(?:(?:[ \t].*)?\n)*"
        r"(?P<what>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Iteration|Interrupt|Failure|Timeout|Killed|OutOfMemory)\w*"
        r"(?:: .*)?)$",
        "error", "speaker", "{who} ended with {what}",
    ),
    "last line": Kind(
        "Error|Exception|StopIteration",
        r"^(?P<what>[A-Za-z_][\w.]*(?:Error|Exception|StopIteration)(?:: (?!\d*\.\d+$).*)?)$",  # not a metric
        "error", "speaker", "{who} ended with {what}",
    ),
    "failure": Kind(
        "Root Cause",
        r"Root Cause.*\n\[\d+\]:\n\s*time +: (?P<time>\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)\n\s*host +: (?P<host>\S+)\n"
        r"\s*rank +: (?P<ranks>\d+) .*\n\s*exitcode +: (?P<code>-?\d+)",
        "dead", "ranks", "{who} on {host} {end}",
    ),
    "exit": Kind(
        "xit|terminated with|died with <Signals|received by PID|srun: error|Kill|Fatal Python",
        r"failed \(exitcode: (?P<code>-?\d+)\) (?P<who>local_rank: \d+)"
        r"|exits with return code = (?P<code2>-?\d+)|returned non-zero exit status (?P<code5>\d+)\.$"
        r"|(?P<who3>process \d+) terminated with (?:signal (?P<signal>SIG\w+)|exit code (?P<code3>\d+))"
        r"|Child process with PID \d+ terminated with code (?P<code4>-?\d+)"
        r"|CalledProcessError: .*died with <Signals\.(?P<signal2>SIG\w+)"
        r"|traceback +: Signal \d+ \((?P<signal3>SIG(?:KILL|SEGV|BUS|ILL))\) received by PID \d+"
        r"|(?P<who5>process rank \d+) with PID .* exited on signal \d+ \((?P<signal6>Killed|Segmentation|Bus)"
        r"|srun: error: \S+: (?P<who6>tasks? [\d,-]+): (?P<signal4>Segmentation|Bus|Illegal)"
        r"|(?:(?P<who7>task \d+|tasks [\d,-]+(?!.*137)|\w{0,9}process|child):? |(?<!: )(?<!Exited ))"
        r"(?:[Ee]xited with(?: exit)?|with exit|Exit) [Cc]ode:? +(?P<code6>[1-9]\d*)"
        # SLURM itself kills tasks, after another one ended
        r"|(?P<who8>task \d+): (?P<signal7>Kill)ed|Fatal Python error: (?P<signal5>Segmentation|Bus|Illegal)",
        "dead", "speaker", "{who} {end}",
    ),
    "Open MPI": Kind(
        "Process name: [[",
        r"Process name: \[\[\d+,\d+\],(?P<ranks>\d+)\]\s*\n\s*Exit code: +(?P<code>\d+)",
        "dead", "ranks", "{who} {end}",
    ),
    "worker": Kind(
        "is killed by signal",
        r"DataLoader worker \(pid \d+\) is killed by signal: (?P<what>(?!Term|Int|Hang)[^.]+)",
        "dead", "speaker", "a DataLoader worker of {who} was killed ({what}): the memory of the host, or /dev/shm, may "
        "be full",
    ),
    "out of memory": Kind(
        "oom|Out Of Memory|Out of memory|OutOfMemoryError|OOMKilled",
        r"Detected \d+ oom[_-]kill event|(?P<what>task \d+): Out Of Memory|Out of memory: Killed (?P<what2>process \d+)"
        r"|OutOfMemoryError: Task was killed due to the node running low|Reason: +OOMKilled",
        "dead", "", "the system killed {what}, because the memory of a node (not of its GPUs) was full",
    ),
    "actor": Kind(
        "The actor |Worker exit type|A worker died",
        r"The actor (?:died|is dead) (?:because )?+(?P<what>(?!all ref).*)|(?P<what2>Worker exit type: (?!INT).*)"
        r"|(?P<what3>A worker died (?:or was killed|unexpectedly).*)",
        "dead", "", "a worker of Ray ended: {what}",
    ),
    "mismatch": Kind(
        "mismatch between collectives",
        r"mismatch between collectives on ranks\. Rank (?P<by>\d+) is running (?P<odd>inconsistent )?collective: "
        + _FINGERPRINT.format("own")
        + r"(?:(?:(?!Detected mismatch).)*?, but Rank (?P<other>\d+) is running (?:inconsistent )?collective: "
        + _FINGERPRINT.format("other")
        + ")?",
    ),
    "barrier": Kind(
        "monitoredBarrier",
        r"\[Rank (?P<by>\d+)\]: Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier",
        "missing", "ranks", "{who} of its group did not reach monitored_barrier in time",
    ),
    "lag": Kind(
        "didn't join|lagging ranks|missing ranks:",
        r"\[(?P<ranks>\d{1,6}(?:, \d{1,6})*)\] (?:(?:finished collective #\d+, but )?.{0,20}?didn't join collective "
        r"#(?P<call>\d+)|are the lagging ranks that caused)|^.*?\[missing ranks: (?P<ranks2>\d[\d, ]*)\]"
        r"|sequence number: (?P<call2>\d+).*\n(?:.*\n){0,3}?collective: \S+\nmissing ranks: \{(?P<ranks3>[\d, ]+)\}",
        "missing", "ranks", "{who} did not reach a collective that the others wait in",
    ),
    "unfinished": Kind(
        "joined but didn't finish",
        r"\[(?P<ranks>\d{1,6}(?:, \d{1,6})*)\] joined but didn't finish collective #(?P<call>\d+)",
        "unfinished", "", "ranks {ranks} joined collective {call} and did not finish it: look at GPUs and the network",
        is_certain=False,
    ),
    "Horovod": Kind(
        "Missing ranks:|[ready ranks:",
        r"(?:(?<=Missing ranks:\n)|(?<=\]\n))(?P<missing>\d+)!?: \[(?P<tensors>[^\]\n]*)"
        r"|\[ready ranks: (?P<ready>[\d, ]+)\]",
    ),
    "culprit": Kind(
        "Culprit rank",
        r"Culprit rank (?P<ranks>\d+); Error type: (?P<what>(?:SIZE|COLLECTIVE_D?TYPE)_\w+)",
        "call", "ranks", "the call of {who} differs from those of the others ({what})",
    ),
    "state": Kind(
        "COLLECTIVE_STATE_MISMATCH",
        r"sequence number: (?P<call>\d+).*\n(?:.*\n){0,9}?expected ranks: \{(?P<ranks>[\d, ]+)\}\n(?:.*\n){0,3}?"
        r"error msg: (?P<errors>.*?COLLECTIVE_STATE.*?'(?P<first>scheduled|started|completed)' does not match "
        r"found state: '(?P<other>scheduled|started|completed)'.*)",
    ),
    "around": Kind(
        "Mismatched collective",
        r"Mismatched collective detected, .* at and around rank (?P<ranks>\d+)",
        "call", "ranks", "NCCL saw that {who}, or ranks next to them, called collectives of another kind or size than "
        "other ranks",
        is_certain=False,
    ),
    "truncated": Kind(
        "essage truncated|collective mismatch",
        r"(?:\b(?P<node>[\w.-]{1,99}):\d+:\d+ \[(?P<gpu>\d+)\] .*?)?(?:peer (?P<host>\S+) )?"
        r"(?:[Mm]essage truncated : receiv\w+ (?P<what>[\d,]+ bytes instead of [\d,]+)"
        r"|collective mismatch error,? (?P<what2>local size \d+ remote (?:size )?\d+))",
        "size", "", "GPU {gpu} of {node} got another number of bytes from {host} than it expected ({what}): ranks "
        "called collectives of different sizes, or their versions or variables of NCCL differ",
        is_certain=False,
    ),
    "same GPU": Kind(
        "Duplicate GPU|has already checked in",
        r"Duplicate GPU detected : (?P<what>rank \d+ and rank \d+ both on CUDA device \w+)"
        r"|Bootstrap Root : (?P<what2>rank \d+ of \d+ ranks has already checked in)",
        "error", "", "two processes use the same GPU, or the same rank: {what}. Check how the launcher sets RANK, and "
        "call torch.cuda.set_device(LOCAL_RANK) on each",
    ),
    "port": Kind(
        "server socket has failed",
        r"server socket has failed to (?:listen|bind).*?(?P<what>port: \d+|:\d+(?= \(errno)|EADDRINUSE)",
        "error", "", "the port of the job is taken ({what}), by an earlier job or another: choose another MASTER_PORT",
    ),
    "store": Kind(
        "client socket has",
        r"client socket has (?:timed out|failed).*?connect to (?:any .* of )?\(?(?P<host>[^\[\],\s]+)",
        "system", "", "{who} did not reach the store of rank 0 at {host}: is that process up, and is this its address?",
    ),
    "model": Kind(
        "same model across|appears not to match",
        r"same model across all ranks, but Rank (?P<by>\d+) has (?P<own>\d+ params), while rank (?P<other>\d+) has "
        r"inconsistent (?P<theirs>\d+ params)"
        r"|\[?(?:Rank )?(?P<by2>\d+)\]?: (?P<own2>params\[\d+\] in this process with \w+ \[.*?\]) appears not to match",
    ),
    "ready twice": Kind(
        "marked as ready twice|ready only once",
        r"Parameter at index (?P<what>\d+(?: with name \S+)?) has been marked as ready twice"
        r"|Expected to mark a variable ready only once",
        "ready twice", "speaker", "on {who}, a parameter got its gradient twice in one backward pass, by reentrant "
        "checkpointing or two forward passes: checkpoint with use_reentrant=False, or pass static_graph=True to DDP. "
        "Its index: {what}",
    ),
    "unused": Kind(
        "not used in producing|did not receive grad",
        r"parameters that were not used in producing loss"
        r"|Parameter(?:s| indices) which did not receive grad for rank (?P<by>\d+): (?P<what>.+)",
        "unused", "by", "{who} has parameters without a gradient ({what}): use them in the loss, or set "
        "find_unused_parameters=True; TORCH_DISTRIBUTED_DEBUG=DETAIL prints all names",
    ),
    "CUDA error": Kind(
        "CUDA error",
        r"(?:watchdog thread terminated with exception|^ *what\(\)): +(?P<what>CUDA error: .*)",
        "error", "speaker", "{who} ended with {what}",
    ),
    "GPU": Kind(
        "NVRM: Xid|Cuda failure",
        r"NVRM: (?P<what>Xid \(PCI:[\w:.]+[^)]*\): \d+, .*)"
        r"|(?P<what2>\b[\w.-]{1,99}:\d+:\d+ \[\d+\] .*NCCL WARN Cuda failure .*)",
        "error", "", "the driver or NCCL reports that a GPU failed: {what}",
    ),
    "connect": Kind(
        "onnect to",
        rf"(?P<what>[Cc]onnect to (?!.*retry){_ADDRESS}.{{0,99}}?(?:fail|refus|timed out|abort|No rout|unreach|ret).*)",
        "system", "", "{who} did not reach {host}: look at its network (NCCL_SOCKET_IFNAME), and at the process there. "
        "{what}",
    ),
    "link": Kind(
        "NET/IB|ibv_modify_qp",
        rf"NET/IBP? ?: ?(?:Got completion (?:from peer {_ADDRESS} )?with (?P<what>(?:error|status=?) ?\d+.*)"
        r"|.*(?P<what2>Got async event : (?!GID|client|.*active).*))|Call to (?P<what3>ibv_modify_qp failed.*)",
        "system", "", "InfiniBand failed at {who}, to {host}: look at cables, ports and GIDs. {what}",
    ),
    "NCCL error": Kind(
        "Last error:|ncclSystemError",
        r"nccl\w+(?:Error|Usage): .*\n.*Last error: *\n"
        r"(?P<what>(?!frame|Exception|.*(?:peer|ocket|onnect|roxy|abort)).*\S)|ncclSystemError: (?P<what2>.*)",
        "system", "", "{who} failed in NCCL: {what} (NCCL_DEBUG=WARN prints more)",
    ),
    "stuck watchdog": Kind(
        "eartbeat monitor|watchdog|acquire GIL",
        _BY + r".*?(?:[Hh]eartbeat monitor timed out|watchdog got stuck for|watchdog hang|Could not acquire GIL)",
        "watchdog", "", "{who}: the watchdog thread itself hangs, in a call of CUDA or NCCL, or it waits for Python's "
        "lock; after the last step, it is the teardown: call destroy_process_group",
    ),
    "id": Kind(
        "ncclUniqueId",
        r"\[(?P<by>\d+)\] is setting up NCCL communicator and ret\w+ ncclUniqueId from \[(?P<from>\d+)\]",
        "no id", "", "{who} waits for NCCL's id: rank {from} of its group never gave it, or is gone; look at that one",
    ),
    "joined": Kind(
        "store based barrier|waiting for clients",
        r"store based barrier on rank:? (?P<by>\d+), for key: store_based_barrier_key:(?P<key>\w+) "
        r"\(world_size=(?P<size>\d+), (?:worker_count|num_workers_joined)=(?P<there>\d+)"
        r"|waiting for clients\. (?P<there2>\d+)/(?P<size2>\d+) clients",
        "unknown", "", "only {there} of {size} ranks joined the group",
    ),
    "address": Kind(
        "ait timeout after",
        r"ait timeout after \d+ms, keys: \S*/default_pg/0//cpu//0/(?P<ranks>\d+)$",
        "missing", "ranks", "{who} did not connect when the default group was made",
    ),
    "RAS": Kind(
        "operation counts|Missing communicator data|collective_counts|missing_ranks|PEER_DEAD|considered dead",
        r"different (?P<collective>\w+) operation counts\n"
        r"(?P<counts>(?:\s*(?:\d+ ranks? ha|Rank \d+ (?:ha|--)).*\n?)+)"
        r"|Missing communicator data from \d+ ranks?\n(?P<silent>(?:\s*Rank \d+ --.*\n?|\s*The missing ranks?: .*\n?)+)"
        r"|(?:considered dead .*|PEER_DEAD:)\s*(?P<process>Process \d+ on node \S+ managing GPUs? [\d,-]+)"
        r'|"(?:hash|missing_ranks)"(?P<json>(?:(?!"(?:hash|missing_ranks)")(?:.|\n))*)',
    ),
    "stopped": Kind(
        "death signal|got signal|CANCELLED AT",
        r"(?P<what>Received \d+ death signal|got signal: \d+$|CANCELLED AT \S+(?: DUE TO [\w ]+\w)?)",
        "unknown", "", "the job was ended from outside, or after a part of it failed: {what} (signal 1 means that its "
        "terminal was closed: use tmux, as nohup does not help)",
    ),
    "stack": Kind(
        '"MainThread"|hread 0x|KeyboardInterrupt',
        r"^(?:Process \d+: (?:.*--local[_-]rank[= ](?P<local>\d+))?.*\n(?:.+\n){0,3}?"
        r"|.{0,60}\b[Rr]ank[ _]?(?P<local2>\d{1,6})\W{0,3}\n)?"
        r"Thread \S+ \(\w+(?:\+\w+)?\): \"MainThread\"\n(?P<frames>(?:[ \t]+\S.*\n?)+)"
        r"|^(?:Timeout \(.*\n(?:(?!Timeout \(|Fatal).*\n)*?T|Current t)hread 0x.*\(most recent call first\):\n"
        r"(?P<frames2>(?:[ \t]+File .*\n)*?[ \t]+File .* in <module>)"
        r"|^Traceback \(most recent call last\):\n(?P<calls>(?:(?:[ \t].*)?\n)*)KeyboardInterrupt",
    ),
    "peer": Kind(
        "Call to |ncclRemoteError|remote process exited|Read error|SocketImpl|Connection |Broken pipe|Failed to recv",
        r"Call to (?:recv|send)\w* (?:from|to) (?P<host2>[\w.:%-]+)<\d+> failed|ncclRemoteError|remote process exited"
        r"|Read error (?P<host3>\[[\w.:]+\]:\d+)|failed on SocketImpl\(.*?remote=(?P<host4>\[[\w.:-]+\]:\d+)"
        r"|Connection (?:closed|reset) by (?:remote )?peer(?: (?P<host>[\w.:\[\]-]+[\w\]]))?|Broken pipe"
        r"|Failed to recv, got 0 bytes",
        "unknown", "", "{who} lost the connection to {host}: the process there ended or hung first; look at its log",
    ),
    "gloo": Kind(
        "imed out|imeout|doesn't match expected size|connectFullMesh|while waiting for|Caught collective op"
        "|pair closure|Stop_waiting|Horovod has been shut|DeadLock",
        r"Timed out waiting \d+ms for (?:send|recv) operation|Socket Timeout|doesn't match expected size"
        r"|connectFullMesh failed|errors while waiting for send/recv from rank \d+|Caught collective op|pair closure"
        r"|Stop_waiting|Horovod has been shut|DeadLock|connect\(\) timed out|ait timeout after \d+ms|RendezvousTimeout",
        "unknown", "", "{who} waited in vain for another rank, whose log says more, or for data of another size "
        "(GLOO_SOCKET_IFNAME sets the network)",
    ),
    "waits for workers": Kind(
        "block found in",
        r"No available .{0,30}block found in (?P<what>\d+ second)",
        "unknown", "", "vLLM has waited for its workers for {what}s, which by itself is no error: see whether they "
        "load, compile or hang",
    ),
    "timeout": Kind(
        "NCCL operations have failed|communicator was aborted|Watchdog caught|Error: |NCCL error: ",
        r"NCCL (?:operations have failed|communicator was aborted|error: \w)"
        r"|Watchdog caught collective op|nccl\w+Error: ",
        "unknown", "", "a collective of NCCL failed, or did not end in time, on {who}; the lines do not say which one",
    ),
}  # fmt: skip
