"""The events of one trace of torch.profiler: those that matter, as columns, with the role that each plays.

Names are those that `torch.profiler` writes (https://github.com/pytorch/pytorch/blob/main/torch/csrc/profiler/) and
Kineto gives to kernels of NCCL (https://github.com/pytorch/kineto/blob/main/libkineto/src/output_json.cpp).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..timeline.chrome import collective
from ..timeline.spans import Times
from .trace import Ints

_LATEST_US = 2.0**63  # no clock counts further than 64 bits
_MOST_STEP_DIGITS = 18  # of the number of a step: it fits into 64 bits
# Larger values are cut to these, so that they and their products fit into 64 bits.
_MOST_BYTES = 2**50
_MOST_ELEMENTS = 2**40


# ---- events as they stand in the file


# There are millions of these objects. None refers to itself, so Python's garbage collector need not visit them (`gc`).
class _KinetoArgs(
    msgspec.Struct,
    gc=False,
    rename={
        "name": "Collective name",
        "num_in": "In msg nelems",
        "group": "Process Group Name",
        "dims": "Input Dims",
        "types": "Input type",
    },
):
    """The arguments of an event that are read."""

    name: Any = None
    num_in: Any = None
    dtype: Any = None
    group: Any = None
    dims: Any = None
    types: Any = None
    bytes: Any = None
    correlation: Any = None


class KinetoEvent(msgspec.Struct, gc=False):
    """The fields of an event that are read."""

    ph: str | int | float | None = None
    name: str | int | float | None = None
    cat: str | int | float | None = None
    pid: str | int | float | None = None
    tid: str | int | float | None = None
    ts: str | int | float | None = None
    dur: str | int | float | None = None
    args: _KinetoArgs | list[Any] | str | int | float | bool | None = None


# ---- roles


class Role(NamedTuple):
    """What an event tells, and the kind of its span.

    The roles are "span" (a phase or a range on the CPU), "evaluate" (autograd computes a gradient), "unpack" (gradients
    leave a bucket), "launch" (of a collective), "gloo" (works on a collective), "kernel" (of a GPU, or a copy), "nccl"
    (a kernel of a collective), "runtime" (a call of CUDA), "comms" and "label" (of a call of NCCL), and "other" for an
    event that is not kept. `item` is the number of a step.
    """

    role: str
    kind: str
    item: int = -1


class _NamedRange(NamedTuple):
    """The role and the kind of ranges on the CPU whose names begin like this.

    If `kind` is empty, the kind is the collective that the rest of the name states.
    """

    begin: str
    role: str
    kind: str


_EVALUATE = "autograd::engine::evaluate_function"
_RANGES = (  # the first one that fits counts
    _NamedRange("ProfilerStep#", "span", "step"),
    _NamedRange("enumerate(DataLoader)#", "span", "loader"),
    _NamedRange("DistributedDataParallel.forward", "span", "forward"),
    _NamedRange("FullyShardedDataParallel.forward", "span", "forward"),
    _NamedRange("Optimizer.zero_grad#", "span", "zero_grad"),
    _NamedRange("Optimizer.step#", "span", "optimizer"),
    _NamedRange(f"{_EVALUATE}: torch::autograd::AccumulateGrad", "evaluate", "gradient"),
    _NamedRange(_EVALUATE, "evaluate", "backward"),
    _NamedRange("torch.distributed.ddp.reducer::copy_bucket_to_grad", "unpack", "unpack"),
    _NamedRange("record_param_comms", "comms", "nccl"),
    _NamedRange("c10d::", "launch", ""),
    _NamedRange("gloo:", "gloo", ""),
    _NamedRange("nccl:", "label", ""),
)
_OTHER = Role("other", "")
_ROLES_WITH_CORRELATION = ("kernel", "nccl", "runtime")
_ROLES_WITH_SIZES = ("nccl", "launch", "gloo", "comms", "label")
_COPIES = {"htod": "h2d", "dtoh": "d2h", "dtod": "d2d", "ptop": "p2p"}  # by the first letters of "HtoD (Pageable ..."
# What the names of collectives contain, without all but their letters, and our words for them. The first one that fits
# counts, because longer words contain shorter ones.
_COLLECTIVES = {
    "reducescatter": "reduce_scatter",
    "alltoa": "alltoall",  # "all_to_all", "all_to_allv", "alltoall_base"
    "allreduce": "allreduce",
    "allgather": "allgather",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
    "send": "send_recv",
    "recv": "send_recv",
}


def _role(phase: Any, category: Any, name: Any) -> Role:
    """Return the role of an event by its phase ("X" is a complete event), its category, and its name."""
    if phase != "X":
        return _OTHER
    name = str(name)
    lower_category = str(category).lower()  # versions of torch differ in the case and in the names of categories
    if lower_category == "kernel":
        kind = collective(name)  # "kernel" for a kernel that is none of NCCL's
        return Role("kernel" if kind == "kernel" else "nccl", kind)
    if lower_category in ("gpu_memcpy", "memcpy"):
        direction = name.lower().removeprefix("memcpy").strip()[:4]
        return Role("kernel", f"memcpy {_COPIES[direction]}" if direction in _COPIES else "memcpy")
    if lower_category in ("gpu_memset", "memset"):
        return Role("kernel", "memset")
    if lower_category in ("cuda_runtime", "cuda_driver", "runtime"):
        return Role("runtime", "cuda_sync" if "Synchronize" in name else "cuda_runtime")
    if lower_category in ("user_annotation", "cpu_op", "operator"):
        return _role_of_range(lower_category, name)
    return _OTHER


def _role_of_range(category: str, name: str) -> Role:
    """Return the role of a range on the CPU: that of `_RANGES`, a "span" if the user named the range, or "other"."""
    for named in _RANGES:
        if name.startswith(named.begin):
            ending = name.removeprefix(named.begin)
            step_number = -1
            if named.kind == "step" and ending.isdecimal() and len(ending) <= _MOST_STEP_DIGITS:
                step_number = int(ending)
            return Role(named.role, named.kind or _collective_of(ending), step_number)
    if category == "user_annotation":
        return Role("span", f"range: {name}")
    return _OTHER


def _collective_of(name: str) -> str:
    """Return the collective in a name, "allgather" of "_allgather_base_"; "nccl" if there is none."""
    letters = re.sub("[^a-z]", "", name.lower())
    for part, kind in _COLLECTIVES.items():
        if part in letters:
            return kind
    return "nccl"


class Places(dict[Any, int]):
    """Numbers different values from 0 on, in the order in which they are first looked up: ``places[value]``."""

    def __missing__(self, value: Any) -> int:
        self[value] = len(self)
        return self[value]


class _RoleCodes(dict[Any, int]):
    """The code of the role of each (phase, category, name): ``codes[key]``. A code is an index of `roles`.

    An event's role is looked up in a dictionary much faster than it is found by its name.
    """

    def __init__(self) -> None:
        self._code_of_role = Places()

    @property
    def roles(self) -> list[Role]:
        """The different roles, by code."""
        return list(self._code_of_role)

    def __missing__(self, key: tuple[Any, Any, Any]) -> int:
        self[key] = self._code_of_role[_role(*key)]
        return self[key]


# ---- sizes


class EventDetails(NamedTuple):
    """What the arguments of an event that communicates or copies state; -1 for sizes that they do not state."""

    num_elements: int  # that the rank puts in
    item_bytes: int  # of one element; 0 for a list of tensors, whose types are not stated
    group: str
    kind: str

    @property
    def num_bytes(self) -> int:
        """The bytes of all elements, -1 if that is unknown."""
        is_known = self.num_elements >= 0 and self.item_bytes > 0
        return self.num_elements * self.item_bytes if is_known else -1


_ITEM_BYTES = {
    "double": 8,
    "long": 8,
    "float": 4,
    "int": 4,
    "half": 2,
    "bfloat16": 2,
    "short": 2,
    "byte": 1,
    "char": 1,
    "bool": 1,
    "unsignedchar": 1,
    "signedchar": 1,
    "float8e4m3fn": 1,
    "float8e5m2": 1,
}


def _details(args: _KinetoArgs, kind: str) -> EventDetails:
    """Return the details of an event whose role has this kind; a collective that the arguments name counts instead."""
    if args.name is not None:
        kind = _collective_of(str(args.name))
    num_elements, item_bytes = _size(args)
    return EventDetails(num_elements, item_bytes, str(args.group or ""), kind)


def _size(args: _KinetoArgs) -> tuple[int, int]:
    """Return the elements that a rank puts in, and the bytes of one, as in `EventDetails`.

    Copies state bytes, NCCL's events state elements, and operators state the shapes of all their inputs. Of these, the
    first one that is a tensor or a list of tensors is what the rank puts in.
    """
    if isinstance(args.bytes, int):
        return min(args.bytes, _MOST_BYTES), 1
    if isinstance(args.num_in, int):
        return min(args.num_in, _MOST_ELEMENTS), _item_bytes(args.dtype)
    if isinstance(args.dims, list) and isinstance(args.types, list):
        for dims, input_type in zip(args.dims, args.types, strict=False):  # a damaged file may lack some of either
            if input_type == "TensorList" and isinstance(dims, list):
                return sum(map(_num_elements, dims)), 0
            if input_type not in ("", "Scalar", "ScalarList"):  # none of these is a tensor
                return _num_elements(dims), _item_bytes(input_type)
    return -1, -1


def _num_elements(dims: Any) -> int:
    is_shape = isinstance(dims, list) and all(isinstance(length, int) and length >= 0 for length in dims)
    return min(math.prod(dims), _MOST_ELEMENTS) if is_shape else -1


def _item_bytes(dtype: Any) -> int:
    """Return the bytes of a number of this type, such as "c10::BFloat16", "long int" or "float"; -1 if unknown."""
    plain = re.sub("[^a-z0-9]", "", str(dtype).lower().removeprefix("c10::"))
    without_int = plain.removesuffix("int")  # "longint" is "long", and "unsignedint" is none of the known types
    is_int = not without_int  # the type is "int" itself
    return _ITEM_BYTES.get("int" if is_int else without_int, -1)


def _correlation(args: Any) -> int:
    number = args.correlation if isinstance(args, _KinetoArgs) else None
    return number if isinstance(number, int) and 0 <= number < 2**63 else -1


# ---- columns


class EventColumns(NamedTuple):
    """Columns of events: an entry per event in each.

    `code` is an index of `KinetoEvents.roles`, and `thread` one of `KinetoEvents.threads`. `correlation` is the number
    that a kernel shares with the call of CUDA that launched it, -1 without one. `event` numbers all events that are
    kept of the file, so an event can be found again after columns are taken.
    """

    code: Ints
    thread: Ints
    start_s: Times
    stop_s: Times
    correlation: Ints
    event: Ints

    @property
    def size(self) -> int:
        """The number of events."""
        return self.event.size

    def take(self, chosen: NDArray[Any]) -> EventColumns:
        """Return the events at these indices, or those for which this is True."""
        return EventColumns(*(column[chosen] for column in self))


class KinetoEvents(NamedTuple):
    """The events that are kept, and what their codes and threads stand for.

    `details` has those of an event by its number in the column `event`.
    """

    columns: EventColumns
    roles: list[Role]
    threads: list[tuple[Any, Any]]  # the process and the thread, or the device and the stream
    details: dict[int, EventDetails]

    def of(self, role: str, *kinds: str) -> EventColumns:
        """Return the events of a role, only those of `kinds` if any are named, in the order of their starts."""
        is_code_chosen = [known.role == role and (not kinds or known.kind in kinds) for known in self.roles]
        is_chosen = np.array(is_code_chosen, bool)[self.columns.code]
        events = self.columns.take(np.flatnonzero(is_chosen))
        return events.take(np.argsort(events.start_s, kind="stable"))

    def kind(self, code: int) -> str:
        return self.roles[code].kind


class _Piece(NamedTuple):
    """Columns of the events in a piece of the file, with times as it states them."""

    code: NDArray[np.int32]
    thread: NDArray[np.int32]
    start_us: Times
    length_us: Times
    correlation: Ints


class _TimedEvents(NamedTuple):
    """Events of a piece of the file, each with the code of its role and its times as the file states them."""

    events: list[KinetoEvent]
    codes: Ints
    start_us: Times
    length_us: Times


class EventReader:
    """Turns the events of a trace into columns, a piece after the other."""

    def __init__(self) -> None:
        self._codes = _RoleCodes()
        self._threads = Places()
        self._open = defaultdict[Any, list[KinetoEvent]](list)  # the B events of each thread that have no E yet
        self._pieces = list[_Piece]()
        self._num_kept = 0
        self._details = dict[int, EventDetails]()

    def take(self, entries: list[Any]) -> None:
        """Add the entries of a piece, without events that have no role or no readable times."""
        events, codes, start_us, length_us = self._chosen(self._complete(entries))
        threads = np.array([self._threads[event.pid, event.tid] for event in events], np.int64)
        roles = self._codes.roles
        correlations = np.full(len(events), -1)
        has_correlation = np.array([role.role in _ROLES_WITH_CORRELATION for role in roles], bool)[codes]
        for index in np.flatnonzero(has_correlation).tolist():
            correlations[index] = _correlation(events[index].args)
        self._keep_details(events, codes, roles)
        # only now, as `_keep_details` numbers these events from the number of earlier ones on
        self._num_kept += len(events)
        piece = _Piece(codes.astype(np.int32), threads.astype(np.int32), start_us, length_us, correlations)
        self._pieces.append(piece)

    def _complete(self, entries: list[Any]) -> list[KinetoEvent]:
        """Return the events that have a length, and those made of a B and an E."""
        # an expression, because most files have millions of complete events and nothing else
        events = [entry for entry in entries if type(entry) is KinetoEvent and entry.ph != "B" and entry.ph != "E"]
        if len(events) < len(entries):
            events += self._paired(entries)
        return events

    def _chosen(self, events: list[KinetoEvent]) -> _TimedEvents:
        """Return the events that have a role and readable times."""
        codes = np.array([self._codes[event.ph, event.cat, event.name] for event in events], np.int64)
        roles = self._codes.roles
        is_other = np.array([role == _OTHER for role in roles], bool)[codes]
        events, codes = _where(~is_other, events, codes)
        start_us = _floats([event.ts for event in events])
        length_us = _floats([event.dur for event in events])
        # False if one is nan
        has_times = (np.abs(start_us) <= _LATEST_US) & (length_us >= 0) & (length_us <= _LATEST_US)
        if not has_times.all():
            events, codes = _where(has_times, events, codes)
            start_us = start_us[has_times]
            length_us = length_us[has_times]
        return _TimedEvents(events, codes, start_us, length_us)

    def _keep_details(self, events: list[KinetoEvent], codes: Ints, roles: list[Role]) -> None:
        """Keep the details of the events that have some, by their numbers among all events of the file."""
        has_details = np.array([_has_details(role) for role in roles], bool)[codes]
        for index in np.flatnonzero(has_details).tolist():
            args = events[index].args
            if isinstance(args, _KinetoArgs):
                self._details[self._num_kept + index] = _details(args, roles[codes[index]].kind)

    def _paired(self, entries: list[Any]) -> list[KinetoEvent]:
        """Return a complete event for each E event, which ends the last B event of its thread that is still open.

        B events without an E stay open for the next piece. What is no event, and an E without a B, is left out, and so
        are events of other phases, because `_complete` has them already.
        """
        complete = []
        for event in entries:
            if type(event) is not KinetoEvent:
                continue
            open_events = self._open[event.pid, event.tid]
            if event.ph == "B":
                open_events.append(event)
            elif event.ph == "E" and open_events:
                begin = open_events.pop()
                stop_us, start_us = _floats([event.ts, begin.ts])
                begin.ph = "X"
                begin.dur = stop_us - start_us
                complete.append(begin)
        return complete

    def events(self) -> KinetoEvents:
        """Return all events, with times in seconds from the first one. Raises ValueError if there are none."""
        if not self._num_kept:
            raise ValueError("it contains no step, GPU or collective events")
        pieces_of_columns = zip(*self._pieces, strict=True)
        code, thread, start_us, length_us, correlation = [np.concatenate(pieces) for pieces in pieces_of_columns]
        self._pieces.clear()  # they have been copied, and take as much memory as the copies
        # the first start is subtracted before scaling, because absolute times have no bits to spare
        start_us -= start_us.min()
        columns = EventColumns(
            code, thread, start_us / 1e6, (start_us + length_us) / 1e6, correlation, event=np.arange(code.size)
        )
        return KinetoEvents(columns, self._codes.roles, list(self._threads), self._details)


def _has_details(role: Role) -> bool:
    return role.role in _ROLES_WITH_SIZES or role.kind.startswith("memcpy")


def _where(is_chosen: NDArray[np.bool_], events: list[KinetoEvent], codes: Ints) -> tuple[list[KinetoEvent], Ints]:
    """Return the chosen ones of some events, and of their codes."""
    return [events[index] for index in np.flatnonzero(is_chosen).tolist()], codes[is_chosen]


def _floats(values: list[Any]) -> Times:
    """Return values as numbers, nan for those that are none."""
    try:
        return np.array(values, np.float64)  # much faster, and enough for most files
    except (TypeError, ValueError, OverflowError):
        return np.array([_float(value) for value in values])


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
