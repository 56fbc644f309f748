"""Lines that torch prints when a job hangs, as facts: one reader per kind of line.

The patterns follow torch's own format strings. In ``torch/csrc/distributed/c10d``:

- ``ProcessGroupNCCL.cpp``: ``WorkNCCL::checkTimeout`` and the stream operator of ``WorkNCCL`` ("Watchdog caught
  collective operation timeout"), ``WorkNCCL::synchronizeInternal`` ("timed out in blocking wait"),
  ``WorkNCCL::checkAndSetException`` ("raised the following async exception"), ``Watchdog::run`` ("watchdog thread
  terminated with exception"), ``Watchdog::runLoop`` ("failure detected by watchdog at work sequence id", before 2.7
  "Exception (either an error or timeout) detected by watchdog at work" and "Timeout at NCCL work"; its "NCCL Work
  update periodically" says nothing about the state at the end, so it is not read),
  ``HeartbeatMonitor::getNCCLWatchdogTimeoutErrorMsg`` ("Received a dump signal"), ``broadcastUniqueNCCLID``
  ("retrieving ncclUniqueId from [0]") and ``createLogPrefix``;
- ``Work.cpp``: ``opTypeToString``;
- ``ProcessGroupGloo.cpp``: ``monitoredBarrier`` and ``connectFullMesh``;
- ``ProcessGroupWrapper.cpp``: ``CollectiveFingerPrint::verify_tensors`` (``TORCH_DISTRIBUTED_DEBUG=DETAIL``);
- ``TraceUtils.h``: ``retrieveDesyncReport`` (``TORCH_NCCL_DESYNC_DEBUG=1``);
- ``TCPStore.cpp``: ``waitForWorkers`` and ``wait``.

In gloo: ``transport/tcp/unbound_buffer.cc`` ("Timed out waiting") and ``transport/tcp/pair.cc`` ("Connection closed by
peer", "Read error", "Received data size doesn't match expected size"); ``rendezvous/context.cc`` stores the address of
each rank under its number before it waits for the addresses of the others. In Python:
``distributed_c10d._distributed_excepthook`` puts ``[rank3]:`` before each line of an uncaught exception,
``distributed_c10d._store_based_barrier`` says how many ranks joined a group, and the agent in
``elastic/agent/server/api.py`` that it "will restart worker group". c10 begins a line of C++ with ``[rank3]:[E816
01:45:40.183009389 ProcessGroupNCCL.cpp:632]``: the month, the day in two digits, and the time.

Two processes that write to one file can print into each other's lines. So the numbers of a line count only if torch's
whole phrase, from the group to the last number, stands there without a gap, and a rank only if it stands right before.

Each reader searches in a single line, which has a bounded length; no pattern has neighbouring repetitions that match
the same character without a bound.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

MOST_RANK_DIGITS = 7
_A_RANK = rf"\d{{1,{MOST_RANK_DIGITS}}}"
_A_NUMBER = r"\d{1,18}"
_RANK = f"({_A_RANK})"  # with a group, for patterns that name none
_NUMBER = f"({_A_NUMBER})"
DEFAULT_GROUP = "default_pg"  # as torch describes it
_UNDESCRIBED = ("", "undefined")  # the latter is torch's word for a group that is made without a description


class LogOrigin(NamedTuple):
    """Which process printed a line, and when, as far as the line states it.

    `rank` is torch's own ``[rank3]:``. `label` is the number in the prefix of a launcher, or in the name of the file,
    and `label_kind` says which; such a number may also be that of a node, or count the processes of one node.
    `stamp` is the time in c10's prefix.
    """

    rank: int | None
    label: int | None
    label_kind: str
    stamp: Stamp | None = None


class Stamp(NamedTuple):
    """A time as c10 prints it, without the year."""

    month: int
    day: int
    second: int  # of the day

    @property
    def seconds(self) -> int:
        """Seconds that grow over a year; a month counts 31 days."""
        return ((self.month * 31) + self.day) * 86400 + self.second

    def __str__(self) -> str:
        hour, rest = divmod(self.second, 3600)
        return f"{_MONTHS[self.month - 1]} {self.day}, {hour:02}:{rest // 60:02}:{rest % 60:02}"


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class GroupName(NamedTuple):
    """How records call a process group. `is_shared` says that several groups of a job may have this name.

    Before 2.4, torch prints a counter of the process; until names were hashed, ``split_group`` gave the groups that it
    made from one parent the same number. Only the default group, the groups of ``new_group`` and hashed names are safe.
    """

    key: str
    is_shared: bool


class LogLine(NamedTuple):
    """A line without its end."""

    text: str
    label: int | None
    label_kind: str
    is_cut: bool  # the text ends in the middle of this line, as far as one can see

    def origin(self, before: int) -> LogOrigin:
        """Return the origin of a Python message that begins or ends there.

        Its rank is the last one that is stated before, because two lines may have run into one.
        """
        rank = None
        for stated in _STATED_RANK.finditer(self.text, 0, before):
            rank = int(stated[1])
        return LogOrigin(rank, self.label, self.label_kind)

    def record_origin(self, begin: int) -> LogOrigin:
        """Return the origin of a record of C++ whose message begins there, right after c10's prefix.

        Without that prefix, the message may have run into the line of another process.
        """
        head = _HEAD.search(self.text[max(0, begin - _MOST_HEAD) : begin])
        if head is None:
            return LogOrigin(None, None, "")
        stamp = _stamp(head)
        if head["rank"] is not None:
            return LogOrigin(int(head["rank"]), self.label, self.label_kind, stamp)
        if _STATED_RANK.search(self.text, 0, begin):
            # another record stands before this one in the line, and the label at its begin may be of that one
            return LogOrigin(None, None, "", stamp)
        return LogOrigin(None, self.label, self.label_kind, stamp)


class WatchdogTimeout(NamedTuple):
    """A collective of NCCL that did not end in time. `sequence` is None in old versions, which do not print it.

    `group` is None unless the line itself states it.
    """

    origin: LogOrigin
    rank_in_group: int
    group: GroupName | None
    sequence: int | None
    collective: str
    num_in: int | None
    num_out: int | None


class QueueStatus(NamedTuple):
    """The numbers of the last collective that a rank put into a group's queue, and of the one that failed there."""

    origin: LogOrigin
    rank_in_group: int
    group: GroupName
    failed: int | None
    enqueued: int


