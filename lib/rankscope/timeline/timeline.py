"""`Timeline`: spans as columns, and the figures that a simulation and a real run are compared by."""

from __future__ import annotations

import gzip
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..values.checks import count_of, number, of_type, one_of, several, whole
from ..values.storage import write_atomically

if TYPE_CHECKING:
    import pandas as pd

# Kinds of span in which a lane waits: for room, for other ranks, for an item.
WAITS = ("blocked", "barrier", "wait")
_COLUMNS = ("rank", "lane", "kind", "item", "start_s", "stop_s")


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


Times = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Timeline:
    """Spans held as columns, an entry a span, in any order; `lane` and `kind` are places in `lanes` and `kinds`.

    Seconds count from any origin, the same for all spans. The columns are read-only. Raises ValueError where columns
    differ in length, a place names no lane or kind, a name is no text, a time is not finite, or a span stops before it
    starts.
    """

    rank: NDArray[np.int64]
    lane: NDArray[np.int64]
    kind: NDArray[np.int64]
    item: NDArray[np.int64]
    start_s: Times
    stop_s: Times
    lanes: tuple[str, ...]
    kinds: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in _COLUMNS:
            object.__setattr__(self, name, checked(name, getattr(self, name)))
        lengths = {name: getattr(self, name).size for name in _COLUMNS}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"a timeline's columns must be of one length, got {lengths}")
        for name, names in (("lane", self.lanes), ("kind", self.kinds)):
            object.__setattr__(self, f"{name}s", tuple(of_type(f"{name}s", word, str) for word in names))
            places = getattr(self, name)
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
        rows = list(spans)
        columns: dict[str, Any] = {name: [row[place] for row in rows] for place, name in enumerate(_COLUMNS)}
        lanes, columns["lane"] = encoded(columns["lane"])
        kinds, columns["kind"] = encoded(columns["kind"])
        return cls(**columns, lanes=lanes, kinds=kinds)

    @classmethod
    def concat(cls, timelines: Sequence[Timeline]) -> Timeline:
        """Put timelines together, those of several ranks say; all must count seconds from the same origin."""
        columns: dict[str, Any] = {
            name: settled(np.concatenate([getattr(timeline, name) for timeline in timelines] or [np.empty(0)]))
            for name in _COLUMNS
        }
        names: dict[str, Any] = {}
        for name in ("lane", "kind"):
            known = [getattr(timeline, f"{name}s") for timeline in timelines]
            names[f"{name}s"], places = encoded([word for words in known for word in words])
            firsts = np.cumsum([0, *map(len, known)])
            moved = [places[first + getattr(t, name)] for first, t in zip(firsts, timelines, strict=False)]
            columns[name] = settled(np.concatenate(moved)) if moved else np.empty(0)
        return cls(**columns, **names)

    def __repr__(self) -> str:
        ranks, lanes = np.unique(self.rank).size, len(set(zip(self.rank.tolist(), self.lane.tolist(), strict=True)))
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
        rank: int | None = None,
        lane: str | None = None,
        kind: str | None = None,
        item: int | None = None,
        between_s: tuple[float, float] | None = None,
    ) -> Timeline:
        """Return the spans that fit everything asked for; those that reach out of `between_s` are cut to it.

        A span without length counts as inside the window where it lies on its edge. Raises ValueError for a window
        that ends before it starts. A lane or kind that no span has gives an empty timeline.
        """
        rank, item = (None if n is None else whole("rank and item", n) for n in (rank, item))
        keep = np.ones(len(self), dtype=bool)
        for wanted, column, names in ((rank, self.rank, None), (item, self.item, None), (lane, self.lane, self.lanes),
                                      (kind, self.kind, self.kinds)):  # fmt: skip
            if wanted is not None:
                keep &= column == (wanted if names is None else names.index(wanted) if wanted in names else -1)
        if between_s is None:
            return self.take(np.flatnonzero(keep))
        low, high = (number("between_s", time, high=math.inf) for time in several("between_s", between_s))
        if not low <= high:
            raise ValueError(f"between_s must be a window from earlier to later, got {between_s}")
        start_s, stop_s = np.maximum(self.start_s, low), np.minimum(self.stop_s, high)
        keep &= (start_s < stop_s) | ((self.start_s == self.stop_s) & (start_s == stop_s))
        found = self.take(np.flatnonzero(keep))
        return replace(found, start_s=start_s[keep], stop_s=stop_s[keep])

    def take(self, places: NDArray[np.int64]) -> Timeline:
        """Return the spans at these places, in this order."""
        columns: dict[str, Any] = {name: settled(getattr(self, name)[places]) for name in _COLUMNS}
        return replace(self, **columns)

    def named(self, lanes: Sequence[str], kinds: Sequence[str]) -> Timeline:
        """Return the same spans with these lanes and kinds first, in this order, whether they have spans or not."""
        none, never = np.empty(0, dtype=np.int64), np.empty(0)
        return Timeline.concat([Timeline(none, none, none, none, never, never, tuple(lanes), tuple(kinds)), self])

    def shifted(self, seconds: float) -> Timeline:
        """Return the same spans, `seconds` later."""
        seconds = number("seconds", seconds)
        return replace(self, start_s=self.start_s + seconds, stop_s=self.stop_s + seconds)

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
        """Seconds in which at least one span runs; select a lane, kind or rank before to ask for its own."""
        return length_s(self._union())

    @property
    def idle_s(self) -> float:
        """Seconds of the makespan in which no span runs."""
        return self.makespan_s - self.busy_s

    def overlap_s(self, one: str, other: str) -> float:
        """Return the seconds in which spans of two kinds run at once, on any lanes of the same rank, over all ranks.

        Raises ValueError for a kind that the timeline does not have.
        """
        one, other = (one_of("kind", kind, self.kinds) for kind in (one, other))
        ranks = (self.select(rank=int(rank)) for rank in np.unique(self.rank))
        return sum(length_s(intersect(r.select(kind=one)._union(), r.select(kind=other)._union())) for r in ranks)

    def utilisation(self) -> dict[tuple[int, str], float]:
        """Return for each of `rank_lanes` the share of the makespan in which it works, `WAITS` not counted."""
        whole = self.makespan_s
        return {(rank, lane): spans.work().busy_s / whole if whole else 0.0 for rank, lane, spans in self.by_lane()}

    def work(self) -> Timeline:
        """Return the spans in which something is done: those of `WAITS` left out."""
        waits = [place for place, kind in enumerate(self.kinds) if kind in WAITS]
        return self.take(np.flatnonzero(~np.isin(self.kind, waits)))

    def rank_lanes(self) -> list[tuple[int, str]]:
        """Return the (rank, lane) that have spans: by rank, then in the order of `lanes`."""
        return [(rank, lane) for rank, lane, _ in self.by_lane()]

    def by_lane(self) -> Iterator[tuple[int, str, Timeline]]:
        """Yield rank, lane and spans of each lane of each rank that has any: by rank, then in the order of `lanes`."""
        for group in self.grouped(self.lane, np.arange(len(self))):
            yield int(self.rank[group[0]]), self.lanes[self.lane[group[0]]], self.take(group)

    def grouped(self, key: NDArray[np.int64], order: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the places of the spans of each (rank, value of `key`), each group in the order of `order`."""
        places = order[np.lexsort((key[order], self.rank[order]))]  # stable
        cuts = np.flatnonzero((np.diff(self.rank[places]) != 0) | (np.diff(key[places]) != 0)) + 1
        return np.split(places, cuts) if len(self) else []

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
        early = work.stop_s[order][:-1] - work.start_s[order][1:] > tolerance_s
        if (same & early).any():
            place = int((same & early).argmax())
            raise TimelineError(f"spans overlap on one lane: {work[order[place]]} and {work[order[place + 1]]}")

    def to_frame(self) -> pd.DataFrame:
        """Return a row a span: rank, lane, kind, item, start_s, stop_s."""
        import pandas as pd

        words = {"lane": decoded(self.lane, self.lanes), "kind": decoded(self.kind, self.kinds)}
        return pd.DataFrame({name: words.get(name, getattr(self, name)) for name in _COLUMNS})

    def to_chrome_trace(self, path: str | os.PathLike[str]) -> Path:
        """Write a trace that chrome://tracing and Perfetto open (gzipped where the name ends in .gz); see `chrome`."""
        return write(self, path)

    @classmethod
    def from_chrome_trace(cls, path: str | os.PathLike[str], kind: str = "category") -> Timeline:
        """Read a trace, our own or another's (torch.profiler's, say); see `chrome.read` for what becomes what."""
        return read(path, kind)

    def _union(self) -> tuple[Times, Times]:
        return merge(self.start_s, self.stop_s)


def checked(name: str, values: ArrayLike) -> NDArray[Any]:
    """A read-only column of the right type that nobody else can write to; raises ValueError for what is none."""
    given = np.asarray(values)
    wanted = np.float64 if name.endswith("_s") else np.int64
    if given.dtype.kind == "u" and wanted is np.int64 and (given > np.iinfo(np.int64).max).any():
        raise ValueError(f"{name} must hold whole numbers of at most 2**63 - 1, got {given.max()}")
    if given.ndim != 1 or (given.size and not np.can_cast(given.dtype, wanted, casting="same_kind")):
        raise ValueError(f"{name} must be a column of {wanted.__name__}, got {given.dtype} of shape {given.shape}")
    return settled(given.view() if given.dtype == wanted and _frozen(given) else given.astype(wanted))


def settled(array: NDArray[Any]) -> NDArray[Any]:
    """The array, read-only from now on: `checked` need not copy what its maker alone knows."""
    array.flags.writeable = False
    return array


def _frozen(array: NDArray[Any]) -> bool:
    """Whether neither the array nor one that it is a view of can be written to."""
    base: Any = array
    while isinstance(base, np.ndarray) and not base.flags.writeable:
        base = base.base
    return base is None


def encoded(texts: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The different words in the order they first come in, and the place of each word among them."""
    names = {word: place for place, word in enumerate(dict.fromkeys(texts))}
    return tuple(names), np.array([names[word] for word in texts], dtype=np.int64)


def decoded(places: NDArray[np.int64], names: tuple[str, ...]) -> NDArray[np.object_]:
    """The words at these places."""
    return np.array(names, dtype=object)[places] if names else np.empty(0, dtype=object)


def merge(start_s: Times, stop_s: Times) -> tuple[Times, Times]:
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


def intersect(one: tuple[Times, Times], other: tuple[Times, Times]) -> tuple[Times, Times]:
    """Return where two unions, as `merge` gives them, both are.

    >>> a, b = (np.array([0.0, 5.0]), np.array([3.0, 6.0])), (np.array([2.0]), np.array([5.5]))
    >>> [times.tolist() for times in intersect(a, b)]
    [[2.0, 5.0], [3.0, 5.5]]
    """
    edges = np.unique(np.concatenate([*one, *other]))
    if edges.size < 2:
        return edges[:0], edges[:0]
    starts, stops = edges[:-1], edges[1:]
    middles = (starts + stops) / 2
    both = _covers(one, middles) & _covers(other, middles)
    return merge(starts[both], stops[both])


def length_s(intervals: tuple[Times, Times]) -> float:
    """Return the seconds that disjoint intervals cover together."""
    return float((intervals[1] - intervals[0]).sum())


def _covers(intervals: tuple[Times, Times], times: Times) -> NDArray[np.bool_]:
    starts, stops = intervals
    if not starts.size:
        return np.zeros(times.size, dtype=bool)
    place = np.searchsorted(starts, times, side="right") - 1
    return (place >= 0) & (times < stops[np.maximum(place, 0)])


_FORMAT, _VERSION = "rankscope.timeline", 1
Event = dict[str, Any]
_COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "alltoall", "broadcast", "reduce", "send", "recv")


def write(timeline: Timeline, path: str | os.PathLike[str]) -> Path:
    """Write the trace whole or not at all, an event a line. Read again, it is the same to the bit."""
    lanes = timeline.rank_lanes()
    thread = {lane: number for number, lane in enumerate(lanes)}
    events: list[Event] = [
        {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
        for rank in sorted({rank for rank, _ in lanes})
    ]
    for (rank, lane), tid in thread.items():
        events.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": {"name": lane}})
        events.append({"ph": "M", "name": "thread_sort_index", "pid": rank, "tid": tid, "args": {"sort_index": tid}})
    for span in timeline:
        name = span.kind if span.item == -1 else f"{span.kind} {span.item}"
        place = {"pid": span.rank, "tid": thread[span.rank, span.lane]}
        times = {"ts": span.start_s * 1e6, "dur": (span.stop_s - span.start_s) * 1e6}
        args = {"item": span.item, "start_s": span.start_s, "stop_s": span.stop_s}
        events.append({"ph": "X", "name": name, "cat": span.kind, **place, **times, "args": args})
    head = json.dumps({"format": _FORMAT, "version": _VERSION, "lanes": timeline.lanes, "kinds": timeline.kinds})
    body = ",\n".join(map(json.dumps, events))
    text = f'{{"displayTimeUnit": "ms", "otherData": {head}, "traceEvents": [\n{body}\n]}}\n'
    packed = gzip.compress(text.encode(), mtime=0) if os.fspath(path).endswith(".gz") else text.encode()
    return write_atomically(path, lambda file: file.write(packed))


def read(path: str | os.PathLike[str], kind: str = "category") -> Timeline:
    """Read a trace. Ours comes back as it was.

    Another one, torch.profiler's say, is one rank's: the rank that it says it is, 0 where it says none. Its processes
    and threads are the lanes, the category (or, with ``kind="name"``, the name) of an event the kind, NCCL's kernels
    being called by their collective, and it starts at 0.

    Raises ValueError naming the file where it is no trace, cut short, or of a newer version of ours, and OSError where
    it cannot be opened.
    """
    one_of("kind", kind, ("category", "name"))
    raw = Path(path).read_bytes()
    try:
        trace = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        if isinstance(trace, list):  # the format allows the bare list of events
            trace = {"traceEvents": trace}
        events = trace["traceEvents"]
        ours = isinstance(trace.get("otherData"), dict) and trace["otherData"].get("format") == _FORMAT
        if ours and trace["otherData"].get("version") != _VERSION:
            raise ValueError(f"version {trace['otherData'].get('version')!r}, this library reads version {_VERSION}")
        if not ours:
            return _foreign(trace, events, kind)
        names = [[str(name) for name in trace["otherData"].get(column, [])] for column in ("lanes", "kinds")]
        return Timeline.of(_own(events)).named(*names)
    except Exception as error:  # whatever a damaged file makes of itself
        raise ValueError(f"{os.fspath(path)} is no readable trace: {type(error).__name__}: {error}") from error


def _own(events: list[Event]) -> Iterator[Span]:
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    for event in events:
        if event["ph"] == "X":
            args = event["args"]
            lane = lanes[event["pid"], event["tid"]]
            yield Span(event["pid"], lane, event["cat"], args["item"], args["start_s"], args["stop_s"])


def _foreign(trace: dict[str, Any], events: list[Event], kind: str) -> Timeline:
    rank = int((trace.get("distributedInfo") or {}).get("rank", 0))
    names = {
        (event["pid"], event.get("tid") if event["name"] == "thread_name" else None): str(event["args"]["name"])
        for event in events
        if event.get("ph") == "M" and event.get("name") in ("process_name", "thread_name")
    }
    pieces = list(_complete(events))
    lanes = _lane_names({(event["pid"], event["tid"]) for event in pieces}, names)
    begin_us = min((event["ts"] for event in pieces), default=0.0)
    spans = []
    for event in pieces:
        collective = _collective(str(event.get("name", ""))) if kind == "category" else None
        word = collective or event.get("name" if kind == "name" else "cat") or event.get("name", "")
        start_us = event["ts"] - begin_us  # taken off before scaling: absolute times have no bits to spare
        lane = lanes[event["pid"], event["tid"]]
        spans.append(Span(rank, lane, str(word), -1, start_us / 1e6, (start_us + event["dur"]) / 1e6))
    return Timeline.of(spans)


def _collective(name: str) -> str | None:
    """The collective that one of NCCL's kernels works on: "ncclDevKernel_AllReduce_Sum_f32_RING_LL" is "allreduce"."""
    if not name.lower().startswith("nccl"):
        return None
    plain = name.lower().replace("_", "")
    return next((word for word in _COLLECTIVES if word.replace("_", "") in plain), None)


def _lane_names(threads: set[tuple[Any, Any]], names: dict[tuple[Any, Any], str]) -> dict[tuple[Any, Any], str]:
    """A lane for each thread: "process, thread", with their numbers where two threads would share it."""
    plain = {
        (pid, tid): f"{names.get((pid, None), f'process {pid}')}, {names.get((pid, tid), tid)}" for pid, tid in threads
    }
    times = Counter(plain.values())
    return {(pid, tid): name if times[name] == 1 else f"{name} ({pid}/{tid})" for (pid, tid), name in plain.items()}


def _complete(events: list[Event]) -> Iterator[Event]:
    """Yield complete events, and pairs of B and E as one; an E without a B, or a B without an E, is left out."""
    begun: dict[tuple[Any, Any], list[Event]] = {}
    for event in events:
        phase = event.get("ph")
        if phase not in ("X", "B", "E"):
            continue
        event = {"tid": 0, "pid": 0} | event | {"ts": float(event["ts"])}
        thread = (event["pid"], event["tid"])
        if phase == "X":
            yield event | {"dur": float(event.get("dur", 0.0))}
        elif phase == "B":
            begun.setdefault(thread, []).append(event)
        elif begun.get(thread):
            first = begun[thread].pop()
            yield first | {"dur": event["ts"] - first["ts"]}
