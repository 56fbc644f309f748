"""The events of one trace of torch.profiler: those that matter, as columns, with the role that each plays.

Names are those that `torch.profiler` writes (https://github.com/pytorch/pytorch/blob/main/torch/csrc/profiler/) and
Kineto gives to kernels of NCCL (https://github.com/pytorch/kineto/blob/main/libkineto/src/output_json.cpp).
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..timeline.timeline import Times, collective
from .trace import Ints

MOST_EVENTS = 1 << 22  # that are kept of a file; each takes up to 250 bytes
_MOST_NAMES = 1 << 16  # whose roles are remembered
_MOST_KINDS = 1 << 14  # steps and categories, of a file
_MOST_RANGES = 1 << 13  # names of ranges that are kept separate
_MOST_THREADS = 1 << 16  # threads and streams, of a file
_MOST_OPEN = 1 << 16  # B events without their E, at one time
_LATEST_US = 2.0**63  # no clock counts further than 64 bits


# ---- events as they stand in the file


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
    leave a bucket), "sizes" (of a gradient), "launch" (of a collective), "gloo" (works on a collective), "kernel" (of a
    GPU, or a copy), "nccl" (a kernel of a collective), "runtime" (a call of CUDA), "comms" and "label" (of a call of
    NCCL), and "other" for an event that is not kept, whose `kind` is its category. `item` is the number of a step.
    """

    role: str
    kind: str
    item: int = -1


