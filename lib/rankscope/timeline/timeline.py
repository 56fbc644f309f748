"""`Timeline`: what ran when, on which lane of which rank. A simulation and a real run both give one.

A timeline is stored as a Chrome/Perfetto trace: JSON, in the Trace Event Format, with times in microseconds. A rank is
a process there, a lane a thread, a kind a category. Traces of others, torch.profiler's say, are read too.
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
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, overload

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.checks import count_of, is_scalar, number, of_type, one_of, several, whole
from ..common.frozen import checked, evolve, frozen
from ..common.storage import StorageError, write_atomically
from .events import TraceFile, readable

Times = NDArray[np.float64]
Intervals = tuple[Times, Times]  # starts and stops

WAITS = ("blocked", "barrier", "wait")  # kinds of span in which a lane waits: for room, for other ranks, for an item
_NO_WORK = (*WAITS, "gpu_user_annotation", "cuda_sync")  # and a profiler's labels and waits on a GPU's streams
_LATEST_US = 2.0**63  # no clock counts further than 64 bits
_COLUMNS = ("rank", "lane", "kind", "item", "start_s", "stop_s")
_FORMAT, _VERSION = "rankscope.timeline", 1
_MOST_TRACE_BYTES = 1 << 29  # unpacked
_MOST_EVENTS = 1 << 22  # of a trace; they take about 1.3 GiB to read


class TimelineError(ValueError):
    """Two spans run on one lane at the same time."""


class Span(NamedTuple):
    """One piece of work; `item` is the batch, chunk or step that it belongs to, -1 where it belongs to none."""

    rank: int
    lane: str
    kind: str
    item: int
    start_s: float
    stop_s: float


def column(name: str, values: ArrayLike) -> NDArray[Any]:
    """A read-only column of the right type that nobody else can write to; it is copied only where somebody could."""
    given = np.asarray(values)
    wanted = np.float64 if name.endswith("_s") else np.int64
    if given.dtype.kind == "u" and wanted is np.int64 and (given > np.iinfo(np.int64).max).any():
        raise ValueError(f"{name} must hold whole numbers of at most 2**63 - 1, got {given.max()}")
    if given.ndim != 1 or (given.size and not np.can_cast(given.dtype, wanted, casting="same_kind")):
        raise ValueError(f"{name} must be a column of {wanted.__name__}, got {given.dtype} of shape {given.shape}")
    base: Any = given
    while isinstance(base, np.ndarray) and not base.flags.writeable:
        base = base.base
    return _read_only(given.view() if given.dtype == wanted and base is None else given.astype(wanted))


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


def _listed(name: str, wanted: Any) -> list[Any]:
    """One value or several, as a list."""
    return [wanted] if isinstance(wanted, str) or is_scalar(wanted) else several(name, wanted)


def words(name: str, words: Iterable[str]) -> tuple[str, ...]:
    return tuple(of_type(name, word, str) for word in words)


@frozen(eq=False)
class Timeline:
    """Spans held as columns, an entry a span, in any order; `lane` and `kind` are places in `lanes` and `kinds`.

    Seconds count from any origin, the same for all spans. The columns are read-only. Raises ValueError where columns
    differ in length, a place names no lane or kind, a name is no text, a time is not finite, or a span stops before it
    starts.
    """

    # kinds that NCCL's kernels get in a trace of torch.profiler; "nccl" where the name says no more
    COMMUNICATION: ClassVar = (
        *("allreduce", "reduce_scatter", "allgather", "alltoall", "broadcast", "reduce", "send_recv"),
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
            raise ValueError(f"a timeline's columns must be of one length, got {lengths}")
        for name, places, names in (("lane", self.lane, self.lanes), ("kind", self.kind, self.kinds)):
            if places.size and not 0 <= places.min() <= places.max() < len(names):
                outside = places[(places < 0) | (places >= len(names))][0]
                raise ValueError(f"{name} must hold places from 0 to {len(names) - 1} in {name}s, got {outside}")
        good = np.isfinite(self.start_s) & np.isfinite(self.stop_s) & (self.stop_s >= self.start_s)
        if not good.all():
            raise ValueError(f"a span must end at or after its start, at finite times, got {self[int(good.argmin())]}")

    @classmethod
    def of(cls, spans: Iterable[Span]) -> Timeline:
        """Make a timeline of spans, kept in the order they come in.

        >>> Timeline.of([Span(0, "gpu", "compute", 0, 1.0, 3.0)]).makespan_s
        2.0
        """
        columns: list[Any] = list(zip(*spans, strict=True)) or [()] * len(_COLUMNS)
        rank, lane, kind, item, start_s, stop_s = columns
        (lanes, lane_places), (kinds, kind_places) = _encoded(lane), _encoded(kind)
        return cls(rank, lane_places, kind_places, item, start_s, stop_s, lanes, kinds)

    @classmethod
    def concat(cls, timelines: Sequence[Timeline]) -> Timeline:
        """Put timelines together, those of several ranks say; all must count seconds from the same origin."""
        if not timelines:
            return cls.of([])
        columns: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in timelines]) for name in _COLUMNS}
        names: dict[str, Any] = {}
        for name in ("lane", "kind"):
            known = [getattr(one, f"{name}s") for one in timelines]
            names[f"{name}s"], places = _encoded([word for words in known for word in words])
            first = np.repeat(np.cumsum([0, *map(len, known)])[:-1], [len(one) for one in timelines])
            columns[name] = places[first + columns[name]]
        for column in columns.values():
            _read_only(column)
        return cls(**columns, **names)

    def __repr__(self) -> str:
        ranks, lanes = np.unique(self.rank).size, len(self.rank_lanes())
        counts = count_of(len(self), "span"), count_of(ranks, "rank"), count_of(lanes, "lane")
        return f"<Timeline: {', '.join(counts)}, {self.makespan_s:.3g} s>"

    def __len__(self) -> int:
        return self.start_s.size

    @overload
    def __getitem__(self, place: int) -> Span: ...

    @overload
    def __getitem__(self, place: slice) -> Timeline: ...

    def __getitem__(self, place: int | slice) -> Span | Timeline:
        if isinstance(place, slice):
            return self.take(np.arange(len(self))[place])
        lane, kind = self.lanes[self.lane[place]], self.kinds[self.kind[place]]
        times = float(self.start_s[place]), float(self.stop_s[place])
        return Span(int(self.rank[place]), lane, kind, int(self.item[place]), *times)

    def __iter__(self) -> Iterator[Span]:
        return (self[place] for place in range(len(self)))

    def select(
        self,
        rank: int | Iterable[int] | None = None,
        lane: str | Iterable[str] | None = None,
        kind: str | Iterable[str] | None = None,
        item: int | Iterable[int] | None = None,
        between_s: tuple[float, float] | None = None,
    ) -> Timeline:
        """Return the spans that fit everything asked for; those that reach out of `between_s` are cut to it.

        One value or several of each: ``select(lane=["stream 7", "stream 20"]).busy_s`` is the time in which at least
        one of the two works. A span without length counts as inside the window where it lies on its edge. Raises
        ValueError for a window that ends before it starts. A lane or kind that no span has gives an empty timeline.
        """
        keep = np.ones(len(self), dtype=bool)
        for name, wanted in (("rank", rank), ("item", item)):
            if wanted is not None:
                keep &= np.isin(getattr(self, name), [whole(name, one) for one in _listed(name, wanted)])
        for name, words in (("lane", lane), ("kind", kind)):
            if words is not None:
                known, chosen = getattr(self, f"{name}s"), set(_listed(name, words))
                keep &= np.array([word in chosen for word in known], bool)[getattr(self, name)]
        if between_s is None:
            return self.take(np.flatnonzero(keep))
        low, high = (number("between_s", time, high=math.inf) for time in several("between_s", between_s))
        if not low <= high:
            raise ValueError(f"between_s must be a window from earlier to later, got {between_s}")
        start_s, stop_s = np.maximum(self.start_s, low), np.minimum(self.stop_s, high)
        keep &= (start_s < stop_s) | ((self.start_s == self.stop_s) & (start_s == stop_s))
        return evolve(self.take(np.flatnonzero(keep)), start_s=start_s[keep], stop_s=stop_s[keep])

    def take(self, places: NDArray[np.int64]) -> Timeline:
        """Return the spans at these places, in this order."""
        taken = object.__new__(Timeline)  # without checks: what is in a timeline has been checked
        for name in _COLUMNS:
            object.__setattr__(taken, name, _read_only(getattr(self, name)[places]))
        for name in ("lanes", "kinds"):
            object.__setattr__(taken, name, getattr(self, name))
        return taken

    def named(self, lanes: Sequence[str], kinds: Sequence[str]) -> Timeline:
        """Return the same spans with these lanes and kinds first, in this order, whether they have spans or not."""
        return Timeline.concat([evolve(Timeline.of([]), lanes=lanes, kinds=kinds), self])

    def shifted(self, seconds: float) -> Timeline:
        """Return the same spans, `seconds` later."""
        seconds = number("seconds", seconds)
        return evolve(self, start_s=self.start_s + seconds, stop_s=self.stop_s + seconds)

    @property
    def begin_s(self) -> float:
        """The start of the first span, 0 for an empty timeline."""
        return float(self.start_s.min()) if len(self) else 0.0

    @property
    def end_s(self) -> float:
        """The end of the last span, 0 for an empty timeline."""
        return float(self.stop_s.max()) if len(self) else 0.0

    @property
    def makespan_s(self) -> float:
        """Seconds from the start of the first span to the end of the last."""
        return self.end_s - self.begin_s

    @property
    def busy_s(self) -> float:
        """Seconds in which at least one span runs; select a lane, kind or rank first to ask for its own."""
        return _length_s(merge(self.start_s, self.stop_s))

    def overlap_s(self, one: str | Iterable[str], other: str | Iterable[str]) -> float:
        """Return the seconds in which spans of two kinds run at once, on any lanes of the same rank, over all ranks.

        Either may be several kinds, as in ``overlap_s(Timeline.COMMUNICATION, "kernel")``. Raises ValueError where the
        timeline has none of them.
        """
        total_s, pair = 0.0, []
        for kinds in (_listed("kind", one), _listed("kind", other)):
            if not any(kind in self.kinds for kind in kinds):
                one_of("kind", kinds[0] if len(kinds) == 1 else kinds, self.kinds)
            pair.append(self.select(kind=kinds))
        for rank in np.unique(self.rank).tolist():
            own = (spans.select(rank=rank) for spans in pair)
            total_s += _length_s(intersect(*(merge(spans.start_s, spans.stop_s) for spans in own)))
        return total_s

    def utilisation(self) -> dict[tuple[int, str], float]:
        """Return for each of `rank_lanes` the share of the makespan in which it works, `WAITS` not counted."""
        whole_s = self.makespan_s
        shares = {}
        for places in self._by_lane():
            spans = self.take(places)
            shares[spans[0].rank, spans[0].lane] = spans.work().busy_s / whole_s if whole_s else 0.0
        return shares

    def work(self) -> Timeline:
        """Return the spans in which something is done: without `WAITS`, and a profiler's labels and waits."""
        return self.select(kind=[kind for kind in self.kinds if kind not in _NO_WORK])

    def rank_lanes(self) -> list[tuple[int, str]]:
        """Return the (rank, lane) that have spans: by rank, then in the order of `lanes`."""
        firsts = [places[0] for places in self._by_lane()]
        return [(int(self.rank[first]), self.lanes[self.lane[first]]) for first in firsts]

    def _by_lane(self) -> list[NDArray[np.int64]]:
        """The places of the spans of each lane of each rank."""
        order = np.lexsort((self.lane, self.rank))
        cuts = np.flatnonzero((np.diff(self.rank[order]) != 0) | (np.diff(self.lane[order]) != 0)) + 1
        return np.split(order, cuts) if len(self) else []

    def throughput_per_s(self, kind: str) -> float:
        """Return the number of different items of a kind that a second of the makespan finishes, over all ranks.

        Each span without an item counts for itself. Raises ValueError for a kind that the timeline does not have.
        """
        chosen = self.select(kind=one_of("kind", kind, self.kinds))
        named = chosen.item != -1
        pairs = np.unique(np.stack([chosen.rank[named], chosen.item[named]], axis=1), axis=0)
        return (len(pairs) + int((~named).sum())) / self.makespan_s if self.makespan_s else 0.0

    def check(self, tolerance_s: float = 1e-9) -> None:
        """Raise TimelineError where two spans of one lane of one rank overlap by more than `tolerance_s`.

        Spans no longer than that are marks rather than work, and may lie anywhere.
        """
        number("tolerance_s", tolerance_s, 0)
        work = self.take(np.flatnonzero(self.stop_s - self.start_s > tolerance_s))
        order = np.lexsort((work.stop_s, work.start_s, work.lane, work.rank))
        same = (np.diff(work.rank[order]) == 0) & (np.diff(work.lane[order]) == 0)
        wrong = same & (work.stop_s[order][:-1] - work.start_s[order][1:] > tolerance_s)
        if wrong.any():
            place = int(wrong.argmax())
            raise TimelineError(f"spans overlap on one lane: {work[order[place]]} and {work[order[place + 1]]}")

    def to_chrome_trace(self, path: str | os.PathLike[str], marks: Iterable[Mapping[str, Any]] = ()) -> Path:
        """Write a trace that chrome://tracing and Perfetto open, gzipped where the name ends in .gz; return its path.

        It is written whole or not at all, an event a line. Read again, it is the same to the bit. `marks` are further
        events, such as flows: their `pid` is a rank, their `tid` the place of a lane in `rank_lanes`, their `ts` in
        microseconds. Reading leaves them out.
        """
        lanes = self.rank_lanes()
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
            for rank in sorted({rank for rank, _ in lanes})
        ]
        for tid, (rank, lane) in enumerate(lanes):
            events.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": {"name": lane}})
            events.append(
                {"ph": "M", "name": "thread_sort_index", "pid": rank, "tid": tid, "args": {"sort_index": tid}}
            )
        thread = {lane: tid for tid, lane in enumerate(lanes)}
        for span in self:
            name = span.kind if span.item == -1 else f"{span.kind} {span.item}"
            place = {"pid": span.rank, "tid": thread[span.rank, span.lane]}
            times = {"ts": span.start_s * 1e6, "dur": (span.stop_s - span.start_s) * 1e6}
            args = {"item": span.item, "start_s": span.start_s, "stop_s": span.stop_s}
            events.append({"ph": "X", "name": name, "cat": span.kind, **place, **times, "args": args})
        events += map(dict, marks)
        head = json.dumps({"format": _FORMAT, "version": _VERSION, "lanes": self.lanes, "kinds": self.kinds})
        body = ",\n".join(map(json.dumps, events))
        content = f'{{"displayTimeUnit": "ms", "otherData": {head}, "traceEvents": [\n{body}\n]}}\n'.encode()
        if os.fspath(path).endswith(".gz"):
            content = gzip.compress(content, mtime=0)
        return write_atomically(path, lambda file: file.write(content))

    @classmethod
    def from_chrome_trace(cls, path: str | os.PathLike[str], kind: str = "category") -> Timeline:
        """Read a trace. Ours comes back as it was.

        Another one, torch.profiler's say, is one rank's: the rank that it names, or 0. Its processes and threads
        become the lanes, and the category of an event (or with ``kind="name"`` its name) becomes the kind; only
        NCCL's kernels on the GPU are called by their collective, with the words of `COMMUNICATION`: all other kernels
        are of kind "kernel". Complete events and pairs of B and E become spans; the first starts at 0. The span that
        the profiler writes about itself (category "Trace") is left out. Events that cannot be read, those without a
        start or of negative length say, are skipped, and a warning says how many.

        Raises ValueError naming the file where it is no trace, cut short, of a newer version of ours, or without one
        event that can be read, and OSError where it cannot be opened.
        """
        one_of("kind", kind, ("category", "name"))
        file = TraceFile[_Entry](path, _Entry, _MOST_TRACE_BYTES)
        with readable(path):
            events = list[_Entry]()
            for piece in file.pieces():
                events += piece
                if len(events) > _MOST_EVENTS:
                    raise ValueError(f"it has more than {_MOST_EVENTS} events")
            head = file.fields.get("otherData")
            if not isinstance(head, dict) or head.get("format") != _FORMAT:
                timeline, skipped = _foreign(events, file.fields.get("distributedInfo"), kind)
            else:
                timeline, skipped = _own(events, head), ""
        if skipped:
            warnings.warn(str(StorageError(path, skipped)), stacklevel=2)
        return timeline