class BarrierMissed(NamedTuple):
    """Ranks of the barrier's group that did not reach ``monitored_barrier`` in time, as its rank 0 reports."""

    origin: LogOrigin
    reporter: int
    ranks: tuple[int, ...]


class BarrierReached(NamedTuple):
    """A rank that came to ``monitored_barrier``, and did not hear from its rank 0."""

    origin: LogOrigin
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
    """A rank's call, and the first rank of the group whose call differs from it.

    `aspects` are those in which torch says that they differ, "collective", "size" and "dtype".
    """

    origin: LogOrigin
    rank_in_group: int
    own: CallPrint
    other_in_group: int
    other: CallPrint
    aspects: frozenset[str]


class DesyncLag(NamedTuple):
    """Ranks of a group that did not join a collective, by its number; 1 if they never joined any."""

    origin: LogOrigin
    ranks: tuple[int, ...]
    call: int


class AddressWait(NamedTuple):
    """A rank that waited in vain for the address of another, while the default group connected."""

    origin: LogOrigin
    awaited: int


class JoinCount(NamedTuple):
    """How many ranks of how many had joined when a rank gave up waiting for the others.

    `barrier` is the key of the store-based barrier at which it waited; empty if it serves the store and waited for the
    others to connect.
    """

    origin: LogOrigin
    barrier: str
    joined: int
    num_ranks: int

    @property
    def is_of_all_ranks(self) -> bool:
        """Whether the count is of all ranks of the job.

        A group of ``new_group(use_local_synchronization=True)`` has a hash for a name, and counts its own ranks.
        """
        return self.barrier.isdecimal() or not self.barrier


