"""`read_traces`: what torch.profiler and Kineto write of each rank becomes a `Trace`.

Only the events that matter are kept, as columns: steps, the phases of a step, kernels and copies by stream, and each
collective with its launch. Names are those that `torch.profiler` writes
(https://github.com/pytorch/pytorch/blob/main/torch/csrc/profiler/) and Kineto gives to kernels of NCCL
(https://github.com/pytorch/kineto/blob/main/libkineto/src/output_json.cpp).
"""

from __future__ import annotations

import math
import os
import queue
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..common.checks import count_of, several, whole
from ..common.storage import StorageError
from ..ranks.host import num_cores
from ..ranks.pool import Worker, WorkerPool
from ..ranks.worker import answer
from ..timeline.events import TraceFile, is_ours, readable
from ..timeline.timeline import Span, Timeline, Times, collective
from .dumps import is_dump
from .trace import Calls, Ints, Trace

MOST_TRACE_BYTES = 4 << 30  # of text in a file, unpacked
_IN_PARALLEL_BYTES = 8 << 20  # of files together; fewer are read before another process is there
_LATEST_US = 2.0**63  # no clock counts further than 64 bits
_PAUSE_S = 1e-4  # between copies out of buckets: the rank waits in it
_MOST_NAMES = 1 << 16  # that are remembered
MOST_EVENTS = 1 << 22  # that are kept of a file; each takes up to 250 bytes
_MOST_KINDS = 1 << 14  # steps and categories, of a file
_MOST_RANGES = 1 << 13  # names of ranges that are kept separate
_MOST_THREADS = 1 << 16  # threads and streams, of a file
_MOST_OPEN = 1 << 16  # B events without their E, at one time
_TIMES = ("start_s", "stop_s")

_STEP_PARTS = ("step", "loader", "forward", "zero_grad", "optimizer")
_DETAILED = ("nccl", "launch", "gloo", "comms", "label", "sizes")  # roles whose arguments are read
_EVALUATE = "autograd::engine::evaluate_function"
_RANGES = (  # how names of ranges on the CPU begin; their role and kind, "" for the collective that the rest names
    ("ProfilerStep#", "span", "step"),
    ("enumerate(DataLoader)#", "span", "loader"),
    ("DistributedDataParallel.forward", "span", "forward"),
    ("FullyShardedDataParallel.forward", "span", "forward"),
    ("Optimizer.zero_grad#", "span", "zero_grad"),
    ("Optimizer.step#", "span", "optimizer"),
    (f"{_EVALUATE}: torch::autograd::AccumulateGrad", "evaluate", "gradient"),
    (_EVALUATE, "evaluate", "backward"),
    ("torch::autograd::AccumulateGrad", "sizes", "gradient"),
    ("torch.distributed.ddp.reducer::copy_bucket_to_grad", "unpack", "unpack"),
    ("record_param_comms", "comms", "nccl"),
    ("c10d::", "launch", ""),
    ("gloo:", "gloo", ""),
    ("nccl:", "label", ""),
)
_COLLECTIVES = ("reducescatter", "allreduce", "allgather", "alltoall", "broadcast", "barrier", "gather", "scatter")
_COPIES = {"htod": "h2d", "dtoh": "d2h", "dtod": "d2d", "ptop": "p2p"}
_ITEM_BYTES = {"double": 8, "long": 8, "half": 2, "bfloat16": 2, "short": 2, "float": 4, "int": 4} | dict.fromkeys(
    ("byte", "char", "bool", "unsignedchar", "signedchar", "float8e4m3fn", "float8e5m2"), 1
)