class _ChromeArgs(msgspec.Struct, gc=False):
    """Of an event's arguments those that are read: `name` of metadata, the others of our own spans."""

    name: Any = None
    item: Any = None
    start_s: Any = None
    stop_s: Any = None


class _ChromeEvent(msgspec.Struct, gc=False):
    """Of an event of a trace the fields that are read; decoding only these is several times as fast as all of them."""

    ph: Any = None
    name: Any = ""
    cat: Any = None
    pid: Any = None
    tid: Any = 0
    ts: Any = None
    dur: Any = 0.0
    args: _ChromeArgs | list[Any] | str | int | float | bool | None = None


_Entry = _ChromeEvent | list[Any] | str | int | float | bool | None  # an event, or what is none and is skipped


def _own(entries: list[_Entry], head: dict[str, Any]) -> Timeline:
    if head.get("version") != _VERSION:
        raise ValueError(f"version {head.get('version')!r}, this library reads version {_VERSION}")
    events = [of_type("an event", one, _ChromeEvent) for one in entries]
    lanes = {(one.pid, one.tid): _given_name(one) for one in events if one.name == "thread_name"}
    spans = []
    for one in events:
        if one.ph == "X":
            args = of_type("args", one.args, _ChromeArgs)
            spans.append(Span(one.pid, lanes[one.pid, one.tid], one.cat, args.item, args.start_s, args.stop_s))
    return Timeline.of(spans).named(*([str(name) for name in head.get(column, [])] for column in ("lanes", "kinds")))


