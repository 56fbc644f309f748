"""Lines that torch prints when a job hangs, as facts: one reader per kind of line.

The patterns follow torch's own format strings. In ``torch/csrc/distributed/c10d``:

- ``ProcessGroupNCCL.cpp``: ``WorkNCCL::checkTimeout`` and the stream operator of ``WorkNCCL`` ("Watchdog caught
  collective operation timeout"), ``Watchdog::runLoop`` ("failure detected by watchdog at work sequence id", before 2.7
  "Exception (either an error or timeout) detected by watchdog at work"), ``HeartbeatMonitor::runLoop`` ("Received a
  dump signal") and ``createLogPrefix``;
- ``ProcessGroupGloo.cpp``: ``monitoredBarrier`` and ``connectFullMesh``;
- ``ProcessGroupWrapper.cpp``: ``CollectiveFingerPrint::verify_tensors`` (``TORCH_DISTRIBUTED_DEBUG=DETAIL``);
- ``TraceUtils.h``: ``retrieveDesyncReport`` (``TORCH_NCCL_DESYNC_DEBUG=1``);
- ``TCPStore.cpp``: ``waitForWorkers`` and ``wait``.

In gloo: ``transport/tcp/unbound_buffer.cc`` ("Timed out waiting") and ``transport/tcp/pair.cc`` ("Connection closed by
peer", "Read error", "Received data size doesn't match expected size"); ``rendezvous/context.cc`` stores the address of
each rank under its number before it waits for the addresses of the others. In Python:
``distributed_c10d._distributed_excepthook`` puts ``[rank3]:`` before each line of an uncaught exception.

Each reader searches in a single line, which has a bounded length; no pattern has neighbouring repetitions that match
the same character without a bound.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_NUMBER = r"(\d{1,18})"
_RANK = r"(\d{1,7})"


class LogProcess(NamedTuple):
    """Which process printed a line, as far as the line states it.

    `rank` is torch's own ``[rank3]:``. `label` is the number in the prefix of a launcher, or in the name of the file,
    and `label_kind` says which; such a number may also be that of a node, or count the processes of one node.
    """

    rank: int | None
    label: int | None
    label_kind: str


class LogLine(NamedTuple):
    """A line without its end."""

    text: str
    label: int | None
    label_kind: str
    is_cut: bool  # the text ends in the middle of this line, as far as one can see

    def process(self, before: int) -> LogProcess:
        """Return the process of a record that begins there: two lines may have run into one."""
        rank = None
        for stated in _STATED_RANK.finditer(self.text, 0, before):
            rank = int(stated[1])
        return LogProcess(rank, self.label, self.label_kind)


class WatchdogTimeout(NamedTuple):
    """A collective of NCCL that did not end in time. `sequence` is None in old versions, which do not print it."""

    process: LogProcess
    rank_in_group: int
    group: str | None
    sequence: int | None
    collective: str
    num_in: int | None
    num_out: int | None


class QueueStatus(NamedTuple):
    """The numbers of the last collective that a rank put into a group's queue, and of the one that failed there."""

    process: LogProcess
    rank_in_group: int
    group: str
    failed: int | None
    enqueued: int


class BarrierMissed(NamedTuple):
    """Ranks of the barrier's group that did not reach ``monitored_barrier`` in time, as its rank 0 reports."""

    process: LogProcess
    reporter: int
    ranks: tuple[int, ...]


class BarrierReached(NamedTuple):
    """A rank that came to ``monitored_barrier``, and did not hear from its rank 0."""

    process: LogProcess
    rank_in_group: int


class CallPrint(NamedTuple):
    """A call as ``CollectiveFingerPrint`` prints it; empty where the text does not have it."""

    collective: str
    shape: str
    dtype: str
    sequence: str

    @property
    def is_known(self) -> bool:
        """Whether the call is legible: torch misreads a call with another number of tensors or dimensions."""
        return bool(self.collective and self.shape)