def read_traces(
    folder_or_files: Any, *, ranks: Iterable[int] | None = None, report: Callable[[str], object] = lambda line: None
) -> tuple[Trace, ...]:
    """Read the traces of a job's ranks, by rank: a folder with a .json or .json.gz per rank, a file, or several files.

    A rank is the one that `distributedInfo` names, else the one in the file's name ("rank3.json"). With `ranks`, only
    these are read. `report` is called with a line whenever a file was read. Files are read a piece at a time, and by as
    many processes as there are cores.

    Raises ValueError, naming the file, for what is no trace of a profiler, is cut short, has more than 4 GiB of text or
    4 million events of steps, GPUs and collectives, or unpacks to 64 times its size; ValueError for two files of one
    rank, for files of jobs of different sizes and for a folder without a trace; OSError where a file cannot be opened.
    """
    paths, dumps = files_in(folder_or_files)
    if not paths:
        instead = (
            "no trace, but flight-recorder dumps: give them to read_dumps"
            if dumps
            else ("no trace, a file whose name ends in .json or .json.gz, nor a dump, one whose name ends in the rank")
        )
        raise ValueError(f"{folder_or_files} has {instead}")
    if ranks is not None:
        wanted = {whole("ranks", rank, 0) for rank in several("ranks", ranks)}
        paths = [path for path in paths if _rank_of(path, len(paths)) in wanted]
        if not paths:
            raise ValueError(f"there is no trace of ranks {sorted(wanted)}")
    known: dict[int, str] = {}
    sizes: dict[int, str] = {}
    found = []
    for trace, num_ranks in _read_all(paths, report):
        if trace.rank in known:
            raise ValueError(f"{known[trace.rank]} and {trace.source} are both of rank {trace.rank}")
        known[trace.rank] = trace.source
        sizes.setdefault(num_ranks or next(iter(sizes), 0), trace.source)
        found.append(trace)
    if len(sizes) > 1:
        jobs = " and ".join(f"{name} is of a job of {count_of(size, 'rank')}" for size, name in sizes.items() if size)
        raise ValueError(f"traces must be of one job: {jobs}")
    return tuple(sorted(found, key=lambda trace: trace.rank))


def files_in(folder_or_files: Any) -> tuple[list[Path], list[Path]]:
    """The traces there, and the flight-recorder dumps; of a folder without what this package wrote itself."""
    if isinstance(folder_or_files, str | os.PathLike):
        given = Path(folder_or_files)
        inside = sorted(path for path in given.iterdir() if path.is_file()) if given.is_dir() else [given]
    else:
        given, inside = None, [Path(one) for one in several("folder_or_files", folder_or_files, "files, or a folder")]
    dumps = [path for path in inside if is_dump(path)]
    traces = [path for path in inside if path not in dumps]
    if given and given.is_dir():
        traces = [path for path in traces if path.name.endswith((".json", ".json.gz")) and not is_ours(path)]
    return traces, dumps


def _read_all(paths: list[Path], report: Callable[[str], object]) -> list[tuple[Trace, int]]:
    """Each file's trace, and the number of ranks of its job, 0 where it does not say."""
    num_workers = min(len(paths), num_cores())
    if num_workers == 1 or sum(path.stat().st_size for path in paths) < _IN_PARALLEL_BYTES:
        return [_reported(report, path, _read(path, len(paths))) for path in paths]
    with WorkerPool(in_memory=False) as pool, ThreadPoolExecutor(num_workers) as threads:
        labels = [f"trace reader {number}" for number in range(num_workers)]
        workers = pool.start(pool.pack(partial(answer, partial(_read_safely, len(paths)))), labels)
        free = queue.SimpleQueue[Worker]()
        for worker in workers:
            worker.ready()
            free.put(worker)

        def ask(path: Path) -> Any:
            worker = free.get()
            try:
                found, *_ = worker.ask(path)
            finally:
                free.put(worker)
            if isinstance(found, str):
                raise StorageError(path, found)
            return _reported(report, path, found)

        return list(threads.map(ask, paths))


def _reported(report: Callable[[str], object], path: Path, found: Any) -> Any:
    report(f"read {path.name}")
    return found


def _read_safely(num_files: int, path: Path) -> tuple[Trace, int] | str:
    try:
        return _read(path, num_files)
    except StorageError as error:
        return str(error).removeprefix(f"{path}: ")


class _KinetoArgs(
    msgspec.Struct,
    gc=False,
    rename={"name": "Collective name", "num_in": "In msg nelems", "group": "Process Group Name"}
    | {"dims": "Input Dims", "types": "Input type"},
):
    """Of an event's arguments those that are read."""

    name: Any = None
    num_in: Any = None
    dtype: Any = None
    group: Any = None
    dims: Any = None
    types: Any = None
    bytes: Any = None
    correlation: Any = None


class _KinetoEvent(msgspec.Struct, gc=False):
    """Of an event the fields that are read."""

    ph: str | int | float | None = None
    name: str | int | float | None = None
    cat: str | int | float | None = None
    pid: str | int | float | None = None
    tid: str | int | float | None = None
    ts: str | int | float | None = None
    dur: str | int | float | None = None
    args: _KinetoArgs | list[Any] | str | int | float | bool | None = None