def _foreign(entries: list[_Entry], info: Any, kind: str) -> tuple[Timeline, str]:
    """The timeline, and in words how many events were skipped; no words where none were."""
    named = info.get("rank") if isinstance(info, dict) else None
    rank = 0 if named is None else whole("distributedInfo's rank", named, 0, 2**31 - 1)
    names: dict[tuple[Any, Any], str] = {}
    begun: dict[tuple[Any, Any], list[_ChromeEvent]] = {}  # the B events of each thread that have no E yet
    events, threads, start_us, length_us = list[_ChromeEvent](), list[tuple[Any, Any]](), list[float](), list[float]()
    odd: list[_Entry] = []
    for one in entries:
        try:
            event = of_type("an event", one, _ChromeEvent)
            thread = 0 if event.pid is None else event.pid, event.tid
            begun_here = begun.setdefault(thread, [])
            if event.ph == "M" and event.name in ("process_name", "thread_name"):
                names[event.pid, event.tid if event.name == "thread_name" else None] = _given_name(event)
            elif event.ph == "B":
                begun_here.append(event)
            elif event.ph in ("X", "E") and event.cat != "Trace":
                first = event if event.ph == "X" else begun_here.pop()
                start = float(first.ts)
                length = float(event.dur) if event.ph == "X" else float(event.ts) - start
                if not (abs(start) <= _LATEST_US and 0 <= length <= _LATEST_US):
                    raise ValueError
                events.append(first)
                threads.append(thread)
                start_us.append(start)
                length_us.append(length)
        except (ValueError, TypeError, OverflowError, IndexError):
            odd.append(one)
    odd += [event for left in begun.values() for event in left]
    total = count_of(len(entries), "event")
    skipped = f"skipped {len(odd)} of {total}, the first: {odd[0]!r:.200}" if odd else ""
    if odd and not events:
        raise ValueError(f"no event that can be read; {skipped}")
    lane_of = _lane_names(set(threads), names)
    lanes, lane = _encoded([lane_of[thread] for thread in threads])
    kinds, kind_places = _encoded([_kind(one) if kind == "category" else str(one.name) for one in events])
    # the first start is taken off before scaling: absolute times have no bits to spare
    starts_us = np.array(start_us) - min(start_us, default=0.0)
    stops_us = starts_us + np.array(length_us)
    zero = np.zeros(len(events), dtype=np.int64)
    timeline = Timeline(zero + rank, lane, kind_places, zero - 1, starts_us / 1e6, stops_us / 1e6, lanes, kinds)
    return timeline, skipped