class UniqueIdWait(NamedTuple):
    """A rank that waited in vain for rank 0 of a group to begin the group's first collective of NCCL."""

    origin: LogOrigin
    rank_in_group: int


class CommunicationError(NamedTuple):
    """A failed message or connection.

    `kind` is "timeout", "closed", "size", "connect", "store", "nccl" (an error of NCCL) or "other".
    """

    origin: LogOrigin
    kind: str


class OwnError(NamedTuple):
    """An exception that ended a rank and is not about communication."""

    origin: LogOrigin
    error: str


class FirstFailure(NamedTuple):
    """The process of a node whose failure torchrun saw first, and when; `rank` is None if the report is damaged.

    `signal` is empty unless it is one that no other rank causes.
    """

    origin: LogOrigin
    rank: int | None
    signal: str
    time: str


class Restart(NamedTuple):
    """torchrun starts the ranks again: what comes later is of another attempt."""

    origin: LogOrigin


LogFact = (
    WatchdogTimeout
    | QueueStatus
    | BarrierMissed
    | BarrierReached
    | CallMismatch
    | DesyncLag
    | AddressWait
    | JoinCount
    | UniqueIdWait
    | CommunicationError
    | OwnError
    | FirstFailure
    | Restart
)

_STATED_RANK = re.compile(rf"\[rank{_RANK}\]:", re.ASCII)
_MOST_HEAD = 160  # letters of c10's prefix, the longest that `_HEAD` can match and some more
_STAMP = r"(?P<month>\d{1,2})(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
_HEAD = re.compile(
    rf"(?:\[rank(?P<rank>\d{{1,7}})\]:)?\[?[IWEF](?:{_STAMP}(?:\.\d{{1,9}})?)?(?: {{1,8}}\d{{1,9}})?"
    r" [\w./-]{1,80}:\d{1,6}\] $",
    re.ASCII,
)
_STAMPED = re.compile(rf"\b[IWEF]{_STAMP}\b", re.ASCII)
_GROUP = (
    r"\[PG (?P<guid>ID \w{1,40} PG GUID )?(?P<name>[^\s()\[\]]{1,200}) ?(?:\((?P<desc>[^()\[\]]{0,200})\) )?"
    r"Rank (?P<in_group>\d{1,7})\] "
)
_WORK = (
    r"Work\w{1,12}\((?:SeqNum=(?P<sequence>\d{1,18}), )?OpType=(?P<collective>\w{1,40}), "
    r"(?:NumelIn=(?P<num_in>\d{1,18}), NumelOut=(?P<num_out>\d{1,18}), |TensorShape=\[[\d, ]{0,400}\], )?"
    r"Timeout\(ms\)=\d{1,18}\)"
)
_WATCHDOG = re.compile(
    rf"(?:{_GROUP}(?:Process group|NCCL) watchdog thread terminated with exception: )?"
    rf"\[Rank (?P<rank>{_A_RANK})\]\s{{0,2}}"
    rf"(?:Watchdog caught collective operation timeout: |Work ){_WORK} (?:ran for|timed out in blocking wait)",
    re.ASCII,
)
_ASYNC_ERROR = re.compile(
    rf"\[Rank {_RANK}\]\s{{0,2}}Collective {_WORK} raised the following async exception: ",
    re.ASCII,
)
_STATUS = re.compile(
    rf"{_GROUP}\s?(?:failure detected by watchdog at work sequence id: (?P<new>\d{{1,18}}) PG status: "
    r"|Exception \(either an error or timeout\) detected by watchdog at work: (?P<old>\d{1,18}), "
    r"|Timeout at NCCL work: (?P<older>\d{1,18}), "
    r"|Received a [\w ]{1,60} from [\w ]{1,40} and [\w ]{1,60} dump the debug info\. )"
    r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,18}), "
    r"last completed (?:NCCL )?work: -?\d{1,18}",
    re.ASCII,
)
_UNIQUE_ID = re.compile(
    rf"\[{_RANK}\] is setting up NCCL communicator and retrieving ncclUniqueId from \[0\] via c10d key-value store "
    r"by key '[^']{1,200}', but store->get\('[^']{1,200}'\) got error: [Ww]ait timeout",
    re.ASCII,
)
_RESTARTS = re.compile(r"restart(?:ing)? worker group")
_MISSED = re.compile(
    rf"\[Rank (?P<reporter>{_A_RANK})\]: Ranks? (?P<missed>{_A_RANK}(?:, ?{_A_RANK}){{0,4095}}) failed to pass "
    r"monitoredBarrier in \d",
    re.ASCII,
)
_REACHED = re.compile(rf"Rank {_RANK} successfully reached monitoredBarrier", re.ASCII)
_MISMATCH = re.compile(
    rf"Detected mismatch between collectives on ranks\. Rank (?P<rank>{_A_RANK}) is running collective: "
    rf"CollectiveFingerPrint\((?P<own>.{{0,2000}}?), but Rank (?P<other_rank>{_A_RANK}) is running "
    r"collective(?P<begin_of_other>: CollectiveFingerPrint\()?",
    re.ASCII,
)
_PRINT_SEQUENCE = re.compile(rf"SequenceNumber={_NUMBER}", re.ASCII)
_PRINT_COLLECTIVE = re.compile(r"OpType=(\w{1,40})[,)]", re.ASCII)
_PRINT_SHAPE = re.compile(r"TensorShape=\[([\d, ]{0,400})\]", re.ASCII)
_PRINT_DTYPE = re.compile(r"TensorDtypes=([\w ]{1,400}), TensorDeviceTypes", re.ASCII)
_MOST_PRINT_LETTERS = 2000  # of the other rank's call and of the differences, which follow the pattern's match
_ASPECTS = {"Op type:": "collective", "Tensor shapes:": "size", "Tensor dtypes:": "dtype"}
# The beginning of what another process printed into a line.
_OTHER_RECORD = re.compile(
    r"\[[A-Za-z_]{1,40}\d{1,7}\]:|\[\d{1,9},\d{1,7}\]<std|Detected mismatch between|Traceback \(most", re.ASCII
)
_NEVER_JOINED = re.compile(r"ranks \[([\d, ]{1,4000})\] are the lagging ranks that caused this timeout", re.ASCII)
_NOT_JOINED = re.compile(
    rf"\[(?P<ranks>[\d, ]{{1,4000}})\] finished collective #{_A_NUMBER}, but didn't join collective "
    rf"#(?P<next>{_A_NUMBER}) \(count from 1\)",
    re.ASCII,
)
_ADDRESS = re.compile(rf"[Ww]ait timeout after \d{{1,12}}ms, keys: \S{{0,400}}/default_pg/0//cpu//0/{_RANK}$", re.ASCII)
_CLIENTS = re.compile(
    rf"Timed out after \d{{1,12}} seconds waiting for clients\. (?P<joined>{_A_RANK})/(?P<num_ranks>{_A_RANK}) clients "
    r"joined",
    re.ASCII,
)
_STORE_BARRIER = re.compile(
    rf"store based barrier on rank:? (?P<rank>{_A_RANK}), for key: store_based_barrier_key:(?P<key>\w{{1,200}}) "
    rf"\(world_size=(?P<num_ranks>{_A_RANK}), (?:num_workers_joined|worker_count)=(?P<joined>{_A_RANK}),",
    re.ASCII,
)
_WAITED = re.compile(r"Timed out waiting \d{1,12}ms for (?:send|recv) operation to complete", re.ASCII)
# names of exceptions are recognised by how they end, as any word may stand before a colon
_EXCEPTION = r"[A-Za-z_][\w.]{0,200}(?:Error|Exception|Exit|Interrupt|Failure|NotFound|Stop|Iteration)"
_UNCAUGHT = re.compile(rf"\[rank{_RANK}\]: ({_EXCEPTION})(?:: (.{{0,200}})|$)")
_UNCAUGHT_MARK = re.compile(rf"\[rank{_A_RANK}\]: {_EXCEPTION}(?=: |[\r\n]|$)".encode())  # to find such lines in bytes
# What an exception says if it may be the consequence of what another rank did.
_ABOUT_OTHERS = re.compile(
    r"gloo|nccl|c10d|store|socket|connection|connect|timed out|timeout|time out|peer|barrier|collective|distributed"
    r"|process group|rank|signal|broken pipe|interrupt|exit|abort|cuda error|\beof|eoferror|pickl|manager",
    re.IGNORECASE,
)
# How such messages begin: one that is cut short within these letters may be one of them.
_BEGINNINGS = (
    "[../",
    "[/",
    "[Rank ",
    "[enforce fail",
    "Detected mismatch between",
    "Timed out",
    "Application timeout",
    "Gloo ",
    "Connection ",
    "NCCL ",
    "Caught collective",
    "Socket ",
    "The client socket",
    "The server socket",
    "wait timeout",
    "Broken pipe",
)
_SIGNALS = {"-9": "SIGKILL", "-7": "SIGBUS"}  # by exit code: those that neither torch nor another rank's end sends
_MOST_FAILURE_LETTERS = 400  # of a line of torchrun's report; what is behind them is not read
FIRST_FAILURE = b"Root Cause (first observed failure):"
_FAILURE_LINES = (  # that follow; `_FAILURE_FORMAT_TEMPLATE` in torch/distributed/elastic/multiprocessing/errors
    re.compile(r"\[\d{1,7}\]:", re.ASCII),
    re.compile(r"\s{1,8}time {1,8}: (?P<time>\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)", re.ASCII),
    re.compile(r"\s{1,8}host {1,8}: ", re.ASCII),
    re.compile(r"\s{1,8}rank {1,8}: (?P<rank>\d{1,7}) \(local_rank: \d{1,7}\)", re.ASCII),
    re.compile(r"\s{1,8}exitcode {1,8}: (?P<exit>-?\d{1,4}) \(pid: (?P<pid>\d{1,10})\)", re.ASCII),
    re.compile(r"\s{1,8}error_file: ", re.ASCII),
    re.compile(
        r"\s{1,8}traceback :(?: Signal \d{1,3} \(\w{1,20}\) received by PID (?P<signalled_pid>\d{1,10})\b)?", re.ASCII
    ),
)