class _NamedRange(NamedTuple):
    """The role and the kind of ranges on the CPU whose names begin like this.

    Without a kind, it is the collective in the rest of the name.
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
    _NamedRange("torch::autograd::AccumulateGrad", "sizes", "gradient"),
    _NamedRange("torch.distributed.ddp.reducer::copy_bucket_to_grad", "unpack", "unpack"),
    _NamedRange("record_param_comms", "comms", "nccl"),
    _NamedRange("c10d::", "launch", ""),
    _NamedRange("gloo:", "gloo", ""),
    _NamedRange("nccl:", "label", ""),
)
_OTHER_RANGES = Role("span", "range: others")  # of ranges, once there are too many names
_ROLES_WITH_CORRELATION = ("kernel", "nccl", "runtime")
_ROLES_WITH_SIZES = ("nccl", "launch", "gloo", "comms", "label", "sizes")
_COPIES = {"htod": "h2d", "dtoh": "d2h", "dtod": "d2d", "ptop": "p2p"}
_COLLECTIVES = ("reducescatter", "allreduce", "allgather", "alltoall", "broadcast", "barrier", "gather", "scatter")


def _role(phase: Any, category: Any, name: Any) -> Role:
    category = str(category or phase)
    name = str(name)
    if phase != "X":
        return Role("other", "metadata" if phase == "M" else category)
    where = category.lower()
    if where == "kernel":
        kind = collective(name)
        return Role("kernel" if kind == "kernel" else "nccl", kind)
    if where in ("gpu_memcpy", "memcpy"):
        direction = name.lower().removeprefix("memcpy").strip()[:4]
        return Role("kernel", f"memcpy {_COPIES[direction]}" if direction in _COPIES else "memcpy")
    if where in ("gpu_memset", "memset"):
        return Role("kernel", "memset")
    if where in ("cuda_runtime", "cuda_driver", "runtime"):
        return Role("runtime", "cuda_sync" if "Synchronize" in name else "cuda_runtime")
    if where in ("user_annotation", "cpu_op", "operator"):
        return _role_of_range(category, name)
    return Role("other", category)


def _role_of_range(category: str, name: str) -> Role:
    for named in _RANGES:
        if name.startswith(named.begin):
            ending = name.removeprefix(named.begin)
            is_number = ending.isdecimal() and len(ending) < 19
            number = int(ending) if named.kind == "step" and is_number else -1
            return Role(named.role, named.kind or _collective_of(ending), number)
    if category == "user_annotation":
        return Role("span", f"range: {name}")
    return Role("other", category)


def _collective_of(name: str) -> str:
    """The collective in a name, "allgather" of "_allgather_base_"; "nccl" if there is none."""
    plain = re.sub("[^a-z]", "", name.lower())
    word = next((word for word in _COLLECTIVES if word in plain), "")
    if word == "reducescatter":
        return "reduce_scatter"
    if "alltoa" in plain:
        return "alltoall"
    if word:
        return word
    if "reduce" in plain:
        return "reduce"
    return "send_recv" if re.search("send|recv", plain) else "nccl"


class Places(dict[Any, int]):
    """A place for each different value, in the order in which they come."""

    def __missing__(self, value: Any) -> int:
        self[value] = len(self)
        return self[value]


class _Roles(dict[Any, int]):
    """The place of the role of each (phase, category, name), for so many of them as memory allows."""

    def __init__(self) -> None:
        self.places = Places()

    def __missing__(self, key: tuple[Any, Any, Any]) -> int:
        if len(self) > _MOST_NAMES:
            self.clear()
        role = _role(*key)
        if len(self.places) >= _MOST_RANGES and role.kind.startswith("range: ") and role not in self.places:
            role = _OTHER_RANGES
        if len(self.places) >= _MOST_KINDS and role not in self.places:
            raise ValueError(f"its events have more than {_MOST_KINDS} different steps and categories")
        self[key] = self.places[role]
        return self[key]


# ---- sizes


class EventDetails(NamedTuple):
    """What the arguments of an event that communicates or copies say; -1 for sizes that they do not say."""

    num_elements: int
    item_bytes: int  # 0 for a list of tensors, whose types it does not say
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
    if args.name is not None:
        kind = _collective_of(str(args.name))
    num_elements, item_bytes = _size(args)
    return EventDetails(num_elements, item_bytes, str(args.group or ""), kind)


def _size(args: _KinetoArgs) -> tuple[int, int]:
    """The elements that a rank puts in, and the bytes of one, as in `EventDetails`."""
    if isinstance(args.bytes, int):
        return min(args.bytes, 2**50), 1
    if isinstance(args.num_in, int):
        return min(args.num_in, 2**40), _item_bytes(args.dtype)
    if isinstance(args.dims, list) and isinstance(args.types, list):
        for dims, kind in zip(args.dims, args.types, strict=False):
            if kind == "TensorList" and isinstance(dims, list):
                return sum(map(_num_elements, dims)), 0
            if kind not in ("", "Scalar", "ScalarList"):
                return _num_elements(dims), _item_bytes(kind)
    return -1, -1


def _num_elements(dims: Any) -> int:
    is_shape = isinstance(dims, list) and all(isinstance(length, int) and length >= 0 for length in dims)
    return min(math.prod(dims), 2**40) if is_shape else -1


def _item_bytes(dtype: Any) -> int:
    plain = re.sub("[^a-z0-9]", "", str(dtype).lower().removeprefix("c10::"))
    return _ITEM_BYTES.get(plain.removesuffix("int") or plain, -1)


def _correlation(args: Any) -> int:
    number = args.correlation if isinstance(args, _KinetoArgs) else None
    return number if isinstance(number, int) and 0 <= number < 2**63 else -1


# ---- columns


class EventColumns(NamedTuple):
    """Columns of events: places of role and thread, times, correlation, and the place among all kept."""

    code: Ints
    thread: Ints
    start_s: Times
    stop_s: Times
    correlation: Ints
    place: Ints

    def take(self, chosen: NDArray[Any]) -> EventColumns:
        return EventColumns(*(column[chosen] for column in self))


class KinetoEvents(NamedTuple):
    """The events that are kept, and what their codes and threads stand for.

    `details` are those of an event by its place; `num_others` counts by category the events that are not kept.
    """

    columns: EventColumns
    roles: list[Role]
    threads: list[tuple[Any, Any]]  # the process and the thread, or the device and the stream
    details: dict[int, EventDetails]
    num_others: dict[str, int]

    def of(self, role: str, *kinds: str) -> EventColumns:
        """The events of a role, only those of `kinds` if any are named, in the order of their starts."""
        is_chosen = [known.role == role and (not kinds or known.kind in kinds) for known in self.roles]
        places = np.flatnonzero(np.array(is_chosen, bool)[self.columns.code])
        return self.columns.take(places[np.argsort(self.columns.start_s[places], kind="stable")])

    def kind(self, code: int) -> str:
        return self.roles[code].kind


class _Piece(NamedTuple):
    """Columns of the events in a piece of the file, with times as it states them."""

    code: NDArray[np.int32]
    thread: NDArray[np.int32]
    start_us: Times
    length_us: Times
    correlation: Ints


class EventReader:
    """Turns the events of a trace into columns, a piece after the other."""

    def __init__(self) -> None:
        self._roles = _Roles()
        self._threads = Places()
        self._open = defaultdict[Any, list[KinetoEvent]](list)  # the B events of each thread that have no E yet
        self._num_open = 0
        self._num_others = Counter[str]()
        self._pieces = list[_Piece]()
        self._num_kept = 0
        self._details = dict[int, EventDetails]()

    def take(self, entries: list[Any]) -> None:
        """Add the entries of a piece. Raises ValueError if the file has more of anything than the limits allow.

        Events without a role, and those without readable times, are counted and left out. Each array has an entry for
        each event that is left.
        """
        events = [entry for entry in entries if type(entry) is KinetoEvent and entry.ph != "B" and entry.ph != "E"]
        if len(events) < len(entries):
            events += self._paired(entries)
        codes = np.array([self._roles[event.ph, event.cat, event.name] for event in events], np.int64)
        roles = list(self._roles.places)  # by code
        is_other = np.array([role.role == "other" for role in roles], bool)[codes]
        for code, count in Counter(codes[is_other].tolist()).items():
            self._num_others[roles[code].kind] += count
        events, codes = _chosen(events, codes, ~is_other)

        start_us = _floats([event.ts for event in events])
        length_us = _floats([event.dur for event in events])
        has_times = (np.abs(start_us) <= _LATEST_US) & (length_us >= 0) & (length_us <= _LATEST_US)
        if not has_times.all():
            self._num_others["unreadable"] += int((~has_times).sum())
            events, codes = _chosen(events, codes, has_times)
            start_us = start_us[has_times]
            length_us = length_us[has_times]
        if self._num_kept + len(events) > MOST_EVENTS:
            raise ValueError(
                f"it has more than {MOST_EVENTS} events of steps, GPUs and collectives: profile fewer steps"
            )
        threads = np.array([self._threads[event.pid, event.tid] for event in events], np.int64)
        if len(self._threads) > _MOST_THREADS:
            raise ValueError(f"it has more than {_MOST_THREADS} threads and streams")

        correlations = np.full(len(events), -1)
        has_correlation = np.array([role.role in _ROLES_WITH_CORRELATION for role in roles], bool)[codes]
        for place in np.flatnonzero(has_correlation).tolist():
            correlations[place] = _correlation(events[place].args)
        self._keep_details(events, codes, roles)
        self._num_kept += len(events)
        piece = _Piece(codes.astype(np.int32), threads.astype(np.int32), start_us, length_us, correlations)
        self._pieces.append(piece)

    def _keep_details(self, events: list[KinetoEvent], codes: Ints, roles: list[Role]) -> None:
        """Keep the details of the events that have some, by their places among all events of the file."""
        has_details = np.array([_has_details(role) for role in roles], bool)[codes]
        for place in np.flatnonzero(has_details).tolist():
            args = events[place].args
            if isinstance(args, _KinetoArgs):
                self._details[self._num_kept + place] = _details(args, roles[codes[place]].kind)

    def _paired(self, entries: list[Any]) -> list[KinetoEvent]:
        """Events made of pairs of B and E."""
        complete = []
        for event in entries:
            if type(event) is not KinetoEvent:
                self._num_others["unreadable"] += 1
            elif event.ph == "B":
                self._num_open += 1
                if self._num_open > _MOST_OPEN:
                    raise ValueError(f"more than {_MOST_OPEN} of its events begin and do not end")
                self._open[event.pid, event.tid].append(event)
            elif event.ph == "E":
                open_events = self._open.get((event.pid, event.tid))
                if not open_events:
                    self._num_others["unreadable"] += 1
                    continue
                self._num_open -= 1
                begin = open_events.pop()
                stop_us, start_us = _floats([event.ts, begin.ts])
                begin.ph = "X"
                begin.dur = stop_us - start_us
                complete.append(begin)
        return complete

    def events(self) -> KinetoEvents:
        """Return all events, with times in seconds from the first one. Raises ValueError if there are none."""
        self._num_others["unreadable"] += sum(map(len, self._open.values()))
        if not self._num_kept:
            raise ValueError("it contains no step, GPU or collective events")
        code, thread, start_us, length_us, correlation = map(np.concatenate, zip(*self._pieces, strict=True))
        self._pieces.clear()
        # the first start is subtracted before scaling, because absolute times have no bits to spare
        start_us -= start_us.min()
        columns = EventColumns(
            code, thread, start_us / 1e6, (start_us + length_us) / 1e6, correlation, np.arange(code.size)
        )
        num_others = {category: count for category, count in sorted(self._num_others.items()) if count}
        return KinetoEvents(columns, list(self._roles.places), list(self._threads), self._details, num_others)


def _has_details(role: Role) -> bool:
    return role.role in _ROLES_WITH_SIZES or role.kind.startswith("memcpy")


def _chosen(events: list[KinetoEvent], codes: Ints, is_chosen: NDArray[np.bool_]) -> tuple[list[KinetoEvent], Ints]:
    return [events[place] for place in np.flatnonzero(is_chosen).tolist()], codes[is_chosen]


def _floats(values: list[Any]) -> Times:
    """Return values as numbers, nan for those that are none."""
    try:
        return np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_float(value) for value in values])


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