def _given_name(event: _ChromeEvent) -> str:
    """The name that a metadata event gives to its process or thread."""
    if not isinstance(event.args, _ChromeArgs) or event.args.name is None or event.pid is None:
        raise ValueError(f"{event.name} of process {event.pid!r} must give a name")
    return str(event.args.name)


def _kind(event: _ChromeEvent) -> str:
    """The category of an event, its name where it has none; of NCCL's kernels the collective that they work on."""
    if str(event.cat).lower() == "kernel":  # older profilers write "Kernel"
        return collective(str(event.name))
    return str(event.cat or event.name)


@lru_cache(maxsize=4096)
def collective(name: str) -> str:
    """What a kernel of this name works on: "ncclDevKernel_AllReduce_Sum_f32_RING_LL" on "allreduce"."""
    plain = name.partition("(")[0].lower().replace("_", "")
    words = Timeline.COMMUNICATION if plain.startswith("nccl") else ()
    return next((word for word in words if word.replace("_", "") in plain), "kernel")


def _lane_names(threads: set[tuple[Any, Any]], names: dict[tuple[Any, Any], str]) -> dict[tuple[Any, Any], str]:
    """A lane for each thread: "process, thread", with their numbers where two threads would share it."""
    plain = {
        (pid, tid): f"{names.get((pid, None), f'process {pid}')}, {names.get((pid, tid), tid)}" for pid, tid in threads
    }
    times = Counter(plain.values())
    return {(pid, tid): name if times[name] == 1 else f"{name} ({pid}/{tid})" for (pid, tid), name in plain.items()}