class LineReader(NamedTuple):
    """Reads one kind of line: what the line must contain one of, strings or patterns, and what makes facts of it."""

    marks: tuple[bytes | re.Pattern[bytes], ...]
    read: Callable[[LogLine], Iterator[LogFact]]


def _stamp(match: re.Match[str] | None) -> Stamp | None:
    """Return the time that `_STAMP` matched; None if the line has none, or no such month exists."""
    if match is None or match["month"] is None or not 1 <= int(match["month"]) <= 12:
        return None
    second = int(match["hour"]) * 3600 + int(match["minute"]) * 60 + int(match["second"])
    return Stamp(int(match["month"]), int(match["day"]), second)


def group_key(name: str, desc: str) -> str:
    """Return how a group is called in all records of it: by its description if that is unique, else with its name.

    The default group is the first one that a job makes. Without a description, it is known by that number, 0.
    """
    is_described = desc not in _UNDESCRIBED
    if desc == DEFAULT_GROUP or (name == "0" and not is_described):
        return DEFAULT_GROUP
    if not is_described:
        return f"group {name}"
    return f"{desc} ({name})"


def group_name(name: str, desc: str, *, has_guid: bool) -> GroupName:
    """Return the name of a group in a log, and whether it may be that of several groups; see `GroupName`.

    `has_guid` is whether the line has the form of 2.4 and later.
    """
    key = group_key(name, desc)
    may_be_split = desc not in _UNDESCRIBED  # `split_group` describes the groups that it makes
    may_be_counter = not has_guid
    is_hashed = not name.isdecimal()
    is_shared = key != DEFAULT_GROUP and not is_hashed and (may_be_split or may_be_counter)
    return GroupName(key, is_shared)