class _Role(NamedTuple):
    """What an event is for: "other", "span", "evaluate", "unpack", "sizes" (of a gradient), "launch", "gloo",
    "kernel", "nccl", "runtime", "comms" or "label" (of a call of NCCL). `kind` is its category where it is not kept."""

    role: str
    kind: str
    item: int = -1


def _role(phase: Any, category: Any, name: Any) -> _Role:
    category, name = str(category or phase), str(name)
    where = category.lower()
    if phase != "X":
        return _Role("other", "metadata" if phase == "M" else category)
    if where == "kernel":
        kind = collective(name)
        return _Role("kernel" if kind == "kernel" else "nccl", kind)
    if where in ("gpu_memcpy", "memcpy"):
        way = name.lower().removeprefix("memcpy").strip()[:4]
        return _Role("kernel", f"memcpy {_COPIES[way]}") if way in _COPIES else _Role("kernel", "memcpy")
    if where in ("gpu_memset", "memset"):
        return _Role("kernel", "memset")
    if where in ("cuda_runtime", "cuda_driver", "runtime"):
        return _Role("runtime", "cuda_sync" if "Synchronize" in name else "cuda_runtime")
    if where not in ("user_annotation", "cpu_op", "operator"):
        return _Role("other", category)
    return _role_of_range(category, name)


def _role_of_range(category: str, name: str) -> _Role:
    for begin, role, kind in _RANGES:
        if name.startswith(begin):
            rest = name[len(begin) :]
            number = int(rest) if kind == "step" and rest.isdecimal() and len(rest) < 19 else -1
            return _Role(role, kind or _kind(rest), number)
    return _Role("span", f"range: {name}") if category == "user_annotation" else _Role("other", category)


def _kind(name: str) -> str:
    """The collective that a name speaks of: "_allgather_base_" of "allgather", "nccl" where it speaks of none."""
    plain = re.sub("[^a-z]", "", str(name).lower())
    word = next((word for word in _COLLECTIVES if word in plain), "")
    if not word:
        word = "reduce" if "reduce" in plain else "send_recv" if re.search("send|recv", plain) else "nccl"
    return "reduce_scatter" if word == "reducescatter" else "alltoall" if "alltoa" in plain else word


def _size(args: _KinetoArgs) -> tuple[int, int]:
    """The elements that a rank puts in, and the bytes of one; -1 for unknown, 0 for elements of a list of tensors."""
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


def _correlation(args: Any) -> int:
    number = args.correlation if isinstance(args, _KinetoArgs) else None
    return number if isinstance(number, int) and 0 <= number < 2**63 else -1


def _num_elements(dims: Any) -> int:
    is_shape = isinstance(dims, list) and all(isinstance(one, int) and one >= 0 for one in dims)
    return min(math.prod(dims), 2**40) if is_shape else -1


def _item_bytes(dtype: Any) -> int:
    plain = re.sub("[^a-z0-9]", "", str(dtype).lower().removeprefix("c10::"))
    return _ITEM_BYTES.get(plain.removesuffix("int") or plain, -1)


class _Places(dict[Any, int]):
    """A place for each different value, in the order in which they come."""

    def __missing__(self, value: Any) -> int:
        self[value] = len(self)
        return self[value]


_OTHER_RANGES = _Role("span", "range: others")  # once there are too many names


class _Roles(dict[Any, int]):
    """The place of the role of each (phase, category, name), for so many of them as memory allows."""

    def __init__(self) -> None:
        self.places = _Places()

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


def _read(path: Path, num_files: int) -> tuple[Trace, int]:
    """The trace of a file, and the number of ranks of its job, 0 where it does not say."""
    file = TraceFile[Any](path, _KinetoEvent | list[Any] | str | int | float | bool | None, MOST_TRACE_BYTES)
    with readable(path):
        reader = _Reader()
        for entries in file.pieces():
            reader.take(entries)
        return reader.trace(_rank(path, file.fields, num_files), path.name, file.fields)