class CallMismatch(NamedTuple):
    """A rank's call, and the first rank of the group whose call differs from it."""

    process: LogProcess
    rank_in_group: int
    own: CallPrint
    other_in_group: int
    other: CallPrint


class DesyncLag(NamedTuple):
    """Ranks that did not join a collective, by its number, as the desync report says; 1 if they never joined any."""

    process: LogProcess
    group: str | None
    ranks: tuple[int, ...]
    call: int


class AddressWait(NamedTuple):
    """A rank that waited in vain for the address of another, while the default group connected."""

    process: LogProcess
    awaited: int


class JoinCount(NamedTuple):
    """How many ranks of how many had joined when a rank gave up waiting for the others at the start."""

    process: LogProcess
    joined: int
    num_ranks: int


class CommunicationError(NamedTuple):
    """A failed message or connection; `kind` is "timeout", "closed", "size", "connect" or "store"."""

    process: LogProcess
    kind: str
    words: str


class OwnError(NamedTuple):
    """An exception that ended a rank and is not about communication."""

    process: LogProcess
    error: str


class CallFrame(NamedTuple):
    """A function of ``torch.distributed`` in the stack of an uncaught exception."""

    process: LogProcess
    function: str


class KilledProcess(NamedTuple):
    """The process whose end torchrun saw first, by a signal that no other rank causes."""

    process: LogProcess
    rank: int
    signal: str


LogFact = (
    WatchdogTimeout
    | QueueStatus
    | BarrierMissed
    | BarrierReached
    | CallMismatch
    | DesyncLag
    | AddressWait
    | JoinCount
    | CommunicationError
    | OwnError
    | CallFrame
    | KilledProcess
)