def _group_in(match: re.Match[str]) -> GroupName:
    """Return the group that `_GROUP` matched."""
    return group_name(match["name"], match["desc"] or "", has_guid=match["guid"] is not None)


def _numbers(text: str) -> tuple[int, ...]:
    """Return the ranks of a list, without those that have too many digits: there, two have run into one."""
    words = [word.strip() for word in text.split(",")]
    return tuple(int(word) for word in words if word.isdecimal() and len(word) <= MOST_RANK_DIGITS)


def _watchdog(line: LogLine) -> Iterator[WatchdogTimeout | CommunicationError]:
    """Read timeouts and errors of collectives that the watchdog of NCCL reports."""
    for match in _WATCHDOG.finditer(line.text):
        if match["in_group"] not in (None, match["rank"]):
            continue  # torch prints the rank twice if it prints the group: two different ones are of two lines
        yield WatchdogTimeout(
            origin=line.record_origin(match.start()),
            rank_in_group=int(match["rank"]),
            group=None if match["name"] is None else _group_in(match),
            sequence=_optional(match["sequence"]),
            collective=match["collective"],
            num_in=_optional(match["num_in"]),
            num_out=_optional(match["num_out"]),
        )
    for match in _ASYNC_ERROR.finditer(line.text):
        yield CommunicationError(line.record_origin(match.start()), "nccl")