def _info(fields: Mapping[str, Any]) -> dict[str, Any]:
    info = fields.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def _rank(path: Path, fields: Mapping[str, Any], num_files: int) -> int:
    named = _info(fields).get("rank")
    in_name = re.search(r"rank[-_ ]?(\d{1,9})(?!\d)", path.name) or re.match(r"(\d{1,9})\.", path.name)
    if named is None and in_name:
        return int(in_name[1])
    if named is None and num_files > 1:
        raise ValueError("neither its distributedInfo nor its name says which rank it is of")
    return 0 if named is None else whole("distributedInfo's rank", named, 0, 2**31 - 1)


def _rank_of(path: Path, num_files: int) -> int:
    """The rank, from the beginning of the file alone where it stands there."""
    file = TraceFile[Any](path, Any, MOST_TRACE_BYTES)
    with readable(path):
        for _ in file.pieces():
            if "distributedInfo" in file.fields:
                break
        return _rank(path, file.fields, num_files)


class _Reader:
    """Turns the events of a trace into columns, a piece after the other."""

    def __init__(self) -> None:
        self._roles, self._threads = _Roles(), _Places()
        self._begun = defaultdict[Any, list[_KinetoEvent]](list)  # the B events of each thread that have no E yet
        self._num_begun = 0
        self._num_others = Counter[str]()
        self._pieces = list[tuple[NDArray[Any], ...]]()
        self._num_kept = 0
        # of what communicates or is copied: its elements, the bytes of one, its group and kind
        self._sizes = dict[int, tuple[int, int, str, str]]()

    def take(self, entries: list[Any]) -> None:
        events = [one for one in entries if type(one) is _KinetoEvent and one.ph != "B" and one.ph != "E"]
        if len(events) < len(entries):
            events += self._paired(entries)
        codes = np.array([self._roles[one.ph, one.cat, one.name] for one in events], np.int64)
        roles = list(self._roles.places)
        kept = np.array([role.role != "other" for role in roles], bool)[codes]
        for code, count in zip(*(found.tolist() for found in np.unique(codes[~kept], return_counts=True)), strict=True):
            self._num_others[roles[code].kind] += count
        events, codes = [events[place] for place in np.flatnonzero(kept).tolist()], codes[kept]
        start_us, length_us = _floats([one.ts for one in events]), _floats([one.dur for one in events])
        good = (np.abs(start_us) <= _LATEST_US) & (length_us >= 0) & (length_us <= _LATEST_US)
        if not good.all():
            self._num_others["unreadable"] += int((~good).sum())
            events = [events[place] for place in np.flatnonzero(good).tolist()]
            codes, start_us, length_us = codes[good], start_us[good], length_us[good]
        if self._num_kept + len(events) > MOST_EVENTS:
            many = f"more than {MOST_EVENTS} events of steps, GPUs and collectives"
            raise ValueError(f"it has {many}: profile fewer steps")
        threads = np.array([self._threads[one.pid, one.tid] for one in events], np.int64)
        if len(self._threads) > _MOST_THREADS:
            raise ValueError(f"it has more than {_MOST_THREADS} threads and streams")
        numbers = np.full(len(events), -1)
        launched = np.array([role.role in ("kernel", "nccl", "runtime") for role in roles], bool)[codes]
        numbers[launched] = [_correlation(events[place].args) for place in np.flatnonzero(launched).tolist()]
        detailed = np.array([role.role in _DETAILED or role.kind.startswith("memcpy") for role in roles], bool)[codes]
        for place in np.flatnonzero(detailed).tolist():
            args, role = events[place].args, roles[codes[place]]
            if isinstance(args, _KinetoArgs):
                kind = _kind(str(args.name)) if args.name is not None else role.kind
                self._sizes[self._num_kept + place] = *_size(args), str(args.group or ""), kind
        self._num_kept += len(events)
        self._pieces.append((codes.astype(np.int32), threads.astype(np.int32), start_us, length_us, numbers))

    def _paired(self, entries: list[Any]) -> list[_KinetoEvent]:
        """Events made of pairs of B and E."""
        done = []
        for one in entries:
            if type(one) is not _KinetoEvent:
                self._num_others["unreadable"] += 1
            elif one.ph == "B":
                self._num_begun += 1
                if self._num_begun > _MOST_OPEN:
                    raise ValueError(f"more than {_MOST_OPEN} of its events begin and do not end")
                self._begun[one.pid, one.tid].append(one)
            elif one.ph == "E" and (begun := self._begun.get((one.pid, one.tid))):
                self._num_begun -= 1
                first = begun.pop()
                stop_us, start_us = _floats([one.ts, first.ts])
                first.ph, first.dur = "X", stop_us - start_us
                done.append(first)
            elif one.ph == "E":
                self._num_others["unreadable"] += 1
        return done

    def trace(self, rank: int, source: str, fields: Mapping[str, Any]) -> tuple[Trace, int]:
        """The trace, and the number of ranks of its job, 0 where it does not say."""
        self._num_others["unreadable"] += sum(map(len, self._begun.values()))
        if not self._num_kept:
            raise ValueError("it has no event of a step, of a GPU or of a collective")
        code, thread, start_us, length_us, number = map(np.concatenate, zip(*self._pieces, strict=True))
        self._pieces.clear()
        # the first start is taken off before scaling: absolute times have no bits to spare
        start_us -= start_us.min()
        self._known = list(self._roles.places)
        self._events = _EventColumns(
            code, thread, start_us / 1e6, (start_us + length_us) / 1e6, number, np.arange(code.size)
        )
        group_ranks = _group_ranks(fields)
        calls, call_of = self._calls(tuple(group_ranks))
        gradients = self._of("evaluate", "gradient")
        gradient_bytes = np.full(gradients.place.size, -1)
        operators = self._of("sizes")
        for place, gradient in zip(operators.place.tolist(), _around(gradients, operators).tolist(), strict=True):
            if gradient >= 0 and place in self._sizes:
                num, item_bytes, *_ = self._sizes[place]
                gradient_bytes[gradient] = num * item_bytes if num >= 0 and item_bytes > 0 else -1
        timeline = self._timeline(rank, calls, call_of, gradients)
        others = {name: count for name, count in sorted(self._num_others.items()) if count}
        num_ranks = _info(fields).get("world_size")
        trace = Trace(rank, timeline, calls, others, source, gradient_bytes, group_ranks)
        return trace, num_ranks if isinstance(num_ranks, int) else 0

    def _of(self, role: str, *kinds: str) -> _EventColumns:
        """The events of a role, and of one of these kinds where some are given, in the order of their starts."""
        chosen = [one.role == role and (not kinds or one.kind in kinds) for one in self._known]
        places = np.flatnonzero(np.array(chosen, bool)[self._events.code])
        return self._events.take(places[np.argsort(self._events.start_s[places], kind="stable")])

    def _timeline(self, rank: int, calls: Calls, call_of: Ints, gradients: _EventColumns) -> Timeline:
        roles, threads, events = self._known, list(self._threads), self._events
        steps = self._of("span", *_STEP_PARTS)
        of_main = self._of("span", "step") if "step" in {role.kind for role in roles} else steps
        main = int(np.bincount(of_main.thread).argmax()) if of_main.place.size else -1
        steps = steps.take(steps.thread == main)
        item = np.array([role.item for role in roles])[events.code]
        item = np.where(call_of >= 0, call_of, item)
        item[gradients.place] = np.arange(gradients.place.size)
        for place, (num, item_bytes, *_) in self._sizes.items():
            if roles[events.code[place]].role == "kernel":  # a copy
                item[place] = num * item_bytes if num >= 0 else -1
        cpu, gpu, gloo, back = range(4)  # kinds of lanes
        lane_of = {"kernel": gpu, "nccl": gpu, "gloo": gloo, "evaluate": back}
        sides = np.array([lane_of.get(role.role, cpu) for role in roles])
        drawn = np.array([role.role not in ("comms", "label", "sizes", "evaluate", "unpack") for role in roles])
        is_drawn = drawn[events.code]
        is_drawn[gradients.place] = True
        rows = events.take(np.flatnonzero(is_drawn))
        side = sides[rows.code]
        places, lane = np.unique(side * len(threads) + np.where(side >= gloo, 0, rows.thread), return_inverse=True)
        lanes, known = list[str](), set[str]()
        for where, thread in (divmod(place, len(threads)) for place in places.tolist()):
            pid, tid = threads[thread]
            name = ("main" if thread == main else f"thread {tid}", f"stream {tid}", "gloo", "backward")[where]
            lanes.append(name if name not in known else f"{name} of {pid}")
            known.add(lanes[-1])
        is_call = np.array([role.role in ("nccl", "gloo") for role in roles])[rows.code]
        rows.code[is_call] = len(roles) + calls.kind[call_of[rows.place[is_call]]]
        words = ["launch" if role.role == "launch" else role.kind for role in roles] + list(calls.kinds)
        used, kind = np.unique(rows.code, return_inverse=True)
        kinds = [words[place] for place in used]
        columns: list[Any] = [lane, kind, item[rows.place], rows.start_s, rows.stop_s, tuple(lanes), tuple(kinds)]

        backward = _hulls(self._of("evaluate"), steps.start_s)
        unpack = self._of("unpack")
        paused = unpack.start_s[1:] - unpack.stop_s[:-1] > _PAUSE_S  # what a wait ends with may stand before its end
        ends_s = np.sort(np.concatenate([steps.start_s, self._of("gloo").stop_s, unpack.start_s[1:][paused]]))
        parts = self._of("span", *(role.kind for role in roles if role.kind.startswith("range: FSDP::")))
        in_forward = [role.kind.partition(" (")[0].endswith("_forward") for role in roles]
        in_backward = _within(parts.start_s, backward.start_s, backward.stop_s)[1]  # a forward done again
        parts = parts.take(np.array(in_forward, bool)[parts.code] & ~in_backward & (parts.thread == main))
        forward = _hulls(parts, np.sort(np.concatenate([steps.start_s, backward.stop_s])))
        both: list[Any] = [np.concatenate(pair) for pair in zip(steps, forward, strict=True)]
        hulls = [("backward", "backward", -1, *times) for times in zip(backward.start_s, backward.stop_s, strict=True)]
        hulls += [("main", "forward", -1, *times) for times in zip(forward.start_s, forward.stop_s, strict=True)]
        for thread, *times in zip(*_hulls(unpack, ends_s)[1:4], strict=True):
            hulls.append(("main" if thread == main else f"thread {threads[thread][1]}", "unpack", -1, *times))
        hulls += [("gpu", *one) for one in self._gpu_phases(_EventColumns(*both), backward)]
        spans = Timeline.of(Span(rank, *hull) for hull in hulls)
        timeline = Timeline.concat([Timeline(np.full(rows.place.size, rank), *columns), spans])
        return timeline.take(np.argsort(timeline.start_s, kind="stable"))

    def _gpu_phases(self, ranges: _EventColumns, backward: _EventColumns) -> list[tuple[str, int, float, float]]:
        """For each range on the CPU, and each gap between two, its kind, its step, and from when to when the GPU works
        on what was launched there; collectives wait for others, and are left out."""
        is_step = np.array([self._known[code].kind == "step" for code in ranges.code.tolist()], bool)
        steps, phases = ranges.take(is_step), ranges.take(~is_step)
        kinds = [self._known[code].kind for code in phases.code.tolist()]
        words = ["forward" if kind.startswith("range") else kind for kind in kinds] + ["backward"] * backward.place.size
        start_s, stop_s = (np.concatenate([getattr(phases, name), getattr(backward, name)]) for name in _TIMES)
        order = np.argsort(start_s, kind="stable")
        started = _started(self._of("kernel"), self._of("runtime"))
        started = started.take(np.flatnonzero(np.isfinite(started.start_s)))
        step, in_step = _within(started.start_s, steps.start_s, steps.stop_s)
        phase, in_phase = _within(started.start_s, start_s[order], stop_s[order])
        key = np.where(in_step, (step * (len(words) + 1) + phase + 1) * 2 + in_phase, -1)
        found, by_key = [], np.argsort(key, kind="stable")
        for rows in np.split(by_key, np.flatnonzero(np.diff(key[by_key])) + 1):
            if rows.size and in_step[rows[0]]:
                word = words[order[phase[rows[0]]]] if in_phase[rows[0]] else "host"
                work = self._events.take(started.place[rows])
                number = self._known[steps.code[step[rows[0]]]].item
                found.append((word, number, float(work.start_s.min()), float(work.stop_s.max())))
        return found

    def _calls(self, groups: tuple[str, ...]) -> tuple[Calls, Ints]:
        """The collectives, and for each event the place of the one that it is of, or -1."""
        launches, found = self._of("launch"), list[_CallParts]()
        kernels, ranges = self._of("nccl"), (self._of("comms"), self._of("label"), launches)
        started = _started(kernels, self._of("runtime"))
        around = [_around(spans, started) for spans in ranges]
        for row, kernel in enumerate(kernels.place.tolist()):
            inside = [spans.place[one[row]] for spans, one in zip(ranges, around, strict=True) if one[row] >= 0]
            found.append(self._call(kernel, inside, float(started.start_s[row])))
        # Gloo: what is launched on one thread waits in a line for two others
        is_nccl = np.zeros(launches.place.size, bool)
        for spans in (started, *ranges[:2]):
            within = _around(launches, spans)
            is_nccl[within[within >= 0]] = True
        launches, gloo = launches.take(np.flatnonzero(~is_nccl)), self._of("gloo")
        group_of = self._gloo_groups(gloo, launches, groups)
        launch_of = self._launches_of(gloo, launches)
        for row, work in enumerate(gloo.place.tolist()):
            call = self._call(work, [], math.nan)._replace(group=group_of[row])
            if (launch := int(launch_of[row])) >= 0:
                kind, launch_s = self._known[launches.code[launch]].kind, float(launches.start_s[launch])
                call = call._replace(kind=kind, launch_s=launch_s, places=[work, int(launches.place[launch])])
            found.append(call)
        for row in sorted({*range(launches.place.size)} - {*launch_of.tolist()}) if not kernels.place.size else ():
            call = self._call(int(launches.place[row]), [], float(launches.start_s[row]))
            group = groups[0] if len(groups) == 1 else ""
            found.append(call._replace(group=group, num_bytes=-1, start_s=math.nan, stop_s=math.nan))

        found.sort(key=lambda call: call.start_s if math.isnan(call.launch_s) else call.launch_s)
        call_of = np.full(self._num_kept, -1)
        for number, call in enumerate(found):
            call_of[call.places] = number
        known_groups, kinds = _Places(), _Places()
        columns: list[Any] = [
            np.array([known_groups[call.group] for call in found], np.int64),
            np.array([kinds[call.kind] for call in found], np.int64),
            np.array([call.num_bytes for call in found], np.int64),
            *(np.array([getattr(call, name) for call in found], float) for name in ("launch_s", "start_s", "stop_s")),
            *(tuple(known_groups), tuple(kinds)),
        ]
        return Calls(*columns), call_of

    def _call(self, place: int, inside: list[int], launch_s: float) -> _CallParts:
        """The call that is worked on here and was launched inside these, with what any of them says of it."""
        places = [place, *inside]
        said = [self._sizes[one] for one in places if one in self._sizes]
        kinds = [kind for *_, kind in said] + [self._known[self._events.code[one]].kind for one in places]
        kind = next((kind for kind in kinds if kind not in ("nccl", "send_recv")), kinds[-1] if said else kinds[0])
        group = next((group for *_, group, _ in said if group), "")
        num_bytes = next((num * size for num, size, *_ in said if num >= 0 and size > 0), -1)
        times = float(self._events.start_s[place]), float(self._events.stop_s[place])
        return _CallParts(group, kind, num_bytes, launch_s, *times, places)

    def _launches_of(self, gloo: _EventColumns, launches: _EventColumns) -> Ints:
        """For each piece of Gloo's work its launch, or -1: those of a kind are worked on in their order."""
        launch_of = np.full(gloo.place.size, -1)
        for with_size, kinds in (
            (True, {}),
            (False, {}),
            (False, {"reduce_scatter": "allreduce"}),
        ):  # Gloo has no other

            def key(events: _EventColumns, row: int, with_size: bool, kinds: dict[str, str]) -> tuple[str, int]:
                kind, num = self._known[events.code[row]].kind, self._sizes.get(int(events.place[row]), (-1,))[0]
                return kinds.get(kind, kind), num if with_size else -1

            waiting = defaultdict[Any, deque[int]](deque)
            for row in sorted({*range(launches.place.size)} - {*launch_of.tolist()}):
                waiting[key(launches, row, with_size, kinds)].append(row)
            for row in np.flatnonzero(launch_of < 0).tolist():
                line = waiting[key(gloo, row, with_size, kinds)]
                if line and launches.start_s[line[0]] <= gloo.start_s[row]:
                    launch_of[row] = line.popleft()
        return launch_of

    def _gloo_groups(self, gloo: _EventColumns, launches: _EventColumns, groups: tuple[str, ...]) -> list[str]:
        """The group of each piece of Gloo's work: a group has two threads, started when it was made. "" if unclear."""
        threads = list(self._threads)
        if len(groups) == 1:
            return [groups[0]] * gloo.place.size
        own = {threads[one][1] for one in np.setdiff1d(gloo.thread, launches.thread).tolist()}
        if len(own) != 2 * len(groups) or not all(isinstance(tid, int) for tid in own):
            return [""] * gloo.place.size
        named = {tid: groups[place // 2] for place, tid in enumerate(sorted(own))}
        return [named.get(threads[one][1], "") for one in gloo.thread.tolist()]


class _CallParts(NamedTuple):
    group: str
    kind: str
    num_bytes: int
    launch_s: float
    start_s: float
    stop_s: float
    places: list[int]  # of the events that are of it


class _EventColumns(NamedTuple):
    """Columns of events: places of role and thread, times, correlation or bytes, and the place among all kept."""

    code: Ints
    thread: Ints
    start_s: Times
    stop_s: Times
    number: Ints
    place: Ints

    def take(self, chosen: NDArray[Any]) -> _EventColumns:
        return _EventColumns(*(one[chosen] for one in self))


def _started(kernels: _EventColumns, runtime: _EventColumns) -> _EventColumns:
    """For each kernel the call of CUDA that started it: its start is nan where there is none."""
    runtime = runtime.take(np.argsort(runtime.number, kind="stable"))
    runtime = runtime.take(np.flatnonzero(runtime.number >= 0))
    place = np.searchsorted(runtime.number, kernels.number)
    known = np.append(runtime.number, -2)[place] == kernels.number
    start_s, thread = np.append(runtime.start_s, np.nan)[place], np.append(runtime.thread, -1)[place]
    return kernels._replace(start_s=np.where(known, start_s, np.nan), thread=np.where(known, thread, -1))


def _within(at_s: Times, start_s: Times, stop_s: Times) -> tuple[Ints, NDArray[np.bool_]]:
    """For each time the last interval that starts before it, -1 for none, and whether it is within that."""
    row = np.searchsorted(start_s, at_s, "right") - 1
    return row, (row >= 0) & (at_s <= np.append(stop_s, -np.inf)[row])


def _around(spans: _EventColumns, inner: _EventColumns) -> Ints:
    """For each inner event the span of its thread in which it starts, as a row of `spans`, or -1."""
    num_spans = spans.place.size
    thread = np.concatenate([spans.thread, inner.thread])
    start_s = np.concatenate([spans.start_s, inner.start_s])
    order = np.lexsort((start_s, thread))  # stable: of what starts at the same time, a span comes first
    is_span = order < num_spans
    last_span = np.maximum.accumulate(np.where(is_span, np.arange(order.size), -1))
    asked, last_span = order[~is_span], last_span[~is_span]
    row = np.where(last_span >= 0, order[last_span], 0)
    has_span = (last_span >= 0) & (thread[asked] == thread[row])
    found = np.full(inner.place.size, -1)
    if num_spans:
        inside = has_span & (start_s[asked] <= spans.stop_s[np.where(has_span, row, 0)])
        found[asked[inside] - num_spans] = row[inside]
    return found


def _hulls(events: _EventColumns, cuts_s: Times) -> _EventColumns:
    """One event from the start of the first to the end of the last, for those between the same cuts."""
    group = np.searchsorted(cuts_s, events.start_s, "right")
    firsts = np.flatnonzero(np.diff(group, prepend=-1))
    stops_s = np.maximum.reduceat(events.stop_s, firsts) if firsts.size else events.stop_s
    return events.take(firsts)._replace(stop_s=stops_s)


def _group_ranks(fields: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The ranks of each group that the trace describes, in the order in which the groups were made."""
    config, found = _info(fields).get("pg_config"), {}
    for one in config if isinstance(config, list) else ():
        name, ranks = (one.get("pg_name"), one.get("ranks")) if isinstance(one, dict) else (None, None)
        if isinstance(ranks, list) and all(isinstance(rank, int) and 0 <= rank < 2**31 for rank in ranks):
            found[str(name)] = tuple(ranks)
    return found


def _floats(values: list[Any]) -> Times:
    """As numbers, nan where one is none."""
    try:
        return np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_float(value) for value in values])


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