_STATED_RANK = re.compile(rf"\[rank{_RANK}\]:", re.ASCII)
_GROUP = re.compile(
    rf"\[PG (?:ID \w{{1,40}} PG GUID )?([^\s()\[\]]{{1,200}}) ?(?:\(([^()\[\]]{{0,200}})\) )?Rank {_RANK}\]", re.ASCII
)
_WATCHDOG = re.compile(
    rf"Rank {_RANK}\]\s{{0,2}}Watchdog caught collective operation timeout: Work\w{{1,12}}\("
    rf"(?:SeqNum={_NUMBER}, )?OpType=(\w{{1,40}}), "
    rf"(?:NumelIn={_NUMBER}, NumelOut={_NUMBER}, |TensorShape=\[[\d, ]{{0,400}}\], )?"
    r"Timeout\(ms\)=\d{1,18}\) ran for",
    re.ASCII,
)
_FAILED = re.compile(rf"at work(?: sequence id)?: {_NUMBER}\b", re.ASCII)
_ENQUEUED = re.compile(r"[Ll]ast enqueued (?:NCCL )?work: (-?\d{1,18}), ", re.ASCII)
_MISSED = re.compile(
    rf"\[Rank {_RANK}\]: Ranks? (\d{{1,7}}(?:, ?\d{{1,7}}){{0,4095}}) failed to pass monitoredBarrier in \d", re.ASCII
)
_REACHED = re.compile(rf"Rank {_RANK} successfully reached monitoredBarrier", re.ASCII)
_MISMATCH = re.compile(
    rf"Detected mismatch between collectives on ranks\. Rank {_RANK} is running collective: "
    rf"CollectiveFingerPrint\((.{{0,2000}}?), but Rank {_RANK} is running collective(: CollectiveFingerPrint\()?",
    re.ASCII,
)
_PRINT_SEQUENCE = re.compile(rf"SequenceNumber={_NUMBER}", re.ASCII)
_PRINT_COLLECTIVE = re.compile(r"OpType=(\w{1,40})[,)]", re.ASCII)
_PRINT_SHAPE = re.compile(r"TensorShape=\[([\d, ]{0,400})\]", re.ASCII)
_PRINT_DTYPE = re.compile(r"TensorDtypes=([\w ]{1,400}), TensorDeviceTypes", re.ASCII)
_MOST_PRINT_LETTERS = 2000
_NEVER_JOINED = re.compile(r"ranks \[([\d, ]{1,4000})\] are the lagging ranks that caused this timeout", re.ASCII)
_NOT_JOINED = re.compile(
    rf"\[([\d, ]{{1,4000}})\] finished collective #{_NUMBER}, but didn't join collective #{_NUMBER} \(count from 1\)",
    re.ASCII,
)
_ADDRESS = re.compile(rf"[Ww]ait timeout after \d{{1,12}}ms, keys: \S{{0,400}}/default_pg/0//cpu//0/{_RANK}$", re.ASCII)
_CLIENTS = re.compile(
    rf"Timed out after \d{{1,12}} seconds waiting for clients\. {_RANK}/{_RANK} clients joined", re.ASCII
)
_STORE_BARRIER = re.compile(
    rf"store based barrier on rank:? {_RANK}, for key: \S{{1,200}} \(world_size={_RANK}, num_workers_joined={_RANK},",
    re.ASCII,
)
_WAITED = re.compile(r"Timed out waiting (\d{1,12})ms for (send|recv) operation to complete", re.ASCII)
_FRAME = re.compile(r"distributed_c10d\.py\", line \d{1,7}, in (\w{1,80})\s{0,4}$", re.ASCII)
_UNCAUGHT = re.compile(
    r"\[rank\d{1,7}\]: ([A-Za-z_][\w.]{0,200}(?:Error|Exception|Exit|Interrupt|Failure|NotFound|Stop))"
    r"(?:: (.{0,200})|$)"
)
# What an exception says if it may be the consequence of what another rank did.
_ABOUT_OTHERS = re.compile(
    r"gloo|nccl|c10d|store|socket|connection|connect|timed out|timeout|time out|peer|barrier|collective|distributed"
    r"|process group|rank|signal|broken pipe|interrupt|exit|abort|cuda error",
    re.IGNORECASE,
)
_SIGNALS = {"-9": "SIGKILL", "-7": "SIGBUS"}  # which neither torch nor the end of another rank sends
_FIRST_FAILURE = b"Root Cause (first observed failure):"
_FAILURE_LINES = (  # that follow; `_FAILURE_FORMAT_TEMPLATE` in torch/distributed/elastic/multiprocessing/errors
    re.compile(r"\[\d{1,7}\]:", re.ASCII),
    re.compile(r"\s{1,8}time {1,8}: ", re.ASCII),
    re.compile(r"\s{1,8}host {1,8}: ", re.ASCII),
    re.compile(r"\s{1,8}rank {1,8}: (?P<rank>\d{1,7}) \(local_rank: \d{1,7}\)", re.ASCII),
    re.compile(r"\s{1,8}exitcode {1,8}: (?P<exit>-?\d{1,4}) \(pid: (?P<pid>\d{1,10})\)", re.ASCII),
    re.compile(r"\s{1,8}error_file: ", re.ASCII),
    re.compile(r"\s{1,8}traceback : Signal \d{1,3} \(\w{1,20}\) received by PID (?P<end>\d{1,10})\b", re.ASCII),
)


class LineReader(NamedTuple):
    """Reads one kind of line: strings of which the line must contain one, and what makes facts of it."""

    marks: tuple[bytes, ...]
    read: Callable[[LogLine], Iterator[LogFact]]


def group_key(name: str, desc: str) -> str:
    """Return how a group is called in all records of it: by its description if that is unique, else with its name."""
    if desc == "default_pg" or (name == "0" and desc in ("", "undefined")):
        return "default_pg"
    if desc in ("", "undefined"):
        return f"group {name}"
    return f"{desc} ({name})"


def _last_group(text: str, before: int) -> re.Match[str] | None:
    last = None
    for group in _GROUP.finditer(text, 0, before):
        last = group
    return last


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word.strip().isdecimal() and len(word) < 9)