def _optional(number: str | None) -> int | None:
    return None if number is None else int(number)


def _status(line: LogLine) -> Iterator[QueueStatus]:
    """Read how far a rank got in a group's queue, by the numbers that its watchdog prints."""
    for match in _STATUS.finditer(line.text):
        # by the version of torch, one or none of these is stated
        failed = _optional(match["new"] or match["old"] or match["older"])
        origin = line.record_origin(match.start())
        num_enqueued = max(int(match["enqueued"]), 0)  # torch prints -1 before the first call
        yield QueueStatus(origin, int(match["in_group"]), _group_in(match), failed, num_enqueued)


def _barrier(line: LogLine) -> Iterator[BarrierMissed | BarrierReached]:
    for match in _MISSED.finditer(line.text):
        yield BarrierMissed(line.origin(match.start()), int(match["reporter"]), _numbers(match["missed"]))
    for match in _REACHED.finditer(line.text):
        yield BarrierReached(line.origin(match.start()), int(match[1]))


def _call_print(text: str) -> CallPrint:
    """Return the first call that a text describes; a field is empty if the text does not state it."""

    def first(pattern: re.Pattern[str]) -> str:
        match = pattern.search(text)
        return match[1] if match else ""

    shape = ""
    if _PRINT_SHAPE.search(text):
        shape = f"[{first(_PRINT_SHAPE)}]"  # "[]" is the shape of a scalar
    return CallPrint(first(_PRINT_COLLECTIVE), shape, first(_PRINT_DTYPE), first(_PRINT_SEQUENCE))


def _before_other_record(text: str) -> str:
    return _OTHER_RECORD.split(text, 1)[0]


