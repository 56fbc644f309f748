"""`Timeline`: what ran when, on which lane of which rank. Simulations and real runs both return one.

A timeline is stored as a Chrome/Perfetto trace: JSON, in the Trace Event Format, with times in microseconds. There, a
rank is a process, a lane is a thread, and a kind is a category. Traces of other programs, such as torch.profiler, can
be read too.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, overload

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.checks import count_of, is_scalar, number, of_type, one_of, several, whole
from ..common.frozen import checked, evolve, frozen
from ..common.storage import StorageError, write_atomically
from .events import TraceFile, readable
from .nesting import nested

Times = NDArray[np.float64]
Intervals = tuple[Times, Times]  # starts and stops

WAITS = ("blocked", "barrier", "wait")  # kinds of span in which a lane waits: for room, for other ranks, for an item
_NO_WORK = (*WAITS, "gpu_user_annotation", "cuda_sync")  # also a profiler's labels and waits on a GPU's streams
_LATEST_US = 2.0**63  # no clock counts further than 64 bits
_COLUMNS = ("rank", "lane", "kind", "item", "start_s", "stop_s")
_FORMAT = "rankscope.timeline"
_VERSION = 1
_MOST_TRACE_BYTES = 1 << 29  # of a trace, unpacked
_MOST_RANK = 2**31 - 1


class TimelineError(ValueError):
    """Two spans run on one lane at the same time."""


class Span(NamedTuple):
    """One piece of work; `item` is the batch, chunk or step that it belongs to, or -1 if it belongs to none."""

    rank: int
    lane: str
    kind: str
    item: int
    start_s: float
    stop_s: float


def column(name: str, values: ArrayLike) -> NDArray[Any]:
    """Return a read-only column of the right type that nobody else can change; it is copied only if somebody could.

    Columns whose names end in ``_s`` are floats, and the others are integers.
    """
    array = np.asarray(values)
    dtype = np.float64 if name.endswith("_s") else np.int64
    # numpy casts larger numbers without a sign to negative ones.
    if array.dtype.kind == "u" and dtype is np.int64 and (array > np.iinfo(np.int64).max).any():
        raise ValueError(f"{name} must hold whole numbers of at most 2**63 - 1, got {array.max()}")
    # An empty list is an array of floats for numpy, so the type of an empty column does not matter.
    has_right_type = array.size == 0 or np.can_cast(array.dtype, dtype, casting="same_kind")
    if array.ndim != 1 or not has_right_type:
        raise ValueError(f"{name} must be a column of {dtype.__name__}, got {array.dtype} of shape {array.shape}")
    if array.dtype == dtype and _is_constant(array):
        return _read_only(array.view())  # the caller can still give their own array another shape
    return _read_only(array.astype(dtype))


def _is_constant(array: NDArray[Any]) -> bool:
    """Whether nobody can change the numbers: the array and all arrays whose memory it shares are read-only.

    Memory of other objects, such as a mapped file, may change.
    """
    owner: Any = array
    while isinstance(owner, np.ndarray) and not owner.flags.writeable:
        owner = owner.base  # the array or object whose memory this one shares; None if it has its own
    return owner is None


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


def _listed(name: str, values: Any) -> list[Any]:
    """Return one value or several as a list."""
    if isinstance(values, str) or is_scalar(values):
        return [values]
    return several(name, values)


def _whole_numbers(name: str, values: Any) -> list[int]:
    return [whole(name, value) for value in _listed(name, values)]


def _are_among(words: tuple[str, ...], wanted: list[Any]) -> NDArray[np.bool_]:
    """Return for each word whether it is wanted. Anything but a string, which may have no hash, is no word."""
    wanted_words = {word for word in wanted if isinstance(word, str)}
    return np.array([word in wanted_words for word in words], dtype=bool)


def words(name: str, words: Iterable[str]) -> tuple[str, ...]:
    """Return names as a tuple; raise ValueError if one is not a string."""
    return tuple(of_type(name, word, str) for word in words)


@frozen(eq=False)
class Timeline:
    """Spans as columns, with one entry per span, in any order; `lane` and `kind` are indices into `lanes` and `kinds`.

    Times are in seconds from an arbitrary origin, the same for all spans. The columns are read-only. Raises ValueError
    if columns differ in length, an index is outside `lanes` or `kinds`, a name is not a string, a time is not finite,
    or a span stops before it starts.
    """

    # The kinds of NCCL's kernels in a trace of torch.profiler. The first one that a kernel's name contains is its kind,
    # so "reduce" comes after the longer names with this word, and "nccl", which is for all other kernels, comes last.
    COMMUNICATION: ClassVar[tuple[str, ...]] = (
        "allreduce",
        "reduce_scatter",
        "allgather",
        "alltoall",
        "broadcast",
        "reduce",
        "send_recv",
        "nccl",
    )

    rank: NDArray[np.int64] = checked(column)
    lane: NDArray[np.int64] = checked(column)
    kind: NDArray[np.int64] = checked(column)
    item: NDArray[np.int64] = checked(column)
    start_s: Times = checked(column)
    stop_s: Times = checked(column)
    lanes: tuple[str, ...] = checked(words)
    kinds: tuple[str, ...] = checked(words)

    def __attrs_post_init__(self) -> None:
        lengths = {name: getattr(self, name).size for name in _COLUMNS}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"a timeline's columns must have the same length, got {lengths}")
        for name, indices, names in (("lane", self.lane, self.lanes), ("kind", self.kind, self.kinds)):
            if indices.size and not 0 <= indices.min() <= indices.max() < len(names):
                outside = indices[(indices < 0) | (indices >= len(names))][0]
                raise ValueError(f"{name} must hold places from 0 to {len(names) - 1} in {name}s, got {outside}")
        is_valid = np.isfinite(self.start_s) & np.isfinite(self.stop_s) & (self.stop_s >= self.start_s)
        if not is_valid.all():
            invalid = self[int(is_valid.argmin())]  # the first one
            raise ValueError(f"a span must end at or after its start, at finite times, got {invalid}")

    @classmethod
    def of(cls, spans: Iterable[Span]) -> Timeline:
        """Make a timeline from spans, and keep their order.

        >>> Timeline.of([Span(0, "gpu", "compute", 0, 1.0, 3.0)]).makespan_s
        2.0
        """
        columns: list[Any] = list(zip(*spans, strict=True))
        if not columns:  # there are no spans
            columns = [()] * len(_COLUMNS)
        rank, lane, kind, item, start_s, stop_s = columns
        lanes, lane_indices = _encoded(lane)
        kinds, kind_indices = _encoded(kind)
        return cls(rank, lane_indices, kind_indices, item, start_s, stop_s, lanes, kinds)

    @classmethod
    def concat(cls, timelines: Sequence[Timeline]) -> Timeline:
        """Concatenate timelines, such as those of several ranks. All must have the same time origin.

        The lanes and kinds of the result are those of all timelines, each once.
        """
        if not timelines:
            return cls.of([])
        columns: dict[str, Any] = {}
        for name in _COLUMNS:
            columns[name] = np.concatenate([getattr(timeline, name) for timeline in timelines])
        names: dict[str, Any] = {}
        num_spans = [len(timeline) for timeline in timelines]
        for name in ("lane", "kind"):
            names_of_each = [getattr(timeline, f"{name}s") for timeline in timelines]
            all_names = list(chain.from_iterable(names_of_each))  # those of the first timeline, then of the second, …
            names[f"{name}s"], new_indices = _encoded(all_names)
            first_of_each = np.cumsum([0, *map(len, names_of_each)])[:-1]  # where a timeline's names begin in all_names
            index_in_all = np.repeat(first_of_each, num_spans) + columns[name]  # one per span
            columns[name] = new_indices[index_in_all]
        for array in columns.values():
            _read_only(array)  # so that the new timeline does not copy it
        return cls(**columns, **names)

    def __repr__(self) -> str:
        spans = count_of(len(self), "span")
        ranks = count_of(np.unique(self.rank).size, "rank")
        lanes = count_of(len(self.rank_lanes()), "lane")
        return f"<Timeline: {spans}, {ranks}, {lanes}, {self.makespan_s:.3g} s>"

    def __len__(self) -> int:
        return self.start_s.size

    @overload
    def __getitem__(self, index: int) -> Span: ...

    @overload
    def __getitem__(self, index: slice) -> Timeline: ...

    def __getitem__(self, index: int | slice) -> Span | Timeline:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        return Span(
            rank=int(self.rank[index]),
            lane=self.lanes[self.lane[index]],
            kind=self.kinds[self.kind[index]],
            item=int(self.item[index]),
            start_s=float(self.start_s[index]),
            stop_s=float(self.stop_s[index]),
        )

    def __iter__(self) -> Iterator[Span]:
        return (self[index] for index in range(len(self)))

    def select(
        self,
        rank: int | Iterable[int] | None = None,
        lane: str | Iterable[str] | None = None,
        kind: str | Iterable[str] | None = None,
        item: int | Iterable[int] | None = None,
        between_s: tuple[float, float] | None = None,
    ) -> Timeline:
        """Return the spans that match all arguments. Spans that extend beyond `between_s` are cut to it.

        Each argument may be one value or several: ``select(lane=["stream 7", "stream 20"]).busy_s`` is the time in
        which at least one of the two works. A span of length 0 on the edge of the window is inside. If a lane or kind
        has no spans, the timeline is empty. Raises ValueError if the window ends before it starts.
        """
        is_selected = np.ones(len(self), dtype=bool)
        if rank is not None:
            is_selected &= np.isin(self.rank, _whole_numbers("rank", rank))
        if item is not None:
            is_selected &= np.isin(self.item, _whole_numbers("item", item))
        if lane is not None:
            is_selected &= _are_among(self.lanes, _listed("lane", lane))[self.lane]
        if kind is not None:
            is_selected &= _are_among(self.kinds, _listed("kind", kind))[self.kind]
        spans = self.take(np.flatnonzero(is_selected))
        if between_s is None:
            return spans
        return spans._cut_to(between_s)

    def _cut_to(self, between_s: tuple[float, float]) -> Timeline:
        """Return the spans in a window, cut at its edges."""
        # Infinite edges are allowed: a window may be open on either side.
        edges = [number("between_s", time, high=math.inf) for time in several("between_s", between_s)]
        if len(edges) != 2 or edges[0] > edges[1]:
            raise ValueError(f"between_s must be a window from earlier to later, got {between_s}")
        low, high = edges
        start_s = np.maximum(self.start_s, low)
        stop_s = np.minimum(self.stop_s, high)
        has_no_length = self.start_s == self.stop_s
        is_inside = (start_s < stop_s) | (has_no_length & (start_s == stop_s))  # a longer span on an edge is outside
        spans = self.take(np.flatnonzero(is_inside))
        return evolve(spans, start_s=start_s[is_inside], stop_s=stop_s[is_inside])

    def take(self, indices: NDArray[np.int64]) -> Timeline:
        """Return the spans at these indices, in this order."""
        spans = object.__new__(Timeline)  # without the checks, which these spans have passed already
        for name in _COLUMNS:
            object.__setattr__(spans, name, _read_only(getattr(self, name)[indices]))
        for name in ("lanes", "kinds"):
            object.__setattr__(spans, name, getattr(self, name))
        return spans

    def named(self, lanes: Sequence[str], kinds: Sequence[str]) -> Timeline:
        """Return the same spans with these lanes and kinds first, in this order, even if they have no spans."""
        return Timeline.concat([evolve(Timeline.of([]), lanes=lanes, kinds=kinds), self])

    def shifted(self, seconds: float) -> Timeline:
        """Return the same spans, `seconds` later."""
        seconds = number("seconds", seconds)
        return evolve(self, start_s=self.start_s + seconds, stop_s=self.stop_s + seconds)

    @property
    def begin_s(self) -> float:
        """The start of the first span, or 0 if there are no spans."""
        return float(self.start_s.min()) if len(self) else 0.0

    @property
    def end_s(self) -> float:
        """The end of the last span, or 0 if there are no spans."""
        return float(self.stop_s.max()) if len(self) else 0.0

    @property
    def makespan_s(self) -> float:
        """The time in seconds from the start of the first span to the end of the last."""
        return self.end_s - self.begin_s

    @property
    def busy_s(self) -> float:
        """The time in seconds during which at least one span runs. For a lane, kind or rank, `select` it first."""
        return _length_s(self._busy_times())

    def overlap_s(self, first: str | Iterable[str], second: str | Iterable[str]) -> float:
        """Return the time in seconds during which spans of two kinds overlap within a rank, summed over ranks.

        The spans may be on any lanes. Each argument may be several kinds, as in
        ``overlap_s(Timeline.COMMUNICATION, "kernel")``. Raises ValueError if the timeline has none of an argument's
        kinds.
        """
        first_spans = self._of_known_kinds(first)
        second_spans = self._of_known_kinds(second)
        total_s = 0.0
        for rank in np.unique(self.rank).tolist():
            first_times = first_spans.select(rank=rank)._busy_times()
            second_times = second_spans.select(rank=rank)._busy_times()
            total_s += _length_s(intersect(first_times, second_times))
        return total_s

    def _busy_times(self) -> Intervals:
        """Return the times in which at least one span runs."""
        return merge(self.start_s, self.stop_s)

    def _of_known_kinds(self, kind: str | Iterable[str]) -> Timeline:
        """Return the spans of these kinds. Raises ValueError if the timeline has none of the kinds."""
        kinds = _listed("kind", kind)
        if not any(kind in self.kinds for kind in kinds):
            unknown = kinds[0] if len(kinds) == 1 else kinds
            one_of("kind", unknown, self.kinds)  # raises the error, in the words of all such errors
        return self.select(kind=kinds)

    def utilisation(self) -> dict[tuple[int, str], float]:
        """Return the share of the makespan during which each of `rank_lanes` works. `WAITS` do not count as work.

        All shares are 0 if the makespan is, as when all spans have length 0 and the same time.
        """
        whole_s = self.makespan_s
        shares = {}
        for indices in self._by_lane():
            spans = self.take(indices)
            first = spans[0]
            shares[first.rank, first.lane] = spans.work().busy_s / whole_s if whole_s else 0.0
        return shares

    def work(self) -> Timeline:
        """Return the spans of actual work, without `WAITS` and without a profiler's labels and waits."""
        return self.select(kind=[kind for kind in self.kinds if kind not in _NO_WORK])

    def rank_lanes(self) -> list[tuple[int, str]]:
        """Return the pairs (rank, lane) that have spans, sorted by rank and then in the order of `lanes`."""
        firsts = [indices[0] for indices in self._by_lane()]  # one span of each lane
        return [(int(self.rank[first]), self.lanes[self.lane[first]]) for first in firsts]

    def _by_lane(self) -> list[NDArray[np.int64]]:
        """Return the indices of the spans of each lane of each rank; ranks and lanes are in order."""
        if not len(self):
            return []
        order = np.lexsort((self.lane, self.rank))  # by rank, and within a rank by lane
        is_new_lane = (np.diff(self.rank[order]) != 0) | (np.diff(self.lane[order]) != 0)  # from each span to the next
        return np.split(order, np.flatnonzero(is_new_lane) + 1)

    def throughput_per_s(self, kind: str) -> float:
        """Return how many items of a kind the ranks finish, in total, per second of the makespan.

        Several spans with one item on a rank count once, and the same item on another rank counts again. Each span
        without an item counts as its own item. The result is 0 if the makespan is 0. Raises ValueError if the timeline
        does not have this kind.
        """
        spans = self.select(kind=one_of("kind", kind, self.kinds))
        if not self.makespan_s:
            return 0.0
        has_item = spans.item != -1
        pairs = np.stack([spans.rank[has_item], spans.item[has_item]], axis=1)  # (number of spans, 2)
        num_items = len(np.unique(pairs, axis=0))
        num_without = int((~has_item).sum())
        return (num_items + num_without) / self.makespan_s

    def check(self, tolerance_s: float = 1e-9) -> None:
        """Raise TimelineError if two spans on the same lane of a rank overlap by more than `tolerance_s`.

        Spans of at most that length are marks rather than work, and may be anywhere. The error names the first two by
        rank, lane and start, whatever the order in which spans are stored.
        """
        number("tolerance_s", tolerance_s, 0)
        work = self.take(np.flatnonzero(self.stop_s - self.start_s > tolerance_s))
        # The place of each name in the alphabet, because the indices of lanes and kinds depend on the stored order.
        lane = np.argsort(np.argsort(work.lanes))[work.lane]
        kind = np.argsort(np.argsort(work.kinds))[work.kind]
        # By rank, lane and start; the other columns decide only between spans that start together.
        work = work.take(np.lexsort((kind, work.item, work.stop_s, work.start_s, lane, work.rank)))
        # In this order, a span that overlaps any later one of its lane also overlaps the next one.
        is_same_lane = (np.diff(work.rank) == 0) & (np.diff(work.lane) == 0)  # of each span and the next one
        overlaps = is_same_lane & (work.stop_s[:-1] - work.start_s[1:] > tolerance_s)
        if overlaps.any():
            index = int(overlaps.argmax())
            raise TimelineError(f"spans overlap on one lane: {work[index]} and {work[index + 1]}")

    def to_chrome_trace(self, path: str | os.PathLike[str], marks: Iterable[Mapping[str, Any]] = ()) -> Path:
        """Write a trace that chrome://tracing and Perfetto open, gzipped if the name ends in .gz; return its path.

        The file is written atomically, with one event per line, and `from_chrome_trace` restores the timeline bit for
        bit. Spans that run at once on a lane are on several threads of its name, as Perfetto drops one of two slices
        that cross. `marks` are additional events, such as flows: their `pid` is a rank, their `tid` the index of a lane
        in `rank_lanes`, and their `ts`, if they have one, is in microseconds. They are skipped when the trace is read.
        """
        rank_lanes = self.rank_lanes()
        events: list[dict[str, Any]] = []
        for rank in sorted({rank for rank, _ in rank_lanes}):
            events.append({"ph": _METADATA, "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
        index_of_lane = {rank_lane: index for index, rank_lane in enumerate(rank_lanes)}
        lane_of_span = np.array([index_of_lane[span.rank, span.lane] for span in self], np.int64)
        # A viewer counts whole nanoseconds. Rounded one by one, spans that touch could cross by one or two of them.
        slices = nested(lane_of_span, np.rint(self.start_s * 1e9), np.rint(self.stop_s * 1e9), resolution=2.0)
        threads = list(dict.fromkeys(zip(slices.place.tolist(), lane_of_span.tolist(), strict=True)))
        # The first threads of all lanes come first: marks name them by the indices of their lanes.
        first_threads = [(0, index) for index in range(len(rank_lanes))]
        tid_of_thread = {thread: tid for tid, thread in enumerate(dict.fromkeys([*first_threads, *sorted(threads)]))}
        for (_place, index), tid in tid_of_thread.items():
            rank, lane = rank_lanes[index]
            events.append({"ph": _METADATA, "name": "thread_name", "pid": rank, "tid": tid, "args": {"name": lane}})
            # Without this, viewers may sort the lanes by name. Threads of one lane stay next to each other.
            events.append(
                {"ph": _METADATA, "name": "thread_sort_index", "pid": rank, "tid": tid, "args": {"sort_index": index}}
            )
        columns = (slices.place, lane_of_span, slices.start, slices.stop)
        for span, place, index, start_ns, stop_ns in zip(self, *(column.tolist() for column in columns), strict=True):
            events.append(
                {
                    "ph": _COMPLETE,
                    "name": span.kind if span.item == -1 else f"{span.kind} {span.item}",
                    "cat": span.kind,
                    "pid": span.rank,
                    "tid": tid_of_thread[place, index],
                    "ts": _in_us(start_ns, _ADDED_TO_START_NS),
                    "dur": _in_us(stop_ns - start_ns, _ADDED_TO_LENGTH_NS),
                    # Those are rounded, so the exact times are stored, too.
                    "args": {"item": span.item, "start_s": span.start_s, "stop_s": span.stop_s},
                }
            )
        for mark in marks:
            event = dict(mark)
            if "ts" in event:  # metadata, such as the place of a lane, has no time
                event["ts"] = _in_us(round(event["ts"] * 1000), _ADDED_TO_START_NS)
            events.append(event)
        head = json.dumps({"format": _FORMAT, "version": _VERSION, "lanes": self.lanes, "kinds": self.kinds})
        body = ",\n".join(map(json.dumps, events))
        # In this order, because `events.is_ours` recognises the file by its first fields.
        content = f'{{"displayTimeUnit": "ms", "otherData": {head}, "traceEvents": [\n{body}\n]}}\n'.encode()
        if os.fspath(path).endswith(".gz"):
            content = gzip.compress(content, mtime=0)  # without the time, equal timelines make equal files
        return write_atomically(path, lambda file: file.write(content))

    @classmethod
    def from_chrome_trace(cls, path: str | os.PathLike[str], kind: str = "category") -> Timeline:
        """Read a trace. A trace that `to_chrome_trace` wrote is restored exactly.

        Any other trace, such as one of torch.profiler, belongs to one rank: the rank that it names, or 0. Its processes
        and threads become the lanes, and the category of an event (or its name if `kind` is "name") becomes the kind.
        NCCL kernels on the GPU have the name of their collective, a word of `COMMUNICATION`, as their kind; all other
        kernels have the kind "kernel". Complete events and pairs of B and E become spans; the first starts at 0. The
        profiler's span about itself (category "Trace") is left out. Events that cannot be read, such as those without a
        start or with a negative length, are skipped, and a warning states their number.

        Raises ValueError, which names the file, if it is not a trace, is cut short, has a newer version, or has no
        readable event; OSError if it cannot be opened.
        """
        one_of("kind", kind, ("category", "name"))
        file = TraceFile[_Entry](path, _Entry, _MOST_TRACE_BYTES)
        about_skipped = None
        with readable(path):
            entries = list[_Entry]()
            for piece in file.pieces():
                entries += piece
            head = file.fields.get("otherData")
            if isinstance(head, dict) and head.get("format") == _FORMAT:
                timeline = _own(entries, head)
            else:
                timeline, about_skipped = _foreign(entries, file.fields.get("distributedInfo"), kind)
        if about_skipped is not None:
            message = str(StorageError(path, about_skipped))  # with the path, as the errors have it
            warnings.warn(message, stacklevel=2)
        return timeline


# Added to whole nanoseconds, so that a viewer that rounds and one that truncates get the same number. A start needs
# more, because it can be large and a float rounds it more. A length has less, so that a slice hardly reaches into the
# next one.
_ADDED_TO_START_NS = 0.25
_ADDED_TO_LENGTH_NS = 0.001


def _in_us(whole_ns: float, added_ns: float) -> float:
    """Return whole nanoseconds in microseconds.

    >>> int(1_001 / 1_000 * 1_000), int(_in_us(1_001, 0.001) * 1_000)
    (1000, 1001)
    """
    return (whole_ns + added_ns) / 1000


class _ChromeArgs(msgspec.Struct, gc=False):
    """The arguments of an event that are read: `name` of metadata, the others of our own spans."""

    name: Any = None
    item: Any = None
    start_s: Any = None
    stop_s: Any = None


class _ChromeEvent(msgspec.Struct, gc=False):
    """The fields of an event that are read. Decoding only these is several times as fast as decoding all of them."""

    ph: Any = None
    name: Any = ""
    cat: Any = None
    pid: Any = None
    tid: Any = 0
    ts: Any = None
    dur: Any = 0.0
    args: _ChromeArgs | list[Any] | str | int | float | bool | None = None


# The phases (`ph`) of the Trace Event Format that are read; all others, such as flows and counters, are ignored.
_COMPLETE = "X"  # a span: its start is `ts`, and its length is `dur`
_BEGIN = "B"  # the start of a span, which has the name and the category
_END = "E"  # the end of the innermost span of the thread that has begun and not ended, so the pairs nest like brackets
_METADATA = "M"  # the name of a process or a thread, in `args`
# The category in which Kineto writes one span per profiler, as long as the whole recording. It is not work of the job.
_PROFILER_ITSELF = "Trace"

_Entry = _ChromeEvent | list[Any] | str | int | float | bool | None  # an event, or anything else, which is skipped
_Thread = tuple[Any, Any]  # pid and tid


def _own(entries: list[_Entry], head: dict[str, Any]) -> Timeline:
    """Return the timeline that `to_chrome_trace` wrote; `head` has the version and the order of lanes and kinds."""
    if head.get("version") != _VERSION:
        raise ValueError(f"version {head.get('version')!r}, this library reads version {_VERSION}")
    events = [of_type("an event", entry, _ChromeEvent) for entry in entries]
    lane_of_thread: dict[_Thread, str] = {}
    for event in events:
        if event.ph == _METADATA and event.name == "thread_name":  # a span may have this name, too
            lane_of_thread[event.pid, event.tid] = _name_in(event)
    spans = []
    for event in events:
        if event.ph == _COMPLETE:
            args = of_type("args", event.args, _ChromeArgs)
            lane = lane_of_thread[event.pid, event.tid]
            spans.append(Span(event.pid, lane, event.cat, args.item, args.start_s, args.stop_s))
    # Older files have no lists of names. Lanes and kinds are then in the order of the spans.
    return Timeline.of(spans).named(head.get("lanes", []), head.get("kinds", []))


class _ForeignSpans:
    """The spans in a trace of another program, as columns, the names in it, and the entries that were skipped."""

    def __init__(self) -> None:
        self.events: list[_ChromeEvent] = []  # with the name and category of each span
        self.threads: list[_Thread] = []
        self.start_us: list[float] = []
        self.length_us: list[float] = []
        self.names: dict[_Thread, str] = {}  # of threads, and of processes, whose tid is None here
        self.unfinished: dict[_Thread, list[_ChromeEvent]] = {}  # by thread: the begin events that have no end yet
        self.skipped: list[_Entry] = []

    def read(self, entry: _Entry) -> None:
        """Add the span or the name that an entry of the trace contains; an entry that cannot be read is skipped."""
        try:
            self._read(entry)
        except (ValueError, TypeError, OverflowError, IndexError):  # IndexError for an end event without a begin event
            self.skipped.append(entry)

    def _read(self, entry: _Entry) -> None:
        event = of_type("an event", entry, _ChromeEvent)
        pid = 0 if event.pid is None else event.pid  # a span may lack it, and a name may not, see `_name_in`
        thread = (pid, event.tid)
        unfinished = self.unfinished.setdefault(thread, [])
        if event.ph == _COMPLETE:
            if event.cat != _PROFILER_ITSELF:
                self._add(event, thread, float(event.ts), float(event.dur))
        elif event.ph == _BEGIN:
            unfinished.append(event)
        elif event.ph == _END:
            begin_event = unfinished.pop()  # the innermost, so the one that this event ends
            if begin_event.cat != _PROFILER_ITSELF:
                start_us = float(begin_event.ts)
                self._add(begin_event, thread, start_us, float(event.ts) - start_us)
        elif event.ph == _METADATA and event.name == "process_name":
            self.names[event.pid, None] = _name_in(event)
        elif event.ph == _METADATA and event.name == "thread_name":
            self.names[event.pid, event.tid] = _name_in(event)

    def _add(self, event: _ChromeEvent, thread: _Thread, start_us: float, length_us: float) -> None:
        """Add a span. `event` has its name and category."""
        if not (abs(start_us) <= _LATEST_US and 0 <= length_us <= _LATEST_US):  # NaN is refused, too
            raise ValueError  # so that `read` skips the entry
        self.events.append(event)
        self.threads.append(thread)
        self.start_us.append(start_us)
        self.length_us.append(length_us)

    def skip_unfinished(self) -> None:
        """Skip the begin events without an end, once all entries have been read."""
        for events in self.unfinished.values():
            self.skipped += events


def _foreign(entries: list[_Entry], info: Any, kind: str) -> tuple[Timeline, str | None]:
    """Return the timeline, and a sentence about the events that were skipped, or None if there are none.

    `info` is the trace's "distributedInfo", in which torch.profiler states the rank.
    """
    stated_rank = info.get("rank") if isinstance(info, dict) else None
    rank = 0 if stated_rank is None else whole("distributedInfo's rank", stated_rank, 0, _MOST_RANK)
    spans = _ForeignSpans()
    for entry in entries:
        spans.read(entry)
    spans.skip_unfinished()
    about_skipped = None
    if spans.skipped:
        total = count_of(len(entries), "event")
        about_skipped = f"skipped {len(spans.skipped)} of {total}, the first: {spans.skipped[0]!r:.200}"
        if not spans.events:
            raise ValueError(f"no event that can be read; {about_skipped}")
    lane_of_thread = _lane_names(set(spans.threads), spans.names)
    lanes, lane = _encoded([lane_of_thread[thread] for thread in spans.threads])
    if kind == "category":
        kinds, kind_indices = _encoded([_kind(event) for event in spans.events])
    else:
        kinds, kind_indices = _encoded([str(event.name) for event in spans.events])
    # Absolute times need all bits of a float, so the first start is subtracted before the times are scaled.
    start_us = np.array(spans.start_us) - min(spans.start_us, default=0.0)
    stop_us = start_us + np.array(spans.length_us)
    timeline = Timeline(
        rank=np.full(len(spans.events), rank),
        lane=lane,
        kind=kind_indices,
        item=np.full(len(spans.events), -1),
        start_s=start_us / 1e6,
        stop_s=stop_us / 1e6,
        lanes=lanes,
        kinds=kinds,
    )
    return timeline, about_skipped


def _name_in(event: _ChromeEvent) -> str:
    """Return the name that a metadata event gives to its process or thread."""
    if not isinstance(event.args, _ChromeArgs) or event.args.name is None or event.pid is None:
        raise ValueError(f"{event.name} of process {event.pid!r} must give a name")
    return str(event.args.name)


def _kind(event: _ChromeEvent) -> str:
    """Return the category of an event, or its name if it has none; for kernels see `collective`."""
    if str(event.cat).lower() == "kernel":  # older profilers write "Kernel"
        return collective(str(event.name))
    return str(event.cat or event.name)


@lru_cache(maxsize=4096)
def collective(name: str) -> str:
    """Return the collective of a kernel of NCCL, and "kernel" for any other kernel.

    >>> collective("ncclDevKernel_AllReduce_Sum_f32_RING_LL"), collective("sgemm")
    ('allreduce', 'kernel')
    """
    function_name = name.partition("(")[0]  # the types of its arguments follow
    plain = function_name.lower().replace("_", "")
    if plain.startswith("nccl"):
        for word in Timeline.COMMUNICATION:
            if word.replace("_", "") in plain:
                return word
    return "kernel"


def _lane_names(threads: set[_Thread], names: Mapping[_Thread, str]) -> dict[_Thread, str]:
    """Return a lane for each thread: "process, thread", with their numbers if several threads would share it."""
    short_names = {}
    for pid, tid in threads:
        process = names.get((pid, None), f"process {pid}")
        short_names[pid, tid] = f"{process}, {names.get((pid, tid), tid)}"
    num_threads = Counter(short_names.values())
    lanes = {}
    for (pid, tid), name in short_names.items():
        lanes[pid, tid] = name if num_threads[name] == 1 else f"{name} ({pid}/{tid})"
    return lanes


def _encoded(words: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the different words in the order of their first occurrence, and the index of each word among them."""
    index_of_word: dict[str, int] = {}
    for word in words:
        if word not in index_of_word:
            index_of_word[word] = len(index_of_word)
    return tuple(index_of_word), np.array([index_of_word[word] for word in words], dtype=np.int64)


def merge(start_s: Times, stop_s: Times) -> Intervals:
    """Return the union of intervals as disjoint intervals in order; intervals that touch become one.

    >>> start_s, stop_s = merge(np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 6.0]))
    >>> start_s.tolist(), stop_s.tolist()
    ([0.0, 5.0], [3.0, 6.0])
    """
    order = np.argsort(start_s, kind="stable")
    starts = start_s[order]
    latest_stops = np.maximum.accumulate(stop_s[order])  # of this interval and all that start before it
    if not starts.size:
        return starts, latest_stops
    begins_union = np.append(True, starts[1:] > latest_stops[:-1])  # it starts after all earlier ones have stopped
    ends_union = np.append(begins_union[1:], True)
    return starts[begins_union], latest_stops[ends_union]


def intersect(first: Intervals, second: Intervals) -> Intervals:
    """Return the intersection of two unions of intervals, which are as `merge` returns them.

    >>> a, b = (np.array([0.0, 5.0]), np.array([3.0, 6.0])), (np.array([2.0]), np.array([5.5]))
    >>> [times.tolist() for times in intersect(a, b)]
    [[2.0, 5.0], [3.0, 5.5]]
    """
    edges = np.unique(np.concatenate([*first, *second]))
    starts = edges[:-1]
    stops = edges[1:]
    middles = (starts + stops) / 2  # of the pieces between two edges, each of which is inside or outside as a whole
    is_inside = np.ones(starts.size, dtype=bool)
    for union_starts, union_stops in (first, second):
        num_begun = np.searchsorted(union_starts, middles, side="right")  # intervals that start at or before the middle
        latest_stops = np.append(-np.inf, union_stops)[num_begun]  # that of the last of them, or -inf if there is none
        is_inside &= middles < latest_stops
    return merge(starts[is_inside], stops[is_inside])


def _length_s(intervals: Intervals) -> float:
    """Return the total length of disjoint intervals."""
    return float((intervals[1] - intervals[0]).sum())
