"""Logs of jobs that hang, drawn at random: a true scenario, each rank's lines in torch's words, and what befalls a log.

`drawn(seed)` draws what really happened (groups, who is late or calls something else, attempts, nodes), prints each
rank's lines by the format strings of one torch version, and then mixes, cuts, doubles, colours and damages them. The
format strings are those of ``ProcessGroupNCCL.cpp`` (``createLogPrefix``, ``WorkNCCL::checkTimeout``,
``Watchdog::runLoop``, ``Watchdog::run``, ``getNCCLWatchdogTimeoutErrorMsg``), ``ProcessGroupGloo.cpp``
(``monitoredBarrier``), ``ProcessGroupWrapper.cpp``, ``TraceUtils.h`` (``retrieveDesyncReport``),
``distributed_c10d.py`` (``_store_based_barrier``, ``_distributed_excepthook``), and ``elastic/agent/server/api.py``.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import NamedTuple

from .made_logs import aspects, fingerprint

VERSIONS = ("2.0", "2.3", "2.4", "2.6", "2.8")


class Truth(NamedTuple):
    """What a verdict may say of a rank; `call` is 0 where it states none."""

    rank: int
    cause: str
    call: int = 0


class Line(NamedTuple):
    """A line, the rank that prints it, and when, in seconds."""

    rank: int
    time_s: float
    text: str


class DrawnLog(NamedTuple):
    """A text, what is true of it, and the same by the numbers that ranks have in their groups."""

    kind: str
    text: str
    truths: frozenset[Truth]
    in_group: frozenset[Truth]


class Group(NamedTuple):
    name: str
    desc: str
    ranks: tuple[int, ...]

    def number_of(self, rank: int) -> int:
        return self.ranks.index(rank)


class _Call(NamedTuple):
    op: str
    num_in: int
    num_out: int


class Scenario:
    """A job, and the lines that its ranks print."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.version = draw.choice(VERSIONS)
        self.num_ranks = draw.randint(2, 12)
        self.timeout_s = draw.choice((60, 600, 1800))
        self.default = Group("0", "default_pg", tuple(range(self.num_ranks)))
        self.lines: list[Line] = []
        self.truths: set[Truth] = set()
        self.in_group: set[Truth] = set()
        self.call_of: dict[int, _Call] = {}  # by number in the default group: a job that starts again makes the same
        self.later = Truth(0, "dead")  # who was killed on another node, after the first one
        self.time_s = 15 * 86400 + draw.randrange(86400)  # of August

    # ---- how torch prints

    def print(self, rank: int, text: str, after_s: float = 0.0) -> None:
        self.lines += [Line(rank, self.time_s + after_s, line) for line in text.split("\n")]

    def head(self, rank: int, line: int, after_s: float, level: str = "E") -> str:
        if self.version == "2.0":
            return f"[{level} ProcessGroupNCCL.cpp:{line}] "
        if self.version == "2.3":
            return f"[rank{rank}]:[{level} ProcessGroupNCCL.cpp:{line}] "
        time_s = self.time_s + after_s
        day, second = divmod(int(time_s), 86400)
        clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.{self.draw.randrange(10**9):09}"
        return f"[rank{rank}]:[{level}8{day + 1:02} {clock} ProcessGroupNCCL.cpp:{line}] "

    def prefix(self, rank: int, group: Group) -> str:
        number = group.number_of(rank)
        described = group.desc not in ("", "undefined")
        if self.version == "2.3":
            counter = "0" if group.name == "0" else "1"  # of the groups that this process has
            return f"[PG {counter} Rank {number}] "
        if self.version == "2.4":
            desc = f" ({group.desc})" if described else ""
            return f"[PG {group.name}{desc} Rank {number}] "
        desc = f"({group.desc}) " if described else " "
        local = "0" if group.name == "0" else "1"
        return f"[PG ID {local} PG GUID {group.name}{desc}Rank {number}] "

    def work(self, call: _Call, sequence: int) -> str:
        sizes = "" if self.version == "2.0" else f"NumelIn={call.num_in}, NumelOut={call.num_out}, "
        return f"WorkNCCL(SeqNum={sequence}, OpType={call.op}, {sizes}Timeout(ms)={self.timeout_s * 1000})"

    def record(self, rank: int, line: int, said: str, after_s: float) -> None:
        self.print(rank, self.head(rank, line, after_s) + said, after_s)

    def waits(self, rank: int, group: Group, sequence: int, call: _Call, after_s: float) -> None:
        """A rank waits in vain in a collective."""
        caught = (
            f"[Rank {group.number_of(rank)}] Watchdog caught collective operation timeout: {self.work(call, sequence)} "
            f"ran for {self.timeout_s * 1000 + 60} milliseconds before timing out."
        )
        last = sequence + self.draw.choice((0, 1, 3, 8))
        self.record(rank, 632, caught, after_s)
        if self.version == "2.0":
            return
        prefix = self.prefix(rank, group)
        queue = f"last enqueued NCCL work: {last}, last completed NCCL work: {sequence - 1}."
        if self.version in ("2.4", "2.6"):
            said = f"Exception (either an error or timeout) detected by watchdog at work: {sequence}, {queue}"
            self.record(rank, 1785, prefix + said, after_s)
        if self.version != "2.8":
            self.record(rank, 1834, f"{prefix}Timeout at NCCL work: {sequence}, {queue}", after_s)
        else:
            said = f" failure detected by watchdog at work sequence id: {sequence} PG status: last enqueued work: "
            self.record(rank, 2271, f"{prefix}{said}{last}, last completed work: {sequence - 1}", after_s)
            self.record(rank, 2106, prefix + "First PG on this rank to signal dumping.", after_s)
        ended = f"{prefix}Process group watchdog thread terminated with exception: {caught}"
        self.record(rank, 1515, ended, after_s)

    def is_alarmed(self, rank: int, last: int, by: int, after_s: float) -> None:
        """A rank that did not time out prints how far it got in the default group."""
        if self.version == "2.0":
            return
        said = (
            f"Received a dump signal due to a collective timeout from  rank {by} and we will try our best to dump the "
            f"debug info. Last enqueued NCCL work: {last}, last completed NCCL work: {last}.This is most likely caused "
            "by incorrect usages of collectives, e.g., wrong sizes used across ranks, the order of collectives is not "
            "same for all ranks or the scheduled collective, for some reason, didn't run. "
        )
        self.record(rank, 1746, self.prefix(rank, self.default) + said, after_s)

    def periodic(self, rank: int, last: int, before_s: float) -> None:
        said = f"NCCL Work update periodically: last enqueued NCCL work: {last}, last completed NCCL work: {last - 1}."
        self.print(rank, self.head(rank, 1700, -before_s, "I") + self.prefix(rank, self.default) + said, -before_s)

    def raises(self, rank: int, error: str, function: str = "", after_s: float = 0.0) -> None:
        lines = ["Traceback (most recent call last):", '  File "/home/user/train.py", line 41, in main']
        if function:
            file = "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py"
            lines.append(f'  File "{file}", line 9, in {function}')
        label = "" if self.version == "2.0" else f"[rank{rank}]: "
        self.print(rank, "\n".join(label + line for line in [*lines, error]), after_s)

    # ---- what happened

    def call(self) -> _Call:
        num = self.draw.choice((1, 12, 400, 9801523))
        op = self.draw.choice(("ALLREDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE", "BROADCAST"))
        if op == "_ALLGATHER_BASE":
            return _Call(op, num, num * self.num_ranks)
        if op == "_REDUCE_SCATTER_BASE":
            return _Call(op, num * self.num_ranks, num)
        return _Call(op, num, num)

    def number(self) -> int:
        return self.draw.choice((1, 2, 5, self.draw.randint(3, 99), self.draw.randint(100, 99999)))

    def some_ranks(self, most: int) -> list[int]:
        return sorted(self.draw.sample(range(self.num_ranks), self.draw.randint(1, min(most, self.num_ranks - 1))))


