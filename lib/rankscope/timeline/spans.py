"""`Timeline`: spans as columns, and the figures that a simulation and a real run are compared by."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from ..values.checks import count_of, number, of_type, one_of, several, whole
from .columns import checked, decoded, encoded, settled
from .intervals import Times, intersect, length_s, merge

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
        from .chrome import write

        return write(self, path)

    @classmethod
    def from_chrome_trace(cls, path: str | os.PathLike[str], kind: str = "category") -> Timeline:
        """Read a trace, our own or another's (torch.profiler's, say); see `chrome.read` for what becomes what."""
        from .chrome import read

        return read(path, kind)

    def _union(self) -> tuple[Times, Times]:
        return merge(self.start_s, self.stop_s)
