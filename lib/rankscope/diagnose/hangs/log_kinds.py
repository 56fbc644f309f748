"""What each kind of line, or of block of lines, states about a job that hangs or has ended: the table `KINDS`.

Names of groups in the patterns: `by` is the rank that speaks, by its number in its group; `ranks` are those of which it
speaks; `call` is the number of a collective; `host`, `code` and `signal` are of a process; `what` is for the answer.
Digits behind a name tell several wordings of the same apart.
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
    """A kind of evidence: a pattern and a sample.

    If the text itself says what is wrong, `cause` and `words` are the answer. `accused` says which value of the pattern
    has the ranks to look at; it is "speaker" for the rank that printed the line, and empty if there are none.
    """

    pattern: str
    sample: str
    cause: str = ""
    accused: str = ""
    words: str = ""
    is_block: bool = False  # it is looked for in all lines of a process together


KINDS = {
    "wait": Kind(
        rf"{_BY}(?:Watchdog caught collective operation timeout: +|Work ){_WORK} "
        r"(?:ran for \d+ milli|timed out in block)",
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, NumelIn=4, "
        "NumelOut=4, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.",
    ),
    "queue": Kind(
        _BY + r"(?:Exception \(either an error or timeout\) detected by watchdog at work: (?P<failed>\d+), "
        r"|Timeout at NCCL work: (?P<failed2>\d+), |failure detected by watchdog at work sequence id: (?P<failed3>\d+) "
        r"PG status: |Received a (?:dump signal|timeout signal|global timeout)(?:(?!\[PG).){0,250}?)"
        r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: (?P<completed>-?\d+)",
        "[PG ID 0 PG GUID 0(default_pg) Rank 1] failure detected by watchdog at work sequence id: 8 PG status: last "
        "enqueued work: 9, last completed work: 7",
    ),
    "restart": Kind(
        r"will restart worker group",
        "Worker group FAILED. 3/3 attempts left; will restart worker group",
    ),
    "error": Kind(
        r"^(?P<ignored>Exception ignored in.*\n)?"
        r"(?:-- (?P<who>Process \d+) terminated with the following error:\n)?"
        r"Traceback \(most recent call last\):\n(?:(?:[ \t].*)?\n)*"
        r"(?P<what>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Iteration|Interrupt|Failure|Timeout|Killed|OutOfMemory)\w*"
        r"(?:: .*)?)$",
        "Traceback (most recent call last):\n  File 'train.py', line 3, in main\nKeyError: 'labels'",
        "error", "speaker", "{who} ended with {what}",
        is_block=True,
    ),
    "last line": Kind(
        r"^(?P<what>[A-Za-z_][\w.]*(?:Error|Exception|StopIteration)(?:: (?!\d*\.\d+$).*)?)$",  # not a metric
        "ValueError: bad sample",
        "error", "speaker", "{who} ended with {what}",
    ),
    "failure": Kind(
        r"Root Cause.*\n\[\d+\]:\n\s*time +: (?P<time>\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)\n\s*host +: (?P<host>\S+)\n"
        r"\s*rank +: (?P<ranks>\d+) .*\n\s*exitcode +: (?P<code>-?\d+)",
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-24_01:50:00\n  host      : node1\n"
        "  rank      : 2 (local_rank: 0)\n  exitcode  : -9 (pid: 4002)",
        "dead", "ranks", "{who} on {host} {end}",
        is_block=True,
    ),
    "exit": Kind(
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
        "failed (exitcode: -9) local_rank: 2 (pid: 161617) of binary: /usr/bin/python3",
        "dead", "speaker", "{who} {end}",
    ),
    "worker": Kind(
        r"DataLoader worker \(pid \d+\) is killed by signal: (?P<what>(?!Term|Int|Hang)[^.]+)",
        "[rank0]: RuntimeError: DataLoader worker (pid 9382) is killed by signal: Killed.",
        "dead", "speaker", "a DataLoader worker of {who} was killed ({what}): the memory of the host, or /dev/shm, may "
        "be full",
    ),
    "out of memory": Kind(
        r"Detected \d+ oom[_-]kill event|task \d+: Out Of Memory|Out of memory: Killed process \d+"
        r"|OutOfMemoryError: Task was killed due to the node running low|Reason: +OOMKilled",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.",
        "dead", "", "the system killed a process because the memory of a node (not of its GPUs) was full",
    ),
    "actor": Kind(
        r"The actor (?:died|is dead) (?:because )?+(?P<what>(?!all ref).*)|(?P<what2>Worker exit type: (?!INT).*)"
        r"|(?P<what3>A worker died (?:or was killed|unexpectedly).*)",
        "The actor died because its node has died. Node Id: 12ab, node IP address: 10.0.0.7",
        "dead", "", "a worker of Ray ended: {what}",
    ),
    "mismatch": Kind(
        r"mismatch between collectives on ranks\. Rank (?P<by>\d+) is running (?P<odd>inconsistent )?collective: "
        + _FINGERPRINT.format("own")
        + r"(?:(?:(?!Detected mismatch).)*?, but Rank (?P<other>\d+) is running (?:inconsistent )?collective: "
        + _FINGERPRINT.format("other")
        + ")?",
        "Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint("
        "SequenceNumber=1OpType=BARRIER), but Rank 2 is running collective: CollectiveFingerPrint(SequenceNumber=0"
        "OpType=BARRIER).Collectives differ in the following aspects: Sequence number: 1vs 0",
    ),
    "barrier": Kind(
        r"\[Rank (?P<by>\d+)\]: Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier",
        "[Rank 0]: Ranks 1, 12 failed to pass monitoredBarrier in 2000 ms",
        "missing", "ranks", "{who} of its group did not reach monitored_barrier in time",
    ),
    "lag": Kind(
        r"\[(?P<ranks>\d{1,6}(?:, \d{1,6})*)\] (?:(?:finished collective #\d+, but )?.{0,20}?didn't join collective "
        r"#(?P<call>\d+)|are the lagging ranks that caused)|^.*?\[missing ranks: (?P<ranks2>\d[\d, ]*)\]"
        r"|sequence number: (?P<call2>\d+)\n(?:.*\n){0,3}?collective: \S+\nmissing ranks: \{(?P<ranks3>[\d, ]+)\}",
        "[1, 3] finished collective #4, but didn't join collective #5 (count from 1)",
        "missing", "ranks", "{who} did not reach a collective that the others wait in",
        is_block=True,
    ),
    "culprit": Kind(
        r"Culprit rank (?P<ranks>\d+); Error type: (?P<what>(?:SIZE|COLLECTIVE_D?TYPE)_\w+)",
        "Culprit rank 22; Error type: SIZE_OR_SYNTAX_MISMATCH, Expected input sizes: '[[4]]' does not match",
        "call", "ranks", "the call of {who} differs from those of the others ({what})",
    ),
    "same GPU": Kind(
        r"Duplicate GPU detected : (?P<what>rank \d+ and rank \d+ both on CUDA device \w+)"
        r"|Bootstrap Root : (?P<what2>rank \d+ of \d+ ranks has already checked in)",
        "init.cc:795 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3b000",
        "error", "", "two processes use the same GPU, or the same rank: {what}. Check how the launcher sets RANK, and "
        "call torch.cuda.set_device(LOCAL_RANK) on each",
    ),
    "port": Kind(
        r"server socket has failed to (?:listen|bind).*?(?P<what>port: \d+|:\d+(?= \(errno)|EADDRINUSE)",
        "The server socket has failed to listen on any local network address. port: 29500, useIpv6: false",
        "error", "", "the port of the job is taken ({what}), by an earlier job or another: choose another MASTER_PORT",
    ),
    "store": Kind(
        r"client socket has (?:timed out|failed)[^\n]*?connect to (?:any .* of )?\(?(?P<host>[^\[\],\s]+)",
        "The client socket has timed out after 900s while trying to connect to (node-a, 29500).",
        "system", "", "{who} did not reach the store of rank 0 at {host}: is that process up, and is this its address?",
    ),
    "model": Kind(
        r"same model across all ranks, but Rank (?P<by>\d+) has "
        r"(?P<what>\d+ params, while rank \d+ has inconsistent \d+)"
        r"|\[?Rank (?P<by2>\d+)\]?: (?P<what2>params\[\d+\] in this process with sizes \[.*?\] appears not to match)",
        "DDP expects same model across all ranks, but Rank 1 has 160 params, while rank 0 has inconsistent 158 params.",
        "model", "by", "the models of {who} and rank 0 differ: {what}",
    ),
    "unused": Kind(
        r"parameters that were not used in producing loss"
        r"|Parameter(?:s| indices) which did not receive grad for rank (?P<by>\d+): (?P<what>.+)",
        "Parameters which did not receive grad for rank 3: head.bias, head.weight",
        "unused", "by", "{who} has parameters without a gradient ({what}): use them in the loss, or set "
        "find_unused_parameters=True; TORCH_DISTRIBUTED_DEBUG=DETAIL prints all names",
    ),
    "CUDA error": Kind(
        r"(?:watchdog thread terminated with exception|^ *what\(\)): +(?P<what>CUDA error: .*)",
        "[PG 3 Rank 3] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access",
        "error", "speaker", "{who} ended with {what}",
    ),
    "Xid": Kind(
        r"NVRM: Xid \((?P<gpu>PCI:[\w:.]+)[^)]*\): (?P<what>\d+, .*)",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
        "error", "", "the driver reports an error of GPU {gpu}: Xid {what}",
    ),
    "NCCL's CUDA error": Kind(
        r"\b(?P<host>[\w.-]{1,99}):\d+:\d+ \[(?P<gpu>\d+)\] .*NCCL WARN Cuda failure (?P<what>.*)",
        "node1:163028:166152 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'",
        "error", "", "GPU {gpu} of {host} failed in NCCL: {what}",
    ),
    "connect": Kind(
        rf"(?P<what>[Cc]onnect to (?!.*retry){_ADDRESS}.{{0,99}}?(?:fail|refus|timed out|abort|No rout|unreach|ret).*)",
        "socketStartConnect: Connect to fe80::16d%ib1<279> failed : Software caused connection abort",
        "system", "", "{who} did not reach {host}: look at its network (NCCL_SOCKET_IFNAME), and at the process there. "
        "{what}",
    ),
    "link": Kind(
        rf"NET/IBP? ?: ?(?:Got completion (?:from peer {_ADDRESS} )?with (?P<what>(?:error|status=?) ?\d+.*)"
        r"|.*(?P<what2>Got async event : (?!GID|client|.*active).*))|Call to (?P<what3>ibv_modify_qp failed.*)",
        "NCCL WARN NET/IB : Got completion from peer 10.0.0.7<43> with error 12, opcode 0, len 0, vendor err 129",
        "system", "", "InfiniBand failed at {who}, to {host}: look at cables, ports and GIDs. {what}",
    ),
    "NCCL error": Kind(
        r"nccl\w+(?:Error|Usage): .*\n.*Last error: *\n"
        r"(?P<what>(?!frame|Exception|.*(?:peer|ocket|onnect|roxy|abort)).*\S)|ncclSystemError: (?P<what2>.*)",
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'out of memory'",
        "system", "", "{who} failed in NCCL: {what} (NCCL_DEBUG=WARN prints more)",
        is_block=True,
    ),
    "stuck watchdog": Kind(
        _BY + r".*?(?:[Hh]eartbeat monitor timed out|watchdog got stuck for|watchdog hang|Could not acquire GIL)",
        "[PG ID 0 PG GUID 0(default_pg) Rank 6] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making "
        "progress in monitoring enqueued collectives.",
        "watchdog", "", "{who}: the watchdog thread itself hangs, in a call of CUDA or NCCL, or it waits for Python's "
        "lock; after the last step, it is the teardown: call destroy_process_group",
    ),
    "id": Kind(
        r"\[(?P<by>\d+)\] is setting up NCCL communicator and ret\w+ ncclUniqueId from \[(?P<from>\d+)\]",
        "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0'",
        "no id", "", "{who} waits for NCCL's id: rank {from} of its group never gave it, or is gone; look at that one",
    ),
    "joined": Kind(
        r"store based barrier on rank:? (?P<by>\d+), for key: store_based_barrier_key:(?P<key>\w+) "
        r"\(world_size=(?P<size>\d+), (?:worker_count|num_workers_joined)=(?P<there>\d+)"
        r"|waiting for clients\. (?P<there2>\d+)/(?P<size2>\d+) clients",
        "Timed out initializing process group in store based barrier on rank 0, for key: store_based_barrier_key:1 "
        "(world_size=4, worker_count=3, timeout=0:30:00)",
        "unknown", "", "only {there} of {size} ranks joined the group",
    ),
    "address": Kind(
        r"ait timeout after \d+ms, keys: \S*/default_pg/0//cpu//0/(?P<ranks>\d+)$",
        "wait timeout after 10000ms, keys: /default_pg/0//cpu//0/2",
        "missing", "ranks", "{who} did not connect when the default group was made",
    ),
    "RAS, no answer": Kind(
        r"Missing communicator data from (?P<few>\d+) ranks?\n\s*Rank (?P<ranks>\d+) -- GPU \d+ managed by (?P<what>.*)"
        r'|"missing_ranks"\s*:\s*\[\s*\{\s*"rank"\s*:\s*(?P<ranks2>\d+),?\s*(?P<what2>"host"[^{}]*?"pid"[^,{}]*)',
        "Missing communicator data from 1 rank\n  Rank 1 -- GPU 0 managed by process 60004 on node 10.0.0.13",
        "no answer", "ranks", "{who} ({what}) does not answer NCCL's RAS: look at it",
        is_block=True,
    ),
    "RAS": Kind(
        r"different (?P<collective>\w+) operation counts\n"
        r"\s*(?P<few>\d+) ranks? ha\w+ launched up to operation (?P<call>\d+)\n"
        r"\s*(?P<rest>\d+) ranks? ha\w+ launched up to operation (?P<last>\d+)",
        "different AllGather operation counts\n30 ranks have launched up to operation 640\n"
        "  2 ranks have launched up to operation 641",
        "behind", "", "{few} ranks launched operation {call} ({collective}), and {rest} ranks {last}: those with the "
        "lower number, or what they wait for, hold the job up; cannot tell which of them",
        is_block=True,
    ),
    "stopped": Kind(
        r"(?P<what>Received \d+ death signal|got signal: \d+$|CANCELLED AT \S+(?: DUE TO [\w ]+\w)?)",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 84933 got signal: 1",
        "unknown", "", "the job was ended from outside, or after a part of it failed: {what} (signal 1 means that its "
        "terminal was closed: use tmux, as nohup does not help)",
    ),
    "stack": Kind(
        r"^(?:Process \d+: (?:.*--local[_-]rank[= ](?P<local>\d+))?.*\n(?:.+\n){0,3}?"
        r"|.{0,60}\b[Rr]ank[ _]?(?P<local2>\d{1,6})\W{0,3}\n)?"
        r"Thread \S+ \(\w+(?:\+\w+)?\): \"MainThread\"\n(?P<frames>(?:[ \t]+\S.*\n?)+)"
        r"|^(?:Timeout \(.*\n(?:(?!Timeout \(|Fatal).*\n)*?T|Current t)hread 0x.*\(most recent call first\):\n"
        r"(?P<frames2>(?:[ \t]+File .*\n)*?[ \t]+File .* in <module>)",
        'Thread 0x7F (active): "MainThread"\n    all_reduce (torch/distributed/distributed_c10d.py:1316)\n',
        is_block=True,
    ),
    "peer": Kind(
        r"Call to (?:recv|send)\w* (?:from|to) (?P<host2>[\w.:%-]+)<\d+> failed|ncclRemoteError|remote process exited"
        r"|Read error (?P<host3>\[[\w.:]+\]:\d+)|failed on SocketImpl\(.*?remote=(?P<host4>\[[\w.:-]+\]:\d+)"
        r"|Connection (?:closed|reset) by (?:remote )?peer(?: (?P<host>[\w.:\[\]-]+[\w\]]))?|Broken pipe"
        r"|Failed to recv, got 0 bytes",
        "socketProgress: Connection closed by remote peer node-b<45821>",
        "unknown", "", "{who} lost the connection to {host}: the process there ended or hung first; look at its log",
    ),
    "gloo": Kind(
        r"Timed out waiting \d+ms for (?:send|recv) operation|Socket Timeout|doesn't match expected size"
        r"|connectFullMesh failed|errors while waiting for send/recv from rank \d+|Caught collective op|pair closure"
        r"|Stop_waiting|Horovod has been shut|DeadLock|connect\(\) timed out|ait timeout after \d+ms|RendezvousTimeout",
        "[unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete",
        "unknown", "", "{who} waited in vain for another rank, whose log says more, or for data of another size "
        "(GLOO_SOCKET_IFNAME sets the network)",
    ),
    "timeout": Kind(
        r"NCCL (?:operations have failed|communicator was aborted)|Watchdog caught collective op|nccl\w+Error: ",
        "[E ProcessGroupNCCL.cpp:488] Some NCCL operations have failed or timed out.",
        "unknown", "", "a collective of NCCL failed, or did not end in time, on {who}; the lines do not say which one",
    ),
}  # fmt: skip
