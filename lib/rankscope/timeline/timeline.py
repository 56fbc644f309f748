"""`Timeline`: what ran when, on which lane of which rank. Simulations and real runs both return one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import force_setattr, replace
from numpy.typing import ArrayLike

from ..common.checks import is_scalar, one_of
from ..common.files import while_reading
from ..common.words import count_of
from .chrome import read, write
from .intervals import Intervals, intersect, length_s, merge, threads_of
from .spans import Ints, Span, Times, column, encoded

WAITS = ("blocked", "barrier", "wait")  # kinds of span in which a lane waits: for room, for other ranks, for an item


class Timeline(msgspec.Struct, frozen=True, eq=False):
    """Spans as read-only columns of equal length, in any order; `lane` and `kind` are indices of `lanes` and `kinds`.

    Times are in seconds from an arbitrary origin, the same for all spans. Raises ValueError if a column has values of
    another type, a time is not finite, or a span stops before it starts.
    """

    rank: Ints
    lane: Ints
    kind: Ints
    item: Ints
    start_s: Times
    stop_s: Times
    lanes: tuple[str, ...]
    kinds: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in Span._fields:
            force_setattr(self, name, column(name, getattr(self, name)))
        is_valid = np.isfinite(self.start_s) & np.isfinite(self.stop_s) & (self.start_s <= self.stop_s)
        if not is_valid.all():
            first = is_valid.argmin()
            times = f"{self.start_s[first]} to {self.stop_s[first]} s"
            raise ValueError(f"a span must end at or after its start, at finite times, got {times}")

    @classmethod
    def of(cls, spans: Iterable[Span]) -> Timeline:
        """Make a timeline from spans, and keep their order.

        >>> step = Timeline.of([Span(0, "gpu", "forward", 0, 0.0, 1.0), Span(0, "gpu", "backward", 0, 1.0, 3.0)])
        >>> step
        <Timeline: 2 spans, 1 rank, 1 lane, 3 s>
        >>> step.select(kind="backward").busy_s
        2.0
        """
        columns: list[Any] = list(zip(*spans, strict=True)) or [()] * len(Span._fields)
        rank, lane, kind, item, start_s, stop_s = columns
        places = np.arange(len(rank))
        return cls.concat([cls(rank, places, places, item, start_s, stop_s, lane, kind)])

    @classmethod
    def concat(cls, timelines: Iterable[Timeline]) -> Timeline:
        """Concatenate timelines, such as those of several ranks. All must have the same time origin.

        The lanes and kinds of the result are those of all timelines, each once.
        """
        lanes: dict[str, int] = {}
        kinds: dict[str, int] = {}
        parts = []
        for timeline in timelines:
            lane = encoded(timeline.lanes, lanes)[timeline.lane]
            kind = encoded(timeline.kinds, kinds)[timeline.kind]
            parts.append(replace(timeline, lane=lane, kind=kind))
        columns = {
            name: np.concatenate([column(name, ()), *(getattr(part, name) for part in parts)]) for name in Span._fields
        }
        return cls(**columns, lanes=tuple(lanes), kinds=tuple(kinds))

    def __repr__(self) -> str:
        lanes = self.rank_lanes()
        ranks = count_of(len({rank for rank, _ in lanes}), "rank")
        counts = f"{count_of(len(self), 'span')}, {ranks}, {count_of(len(lanes), 'lane')}"
        return f"<Timeline: {counts}, {self.makespan_s:.3g} s>"

    def _repr_svg_(self) -> str | None:
        """Draw the spans in a notebook; None, which shows the plain line instead, if there are too many."""
        from ..drawing.drawing import to_svg
        from .picture import draw_timeline

        try:
            return to_svg(draw_timeline(self))
        except ValueError:
            return None

    def __len__(self) -> int:
        return self.start_s.size

    def __iter__(self) -> Iterator[Span]:
        columns = [getattr(self, name).tolist() for name in Span._fields]
        for rank, lane, kind, item, start_s, stop_s in zip(*columns, strict=True):
            yield Span(rank, self.lanes[lane], self.kinds[kind], item, start_s, stop_s)

    def take(self, indices: ArrayLike) -> Timeline:
        """Return the spans at these indices, in this order, or those for which this is True."""
        return replace(self, **{name: getattr(self, name)[indices] for name in Span._fields})

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
        which at least one of the two works. A span of length 0 on the edge of the window is inside. If a rank, lane,
        kind or item has no spans, the timeline is empty. Raises ValueError if the window ends before it starts.
        """
        is_selected = np.ones(len(self), dtype=bool)
        for name, numbers in (("rank", rank), ("item", item)):
            if numbers is not None:
                is_selected &= np.isin(getattr(self, name), column(name, _listed(numbers)))
        for indices, names, wanted in ((self.lane, self.lanes, lane), (self.kind, self.kinds, kind)):
            if wanted is not None:
                wanted_names = _listed(wanted)
                is_selected &= np.array([name in wanted_names for name in names], bool)[indices]
        spans = self.take(np.flatnonzero(is_selected))  # faster than six times the truth values
        return spans if between_s is None else spans._cut_to(*between_s)

    def _cut_to(self, low_s: float, high_s: float) -> Timeline:
        """Return the spans in a window, cut at its edges, which may be infinite."""
        if not low_s <= high_s:
            raise ValueError(f"between_s must be a window from earlier to later, got {low_s} to {high_s}")
        start_s = np.maximum(self.start_s, low_s)
        stop_s = np.minimum(self.stop_s, high_s)
        # A span without length may be on an edge; a longer one that ends there is outside.
        is_inside = np.where(self.start_s == self.stop_s, start_s == stop_s, start_s < stop_s)
        return replace(self.take(is_inside), start_s=start_s[is_inside], stop_s=stop_s[is_inside])

    def named(self, lanes: Sequence[str], kinds: Sequence[str]) -> Timeline:
        """Return the same spans with these lanes and kinds first, in this order, even if they have no spans."""
        return self.concat([replace(self.of([]), lanes=lanes, kinds=kinds), self])

    def shifted(self, seconds: float) -> Timeline:
        """Return the same spans, `seconds` later."""
        return replace(self, start_s=self.start_s + seconds, stop_s=self.stop_s + seconds)

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
        return length_s(self._busy())

    def _busy(self) -> Intervals:
        return merge(self.start_s, self.stop_s)

    def overlap_s(self, first: str | Iterable[str], second: str | Iterable[str]) -> float:
        """Return the time in seconds during which spans of two kinds overlap within a rank, summed over ranks.

        The spans may be on any lanes. Each argument may be several kinds. A kind without spans overlaps with nothing.
        """
        total_s = 0.0
        for rank in np.unique(self.rank).tolist():
            spans = self.select(rank=rank)
            total_s += length_s(intersect(spans.select(kind=first)._busy(), spans.select(kind=second)._busy()))
        return total_s

    def work(self) -> Timeline:
        """Return the spans of actual work, without `WAITS`."""
        return self.select(kind=[kind for kind in self.kinds if kind not in WAITS])

    def rank_lanes(self) -> list[tuple[int, str]]:
        """Return the pairs (rank, lane) that have spans, sorted by rank and then in the order of `lanes`."""
        pairs = zip(self.rank.tolist(), self.lane.tolist(), strict=True)
        return [(rank, self.lanes[lane]) for rank, lane in sorted(set(pairs))]

    def utilisation(self) -> dict[tuple[int, str], float]:
        """Return the share of the makespan during which each of `rank_lanes` works. `WAITS` do not count as work.

        All shares are 0 if the makespan is, as when all spans have length 0 and the same time.
        """
        work = self.work()
        whole_s = self.makespan_s or 1.0
        return {(rank, lane): work.select(rank, lane).busy_s / whole_s for rank, lane in self.rank_lanes()}

    def throughput_per_s(self, kind: str) -> float:
        """Return how many spans of a kind, of all ranks together, there are per second of the makespan.

        It is 0 if the makespan is 0. Raises ValueError if the timeline does not have this kind.
        """
        num_spans = len(self.select(kind=one_of("kind", kind, self.kinds)))
        return num_spans / self.makespan_s if self.makespan_s else 0.0

    def check(self, tolerance_s: float = 1e-9) -> None:
        """Raise ValueError if two spans on the same lane of a rank overlap by more than `tolerance_s`.

        Spans of at most that length are marks rather than work, and may be anywhere.
        """
        work = self.take(self.stop_s - self.start_s > tolerance_s)
        by_lane = sorted(work, key=lambda span: (span.rank, span.lane, span.start_s))
        for span, next_span in pairwise(by_lane):  # a span that overlaps any later one of its lane overlaps the next
            if span[:2] == next_span[:2] and span.stop_s - next_span.start_s > tolerance_s:
                raise ValueError(f"spans overlap on one lane: {span} and {next_span}")

    def to_chrome_trace(self, path: str | os.PathLike[str]) -> Path:
        """Write a trace that chrome://tracing and Perfetto open, gzipped if the name ends in .gz; return its path.

        `from_chrome_trace` restores the timeline bit for bit. Spans that run at once on a lane are on several threads
        of its name, as Perfetto drops one of two slices that cross.
        """
        numbers = threads_of(self.rank * len(self.lanes) + self.lane, self.start_s, self.stop_s)
        threads = zip(self.rank.tolist(), self.lane.tolist(), numbers.tolist(), strict=True)
        return write(path, self, list(threads), self.lanes, self.kinds)

    @classmethod
    def from_chrome_trace(cls, path: str | os.PathLike[str]) -> Timeline:
        """Read a trace that `to_chrome_trace` wrote, and restore it exactly.

        Raises FileError, a ValueError that names the file, if it is another one or is cut short; OSError if it cannot
        be opened. `rankscope.diagnose.read_traces` reads those of torch.profiler.
        """
        with while_reading(path, "not a usable trace"):
            spans, head = read(path)
            return cls.of(spans).named(head["lanes"], head["kinds"])


def _listed(values: Any) -> list[Any]:
    """Return one value or several as a list."""
    return [values] if isinstance(values, str) or is_scalar(values) else list(values)