def _mismatch(line: LogLine) -> Iterator[CallMismatch]:
    """Read two calls that differ, by the report of TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    # A match from a damaged report would extend into the next report of the line, so each beginning is tried.
    for begin in re.finditer("Detected mismatch between", line.text):
        match = _MISMATCH.match(line.text, begin.start())
        if match is None or _OTHER_RECORD.search(match["own"]):
            continue  # another process printed into the first call, so its end may be that of another one
        rest = _before_other_record(line.text[match.end() : match.end() + _MOST_PRINT_LETTERS])
        # torch prints the other rank's call, and then a list of what differs, if it knows
        other_text, _title, differences = rest.partition("Collectives differ in the following aspects:")
        other = _call_print(other_text if match["begin_of_other"] else "")
        aspects = frozenset(aspect for words, aspect in _ASPECTS.items() if words in differences)
        yield CallMismatch(
            origin=line.origin(match.start()),
            rank_in_group=int(match["rank"]),
            own=_call_print(match["own"]),
            other_in_group=int(match["other_rank"]),
            other=other,
            aspects=aspects,
        )


def _desync(line: LogLine) -> Iterator[DesyncLag]:
    for match in _NEVER_JOINED.finditer(line.text):
        ranks = _numbers(match[1])
        if ranks:  # else none of them is legible
            yield DesyncLag(line.origin(match.start()), ranks, call=1)
    for match in _NOT_JOINED.finditer(line.text):
        ranks = _numbers(match["ranks"])
        if ranks:
            yield DesyncLag(line.origin(match.start()), ranks, int(match["next"]))


def _address(line: LogLine) -> Iterator[AddressWait | CommunicationError]:
    """Read a wait for a key of the store, and, if the key is the address of a rank, a wait for that rank."""
    yield CommunicationError(line.origin(len(line.text)), "store")
    match = _ADDRESS.search(line.text.rstrip())
    if match and not line.is_cut:  # a line that is cut may lack the last digits of the rank
        yield AddressWait(line.origin(match.start()), int(match[1]))


def _join_count(line: LogLine) -> Iterator[JoinCount | CommunicationError]:
    """Read how many ranks had connected to the store, or joined a store-based barrier, in time."""
    for match in _CLIENTS.finditer(line.text):
        origin = line.origin(match.start())
        yield JoinCount(origin, barrier="", joined=int(match["joined"]), num_ranks=int(match["num_ranks"]))
        # the rank itself is one that waited for others
        yield CommunicationError(origin, "store")
    for match in _STORE_BARRIER.finditer(line.text):
        origin = line.origin(match.start())
        rank = int(match["rank"])
        if origin.rank is None or origin.rank == rank:  # else two lines have run into one
            origin = origin._replace(rank=rank)
            yield JoinCount(origin, match["key"], int(match["joined"]), int(match["num_ranks"]))
            yield CommunicationError(origin, "store")


def _unique_id(line: LogLine) -> Iterator[UniqueIdWait]:
    for match in _UNIQUE_ID.finditer(line.text):
        yield UniqueIdWait(line.origin(match.start()), int(match[1]))


def _restart(line: LogLine) -> Iterator[Restart]:
    match = _RESTARTS.search(line.text)
    if match:
        yield Restart(LogOrigin(None, None, "", _stamp(_STAMPED.search(line.text, 0, match.start()))))


def _communication(kind: str) -> Callable[[LogLine], Iterator[CommunicationError]]:
    """Return a reader for lines whose mark alone shows a failed message or connection of this kind."""

    def read(line: LogLine) -> Iterator[CommunicationError]:
        yield CommunicationError(line.origin(len(line.text)), kind)

    return read


def _waited(line: LogLine) -> Iterator[CommunicationError]:
    for match in _WAITED.finditer(line.text):
        yield CommunicationError(line.origin(match.start()), "timeout")


def _uncaught(line: LogLine) -> Iterator[OwnError | CommunicationError]:
    """Read the exception that ended a rank: an error of its own, unless another rank may have caused it."""
    for match in _UNCAUGHT.finditer(line.text):
        rank, name, message = match.groups()
        message = _before_other_record(message or "")
        origin = LogOrigin(int(rank), line.label, line.label_kind)
        words = f"{name}: {message}" if message else name
        if _ABOUT_OTHERS.search(words) or _may_be_cut(name, message):
            yield CommunicationError(origin, "other")
        else:
            yield OwnError(origin, words)


def _may_be_cut(name: str, message: str) -> bool:
    """Return whether this may be what is left of a message about other ranks; see `_BEGINNINGS`.

    torch raises such errors as RuntimeError, so one without a message may be of them. What follows a bracket may be the
    label of another process that printed into the line, so the message may end before it.
    """
    if not message or message.startswith("["):
        return name == "RuntimeError"
    certain_part = message.partition("[")[0]
    return any(message.startswith(begin) or begin.startswith(certain_part) for begin in _BEGINNINGS)


# A mark leaves out the first letter of a phrase that torch writes with a capital or a small one.
LINE_READERS: dict[str, LineReader] = {
    "watchdog": LineReader((b"Watchdog caught", b"in blocking wait", b"following async exception"), _watchdog),
    "queue status": LineReader((b"ast enqueued ",), _status),
    "monitored barrier": LineReader((b"monitoredBarrier",), _barrier),
    "mismatch": LineReader((b"Detected mismatch between",), _mismatch),
    "desync report": LineReader((b"lagging ranks", b"didn't join collective"), _desync),
    "address": LineReader((b"ait timeout after",), _address),
    "clients": LineReader((b"waiting for clients", b"store based barrier"), _join_count),
    "unique id": LineReader((b"retrieving ncclUniqueId",), _unique_id),
    "restart": LineReader((b"restart worker group", b"restarting worker group"), _restart),
    "gloo timeout": LineReader((b"Timed out waiting",), _waited),
    "closed": LineReader(
        (
            b"Connection closed by peer",
            b"Connection reset by peer",
            b"Broken pipe",
            b"Connection closed by remote peer",
        ),
        _communication("closed"),
    ),
    "size": LineReader((b"Received data size doesn't match",), _communication("size")),
    "connect": LineReader((b"connectFullMesh failed",), _communication("connect")),
    "exception": LineReader((_UNCAUGHT_MARK,), _uncaught),
}


def first_failure(report: bytes) -> FirstFailure:
    """Return the process that torchrun's report is on.

    `report` begins with the line "Root Cause (first observed failure):". Unless the other lines follow each other in
    their order, the rank is not known.
    """
    stated: dict[str, Any] = {}  # texts; None for a "signalled_pid" that is not stated
    lines_after_title = report.split(b"\n")[1:]
    lines = [line for line in lines_after_title if line.strip()]
    unknown = FirstFailure(LogOrigin(None, None, ""), None, "", "")
    if len(lines) < len(_FAILURE_LINES):
        return unknown
    for line, pattern in zip(lines, _FAILURE_LINES, strict=False):  # more lines may follow the report
        match = pattern.match(line[:_MOST_FAILURE_LETTERS].decode("utf-8", "replace"))
        if match is None:
            return unknown
        stated |= match.groupdict()
    signal = ""
    if stated["pid"] == stated["signalled_pid"]:  # else no signal is stated, or the two lines are of different reports
        signal = _SIGNALS.get(stated["exit"], "")
    return FirstFailure(LogOrigin(None, None, ""), int(stated["rank"]), signal, stated["time"])


class Launcher(NamedTuple):
    """A prefix that a launcher puts before each line of a process."""

    kind: str
    pattern: Any


LAUNCHERS = (
    Launcher("torchrun", re.compile(rb"\[[A-Za-z_]{1,40}(\d{1,7})\]:")),
    Launcher("mpirun", re.compile(rb"\[\d{1,9},(\d{1,7})\]<std(?:out|err|in|diag)>:")),
    Launcher("srun", re.compile(rb"\s{0,6}(\d{1,7}): ")),
)