def _watchdog(line: LogLine) -> Iterator[WatchdogTimeout]:
    for match in _WATCHDOG.finditer(line.text):
        rank, sequence, collective, num_in, num_out = match.groups()
        group = _GROUP.search(line.text, max(0, match.start() - 500), match.start() + len(f"Rank {rank}]"))
        yield WatchdogTimeout(
            process=line.process(match.start()),
            rank_in_group=int(rank),
            group=group_key(group[1], group[2] or "") if group else None,
            sequence=None if sequence is None else int(sequence),
            collective=collective,
            num_in=None if num_in is None else int(num_in),
            num_out=None if num_out is None else int(num_out),
        )


def _status(line: LogLine) -> Iterator[QueueStatus]:
    for match in _ENQUEUED.finditer(line.text):
        group = _last_group(line.text, match.start())
        if group is None:
            continue
        failed = _FAILED.search(line.text, group.end(), match.start())
        yield QueueStatus(
            process=line.process(match.start()),
            rank_in_group=int(group[3]),
            group=group_key(group[1], group[2] or ""),
            failed=int(failed[1]) if failed else None,
            enqueued=int(match[1]),
        )


def _barrier(line: LogLine) -> Iterator[BarrierMissed | BarrierReached]:
    for match in _MISSED.finditer(line.text):
        yield BarrierMissed(line.process(match.start()), int(match[1]), _numbers(match[2]))
    for match in _REACHED.finditer(line.text):
        yield BarrierReached(line.process(match.start()), int(match[1]))


def _call_print(text: str) -> CallPrint:
    fields = []
    for pattern in (_PRINT_COLLECTIVE, _PRINT_SHAPE, _PRINT_DTYPE, _PRINT_SEQUENCE):
        match = pattern.search(text)
        fields.append(match[1] if match else "")
    collective, shape, dtype, sequence = fields
    return CallPrint(collective, f"[{shape}]" if _PRINT_SHAPE.search(text) else "", dtype, sequence)


def _mismatch(line: LogLine) -> Iterator[CallMismatch]:
    for match in _MISMATCH.finditer(line.text):
        other = ""
        if match[4]:
            other = line.text[match.end() : match.end() + _MOST_PRINT_LETTERS].partition("Collectives differ in")[0]
        process = line.process(match.start())
        yield CallMismatch(process, int(match[1]), _call_print(match[2]), int(match[3]), _call_print(other))


def _desync(line: LogLine) -> Iterator[DesyncLag]:
    group = _last_group(line.text, len(line.text))
    name = group_key(group[1], group[2] or "") if group else None
    for match in _NEVER_JOINED.finditer(line.text):
        yield DesyncLag(line.process(match.start()), name, _numbers(match[1]), 1)
    for match in _NOT_JOINED.finditer(line.text):
        yield DesyncLag(line.process(match.start()), name, _numbers(match[1]), int(match[3]))


def _address(line: LogLine) -> Iterator[AddressWait | CommunicationError]:
    yield CommunicationError(line.process(len(line.text)), "store", "waited in vain for the others to connect")
    match = _ADDRESS.search(line.text.rstrip())
    if match and not line.is_cut:
        yield AddressWait(line.process(match.start()), int(match[1]))


def _join_count(line: LogLine) -> Iterator[JoinCount]:
    for match in _CLIENTS.finditer(line.text):
        yield JoinCount(line.process(match.start()), int(match[1]), int(match[2]))
    for match in _STORE_BARRIER.finditer(line.text):
        process = line.process(match.start())
        if process.rank in (None, int(match[1])):
            yield JoinCount(process._replace(rank=int(match[1])), int(match[3]), int(match[2]))


def _communication(kind: str, words: str) -> Callable[[LogLine], Iterator[CommunicationError]]:
    def read(line: LogLine) -> Iterator[CommunicationError]:
        yield CommunicationError(line.process(len(line.text)), kind, words)

    return read