def _encoded(words: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The different words in the order they first come in, and the place of each word among them."""
    places = {word: place for place, word in enumerate(dict.fromkeys(words))}
    return tuple(places), np.array([places[word] for word in words], dtype=np.int64)


def merge(start_s: Times, stop_s: Times) -> Intervals:
    """Return the union of intervals as disjoint intervals in order; those that touch become one.

    >>> start_s, stop_s = merge(np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 6.0]))
    >>> start_s.tolist(), stop_s.tolist()
    ([0.0, 5.0], [3.0, 6.0])
    """
    order = np.argsort(start_s, kind="stable")
    starts, reach = start_s[order], np.maximum.accumulate(stop_s[order])
    opens = np.append(True, starts[1:] > reach[:-1])[: starts.size]
    closes = np.append(opens[1:], True)[: starts.size]
    return starts[opens], reach[closes]


def intersect(one: Intervals, other: Intervals) -> Intervals:
    """Return where two unions, as `merge` gives them, both are.

    >>> a, b = (np.array([0.0, 5.0]), np.array([3.0, 6.0])), (np.array([2.0]), np.array([5.5]))
    >>> [times.tolist() for times in intersect(a, b)]
    [[2.0, 5.0], [3.0, 5.5]]
    """
    edges = np.unique(np.concatenate([*one, *other]))
    starts, stops = edges[:-1], edges[1:]
    middles = (starts + stops) / 2
    both = np.ones(starts.size, dtype=bool)
    for begins, ends in (one, other):
        place = np.searchsorted(begins, middles, side="right") - 1
        both &= (place >= 0) & (middles < np.append(ends, -np.inf)[place])
    return merge(starts[both], stops[both])


def _length_s(intervals: Intervals) -> float:
    return float((intervals[1] - intervals[0]).sum())