def _missing(job: Scenario) -> None:
    """Ranks do not reach a collective of the default group."""
    late = job.some_ranks(2)
    number = job.number()
    call = job.call_of.setdefault(number, job.call())
    first = min({*range(job.num_ranks)} - {*late})
    for rank in range(job.num_ranks):
        after_s = job.draw.uniform(0, 3)
        if rank in late:
            job.is_alarmed(rank, number - 1 or job.draw.choice((0, -1)), first, after_s)
            job.truths.add(Truth(rank, "missing", number))
        else:
            job.waits(rank, job.default, number, call, after_s)
    for rank in job.some_ranks(job.num_ranks):
        if number > 2 and job.version != "2.0":
            job.periodic(rank, job.draw.choice((number - 1, max(1, number // 2))), job.draw.uniform(5, 900))


def _other_call(job: Scenario) -> None:
    """A rank calls another collective, or passes another size."""
    odd = job.draw.randrange(job.num_ranks)
    number = job.number()
    call = job.call()
    other = call
    while other.op == call.op:
        other = job.call()
    cause = "collective"
    if job.draw.random() < 0.5:
        cause = "size"
        other = call._replace(num_in=call.num_in * 3, num_out=call.num_out * 3)
    for rank in range(job.num_ranks):
        job.waits(rank, job.default, number, other if rank == odd else call, job.draw.uniform(0, 3))
    job.truths.add(Truth(odd, cause, number))


def _groups(job: Scenario) -> None:
    """Pairs of ranks are groups; a rank is late in its pair, and the others wait for both in the default group."""
    job.num_ranks = 2 * job.draw.randint(2, 5)
    job.default = Group("0", "default_pg", tuple(range(job.num_ranks)))
    style = job.draw.choice(("shared", "hashed", "counted"))
    far = job.draw.random() < 0.5  # which ranks are in a pair
    half = job.num_ranks // 2
    pairs = [(pair, pair + half) if far else (2 * pair, 2 * pair + 1) for pair in range(half)]
    groups = []
    for place, pair in enumerate(pairs):
        name = {"shared": "1", "hashed": f"{place:02x}ab{place:02x}cd", "counted": str(place + 1)}[style]
        groups.append(Group(name, "undefined" if style == "counted" else "mesh_tp", pair))
    sick = job.draw.choice(groups)
    late = job.draw.choice(sick.ranks)
    number = job.number()
    own = job.number()
    call = job.call()
    in_pair = _Call("ALLREDUCE", 100, 100)
    reached = set()
    for group in groups:
        other_number = job.draw.choice((own, job.number()))
        for rank in group.ranks:
            after_s = job.draw.uniform(0, 3)
            if group is sick and rank == late:
                job.is_alarmed(rank, number - 1, 0, after_s)
            elif group is sick:
                job.waits(rank, group, own, in_pair, after_s)
                job.is_alarmed(rank, number - 1, 0, after_s)
            elif job.draw.random() < 0.2:  # a second hang, in which a whole pair waits for its own reason
                job.waits(rank, group, other_number, _Call("BROADCAST", 7, 7), after_s)
                job.is_alarmed(rank, number - 1, 0, after_s)
            else:
                job.waits(rank, job.default, number, call, after_s)
                reached.add(rank)
    # A rank that waits in its pair did not reach the default group's collective, either.
    job.truths |= {Truth(rank, "missing", number) for rank in {*range(job.num_ranks)} - reached}
    job.truths.add(Truth(late, "missing", own))


def _attempts(job: Scenario) -> None:
    """The job hangs, torchrun starts the ranks again, and it hangs again."""
    _missing(job)
    job.time_s += 5
    day, second = divmod(job.time_s, 86400)
    agent = f"W08{day + 1:02} {second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    marker = (
        f"{agent}.301000 4711 torch/distributed/elastic/agent/server/api.py:900] [default] Worker group FAILED. "
        "3/3 attempts left; will restart worker group"
    )
    if job.version != "2.0" or job.draw.random() < 0.5:
        job.print(-1, marker)
    job.time_s += job.timeout_s + job.draw.randint(10, 4000)
    _missing(job)


def _error(job: Scenario) -> None:
    """A rank raises an error of its own, and the others lose the connection to it."""
    odd = job.some_ranks(2)
    errors = ("KeyError: 'labels'", "ValueError: no samples", "StopIteration", "RuntimeError: The size of tensor a (3)")
    error = job.draw.choice(errors)
    gloo = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/"
    lost = (
        f"{gloo}pair.cc:553] Connection closed by peer [10.0.0.7]:38291. This is typically caused by a remote worker",
        f"{gloo}unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete",
    )
    for rank in range(job.num_ranks):
        if rank in odd:
            job.raises(rank, error)
            job.truths.add(Truth(rank, "error"))
        else:
            job.raises(rank, job.draw.choice(lost), "all_reduce", 2.0)


def _gloo_timeouts(job: Scenario) -> None:
    """A rank stops in the middle of a collective, and the others wait there, or in the next one."""
    late = job.draw.randrange(job.num_ranks)
    job.truths.add(Truth(late, "missing"))
    calls = job.draw.choice((("all_gather_into_tensor", "reduce_scatter_tensor"), ("all_reduce", "all_gather_single")))
    for rank in range(job.num_ranks):
        if rank != late:
            waited = "Timed out waiting 3000ms for recv operation to complete"
            source = "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78]"
            job.raises(rank, f"RuntimeError: {source} {waited}", job.draw.choice(calls))


def _barrier(job: Scenario) -> None:
    """Ranks of the job, or of a group, do not reach monitored_barrier."""
    ranks = tuple(range(job.num_ranks))
    if job.num_ranks > 3 and job.draw.random() < 0.5:
        ranks = tuple(sorted(job.draw.sample(ranks, job.draw.randint(2, job.num_ranks - 1))))
    group = Group("7", "undefined", ranks)
    late = sorted(job.draw.sample(range(1, len(ranks)), job.draw.randint(1, min(2, len(ranks) - 1))))
    named = "Ranks" if len(late) > 1 else "Rank"
    numbers = ", ".join(map(str, late))
    job.raises(ranks[0], f"RuntimeError: [Rank 0]: {named} {numbers} failed to pass monitoredBarrier in 2000 ms")
    for number, rank in enumerate(ranks):
        if number and number not in late:
            said = (
                f"Rank {number} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                "from rank 0. Please check rank 0 logs for faulty rank."
            )
            job.print(rank, f"{job.head(rank, 136, 0.0).replace('NCCL', 'Gloo')}{said}")
    job.truths |= {Truth(group.ranks[number], "missing") for number in late}
    job.in_group |= {Truth(number, "missing") for number in late}


def _joining(job: Scenario) -> None:
    """Ranks do not join, at the start or when a group is made."""
    is_local = job.draw.random() < 0.4
    ranks = list(range(job.num_ranks))
    if is_local:
        ranks = sorted(job.draw.sample(ranks, job.draw.randint(2, job.num_ranks)))
    late = job.draw.sample(ranks, job.draw.randint(1, len(ranks) - 1))
    key = f"{job.draw.randrange(16**6):06x}f" if is_local else str(job.draw.randint(0, 3))
    there = [rank for rank in ranks if rank not in late]
    word = "worker_count" if job.version == "2.0" else "num_workers_joined"
    for rank in there:
        job.raises(
            rank,
            "torch.distributed.DistStoreError: Timed out initializing process group in store based barrier on rank "
            f"{rank}, for key: store_based_barrier_key:{key} (world_size={len(ranks)}, {word}={len(there)}, "
            "timeout=0:00:30 error=wait timeout after 10000ms, keys: /default_pg/0/)",
        )
    job.truths |= {Truth(rank, "missing") for rank in late}


def _clients(job: Scenario) -> None:
    """The store waits for ranks that do not connect; this is before torch labels errors with the rank."""
    late = job.some_ranks(job.num_ranks - 1)
    there = [rank for rank in range(job.num_ranks) if rank not in late]
    for rank in there[:1]:
        said = f"Timed out after 61 seconds waiting for clients. {len(there)}/{job.num_ranks} clients joined."
        job.print(rank, f"torch.distributed.DistStoreError: {said}")
    job.truths |= {Truth(rank, "missing") for rank in late}


def _detail(job: Scenario) -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL compares the calls: each rank reports the first one that differs from it."""
    odd = job.draw.randrange(job.num_ranks)
    cause = job.draw.choice(("collective", "size", "dtype"))
    usual = fingerprint("ALLREDUCE", [400])
    other = {
        "collective": fingerprint("ALLGATHER", [400]),
        "size": fingerprint("ALLREDUCE", [512]),
        "dtype": fingerprint("ALLREDUCE", [400], "Double"),
    }[cause]
    for rank in range(job.num_ranks):
        own, others = (other, usual) if rank == odd else (usual, other)
        first = (0 if odd else 1) if rank == odd else odd
        said = f"Rank {rank} is running collective: {own}, but Rank {first} is running collective: {others}."
        said = f"Detected mismatch between collectives on ranks. {said}{aspects(own, others)}"
        job.raises(rank, f"RuntimeError: {said}")
    job.truths.add(Truth(odd, cause, 7))


def _desync(job: Scenario) -> None:
    """The report of TORCH_NCCL_DESYNC_DEBUG in the default group or in another one."""
    ranks = tuple(range(job.num_ranks))
    if job.num_ranks > 3 and job.draw.random() < 0.5:
        ranks = tuple(sorted(job.draw.sample(ranks, job.draw.randint(2, job.num_ranks - 1))))
    group = Group("7", "undefined", ranks)
    late = job.draw.choice(ranks[1:])
    number = job.number() + 1
    call = _Call("ALLREDUCE", 400, 400)
    job.waits(ranks[0], group, number, call, 0.0)
    report = (
        f"\t - [0] Timeout at collective: ALLREDUCE, #{number}\n"
        "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:\n"
        f"\t     [{group.number_of(late)}] finished collective #{number - 1}, but didn't join collective #{number} "
        "(count from 1)"
    )
    job.print(ranks[0], report)
    job.truths.add(Truth(late, "missing", number))
    job.in_group.add(Truth(group.number_of(late), "missing", number))


def _killed(job: Scenario) -> None:
    """A rank is killed; torchrun on its node says so, and those of other nodes that theirs failed later."""
    dead = job.draw.randrange(job.num_ranks)
    later = job.draw.choice([rank for rank in range(job.num_ranks) if rank != dead])

    def report(rank: int, minute: int, exit_code: int) -> None:
        said = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
        if exit_code < 0:
            said = f"Signal {-exit_code} (SIGKILL) received by PID {4000 + rank}"
        job.print(
            -1 - minute,
            "Root Cause (first observed failure):\n[0]:\n"
            f"  time      : 2026-11-24_01:{minute}:00\n  host      : node{minute}\n"
            f"  rank      : {rank} (local_rank: {rank % 2})\n  exitcode  : {exit_code} (pid: {4000 + rank})\n"
            f"  error_file: <N/A>\n  traceback : {said}",
        )

    report(dead, 50, -9)
    report(later, 53, job.draw.choice((-9, 1)))
    job.later = Truth(later, "dead")
    job.truths.add(Truth(dead, "dead"))


KINDS: dict[str, Callable[[Scenario], None]] = {
    "missing": _missing,
    "other call": _other_call,
    "groups": _groups,
    "attempts": _attempts,
    "own error": _error,
    "Gloo timeouts": _gloo_timeouts,
    "monitored barrier": _barrier,
    "joining": _joining,
    "store's clients": _clients,
    "DETAIL": _detail,
    "desync report": _desync,
    "killed": _killed,
}

# ---- what befalls a log


def _labelled(lines: list[Line], style: str, draw: random.Random) -> list[Line]:
    """Put a launcher's prefix before each line; torchrun counts the processes of a node."""
    per_node = draw.choice((2, 4, 16))
    labelled = []
    for line in lines:
        label = ""
        if style and line.rank >= 0:
            local = line.rank % per_node
            label = {"srun": f"{line.rank}: ", "mpirun": f"[1,{line.rank}]<stderr>:", "torchrun": f"[default{local}]:"}[
                style
            ]
        labelled.append(line._replace(text=label + line.text))
    return labelled


def _mixed(lines: list[Line], draw: random.Random) -> list[Line]:
    """The lines in the order in which they came, or rank by rank, or in any."""
    style = draw.choice(("time", "rank", "any"))
    if style == "time":
        return sorted(lines, key=lambda line: line.time_s)
    if style == "rank":
        return sorted(lines, key=lambda line: line.rank)
    return draw.sample(lines, len(lines))


def _with_split(texts: list[str], draw: random.Random) -> list[str]:
    """Print some lines into the middle of others."""
    split: list[str] = []
    for text in texts:
        if split and draw.random() < 0.15:
            before = split.pop()
            place = draw.randrange(len(before) + 1)
            if draw.random() < 0.5:
                split += [before[:place] + text, before[place:]]
            else:
                other = draw.randrange(len(text) + 1)
                split += [before[:place] + text[:other], before[place:] + text[other:]]
        else:
            split.append(text)
    return split


def _without_digits(texts: list[str], draw: random.Random) -> list[str]:
    """Drop a digit of a number or a size of a call, or of a time, from some lines."""
    damaged = []
    for text in texts:
        places = [match.start(1) + draw.randrange(len(match[1])) for match in _DIGITS.finditer(text)]
        if places and draw.random() < 0.3:
            place = draw.choice(places)
            text = text[:place] + text[place + 1 :]
        damaged.append(text)
    return damaged


_DIGITS = re.compile(r"(?:TensorShape=\[|SequenceNumber=|SeqNum=|NumelIn=|NumelOut=|work: |sequence id: |\[E8|:)(\d+)")


def _decorated(texts: list[str], draw: random.Random) -> list[str]:
    style = draw.choice(("", "", "grep", "time", "bars"))
    if style == "grep":
        return [re.sub("(enqueued|Watchdog|rank)", "\x1b[01;31m\x1b[K\\1\x1b[m\x1b[K", text) for text in texts]
    if style == "time":
        return [f"2026-11-24 01:45:{place % 60:02}  (Worker pid=3{place}) {text}" for place, text in enumerate(texts)]
    if style == "bars":
        return [f"Epoch 3:  45%|████▌     | {place}/999 [07:24,  1.48s/it]\r{text}" for place, text in enumerate(texts)]
    return texts


def drawn(seed: int) -> DrawnLog:
    """Draw a log."""
    draw = random.Random(seed)
    kind = draw.choice(sorted(KINDS))
    job = Scenario(draw)
    KINDS[kind](job)
    # A report of torchrun is printed in one piece; the lines of ranks are mixed.
    launcher = draw.choice(("", "srun", "mpirun", "torchrun"))
    lines = _labelled(job.lines, launcher, draw)
    if kind == "killed":
        lines = sorted(lines, key=lambda line: line.rank, reverse=draw.random() < 0.5)
    else:
        lines = _mixed(lines, draw)
        if draw.random() < 0.5:
            least = draw.uniform(0.2, 1.0)
            lines = [line for line in lines if draw.random() < least]
        if draw.random() < 0.3:
            lines = sorted(lines * 2, key=lambda line: line.time_s)
    texts = [line.text for line in lines]
    if launcher != "srun" and draw.random() < 0.4:  # srun writes whole lines
        texts = _with_split(texts, draw)
    if draw.random() < 0.3:
        texts = _without_digits(texts, draw)
    if draw.random() < 0.15:
        width = draw.randint(60, 400)
        texts = [text[:width] for text in texts]
    text = draw.choice(("\n", "\n", "\r\n")).join(_decorated(texts, draw))
    if draw.random() < 0.3:
        text = text[: draw.randrange(len(text) + 1)]
    elif draw.random() < 0.7:
        text += "\n"
    if kind == "killed" and text.count("Root Cause (first observed failure):") < 2:
        job.truths.add(job.later)  # only the report of the other node is left, and it is true of that node
    return DrawnLog(kind, text, frozenset(job.truths), frozenset(job.in_group))