def _waited(line: LogLine) -> Iterator[CommunicationError]:
    for match in _WAITED.finditer(line.text):
        words = f"waited {match[1]} ms for a message"
        yield CommunicationError(line.process(match.start()), "timeout", words)


def _frame(line: LogLine) -> Iterator[CallFrame]:
    match = _FRAME.search(line.text)
    if match:
        yield CallFrame(line.process(match.start()), match[1])


def _uncaught(line: LogLine) -> Iterator[OwnError | CommunicationError]:
    for match in _UNCAUGHT.finditer(line.text):
        process = line.process(match.end())
        words = f"{match[1]}: {match[2]}" if match[2] else match[1]
        if _ABOUT_OTHERS.search(words):
            yield CommunicationError(process, "other", words)
        elif not (line.is_cut and match[1] == "RuntimeError"):  # torch's own errors, whose rest may be cut off
            yield OwnError(process, words)


_CLOSED = "lost the connection to another rank"
LINE_READERS: dict[str, LineReader] = {
    "watchdog": LineReader((b"Watchdog caught",), _watchdog),
    "queue status": LineReader((b"ast enqueued ",), _status),
    "monitored barrier": LineReader((b"monitoredBarrier",), _barrier),
    "mismatch": LineReader((b"Detected mismatch between",), _mismatch),
    "desync report": LineReader((b"lagging ranks", b"didn't join collective"), _desync),
    "address": LineReader((b"ait timeout after",), _address),
    "clients": LineReader((b"waiting for clients", b"store based barrier"), _join_count),
    "gloo timeout": LineReader((b"Timed out waiting",), _waited),
    "closed": LineReader(
        (
            b"Connection closed by peer",
            b"Connection reset by peer",
            b"Broken pipe",
            b"Connection closed by remote peer",
        ),
        _communication("closed", _CLOSED),
    ),
    "size": LineReader((b"Received data size doesn't match",), _communication("size", "received a longer message")),
    "connect": LineReader((b"connectFullMesh failed",), _communication("connect", "could not connect to another rank")),
    "frame": LineReader((b"distributed_c10d.py",), _frame),
    "exception": LineReader(
        (b"Error", b"Exception", b"Interrupt", b"Exit", b"Failure", b"NotFound", b"Stop"), _uncaught
    ),
}


class RootCause:
    """torchrun's report on the process that ended first: lines that must follow each other, in their order."""

    def __init__(self) -> None:
        self._lines_read = -1  # of `_FAILURE_LINES`; -1 outside of a report
        self._stated: dict[str, str] = {}

    def read(self, raw: bytes) -> KilledProcess | None:
        """Take the next line; return a process that was killed at the end of a report on it."""
        if _FIRST_FAILURE in raw:
            self._lines_read = 0
            self._stated = {}
            return None
        if self._lines_read < 0:
            return None
        match = _FAILURE_LINES[self._lines_read].match(raw[:400].decode("utf-8", "replace"))
        if match is None:
            self._lines_read = -1
            return None
        self._stated |= match.groupdict()
        self._lines_read += 1
        if self._lines_read < len(_FAILURE_LINES):
            return None
        self._lines_read = -1
        signal = _SIGNALS.get(self._stated["exit"])
        if signal is None or self._stated["pid"] != self._stated["end"]:
            return None
        return KilledProcess(LogProcess(None, None, ""), int(self._stated["rank"]), signal)


class Launcher(NamedTuple):
    """A prefix that a launcher puts before each line of a process."""

    kind: str
    pattern: Any


LAUNCHERS = (
    Launcher("torchrun", re.compile(rb"\[[A-Za-z_]{1,40}(\d{1,7})\]:")),
    Launcher("mpirun", re.compile(rb"\[\d{1,9},(\d{1,7})\]<std(?:out|err|in|diag)>:")),
    Launcher("srun", re.compile(rb"\s{0,6}(\d{1,7}): ")),
)
