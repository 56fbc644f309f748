"""Drawings of what ran when: a Gantt chart of ranks and lanes."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from ..timeline import WAITS, Timeline
from .marks import Drawing, Key, Rects, numbers_on
from .palette import CATEGORIES

COMMUNICATION = frozenset(
    {"allgather", "allreduce", "alltoall", "barrier", "broadcast", "gather", "recv", "reduce", "reduce_scatter",
     "scatter", "send"}
)  # fmt: skip
_WIDE_PX, _ROW_PX, _GAP = 860.0, 22.0, 0.5
_MOST_SPANS = 20_000
_OTHER, _WAITING = "#b0b0b0", "#e2e2e2"
_UNITS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def draw_timeline(timeline: Timeline, title: str | None = None, hatched: Collection[str] = COMMUNICATION) -> Drawing:
    """Draw a row for each lane, ranks from 0 downwards; colour is the kind of work, the number its item.

    Waiting is light grey, and left out where it is shorter than a pixel; of more than eight kinds of work those that
    take least time are grey. Kinds in `hatched` are hatched, which is for communication. Time counts from the first
    span. Raises ValueError for more than 20,000 spans: select a window, `timeline.select(between_s=(from, to))`, or
    some ranks.
    """
    if len(timeline) > _MOST_SPANS:
        raise ValueError(f"a drawing has at most {_MOST_SPANS} spans, got {len(timeline)}: select a window or a rank")
    timeline = _visible(timeline)
    rows = _rows(timeline)
    scale, unit = _unit(timeline.makespan_s)
    width = timeline.makespan_s / scale or 1.0
    start = (timeline.start_s - timeline.begin_s) / scale
    length = np.maximum((timeline.stop_s - timeline.start_s) / scale, width / _WIDE_PX)  # a mark is a pixel wide
    places = zip(timeline.rank.tolist(), timeline.lane.tolist(), strict=True)
    y = np.array([rows[rank, timeline.lanes[lane]] for rank, lane in places], dtype=float)
    colors = _kind_colors(timeline)
    fill = tuple(colors[timeline.kinds[kind]] for kind in timeline.kind.tolist())
    marked = np.array([timeline.kinds[kind] in hatched for kind in timeline.kind.tolist()], dtype=bool)
    rects = Rects.of(start, y + 0.06, fill, width=length, height=0.88, hatched=marked)
    digits = np.array([len(str(item)) for item in timeline.item.tolist()])
    legible = (timeline.item != -1) & (rects.width * _WIDE_PX / width >= 6.4 * digits + 3)
    height = max(rows.values(), default=0.0) + 1
    return Drawing(
        title=title or _title(timeline, scale, unit),
        x_label=f"time [{unit}]",
        y_label="rank and lane",
        width=width,
        height=height,
        size_px=(_WIDE_PX, _ROW_PX * height),
        rects=(rects,),
        texts=numbers_on(rects, timeline.item, wanted=legible),
        x_ticks=_time_ticks(width),
        y_ticks=tuple((row + 0.5, f"{rank} {lane}") for (rank, lane), row in rows.items()),
        legend=_legend(colors, hatched),
    )


def _visible(timeline: Timeline) -> Timeline:
    """All work, and the waiting that is as long as a pixel is wide."""
    waits = np.isin(timeline.kind, [place for place, kind in enumerate(timeline.kinds) if kind in WAITS])
    long = (timeline.stop_s - timeline.start_s) * _WIDE_PX >= timeline.makespan_s
    return timeline.take(np.flatnonzero(~waits | long))


def _rows(timeline: Timeline) -> dict[tuple[int, str], float]:
    """The top edge of each lane, with a gap between ranks."""
    rows: dict[tuple[int, str], float] = {}
    y, previous = 0.0, None
    for rank, lane in timeline.rank_lanes():
        y += _GAP if previous not in (None, rank) else 0.0
        rows[rank, lane] = y
        y, previous = y + 1, rank
    return rows


def _unit(seconds: float) -> tuple[float, str]:
    """The largest unit of which there are at least two; seconds where there is no time at all."""
    fits = [(scale, unit) for scale, unit in _UNITS if seconds >= 2 * scale]
    return fits[0] if fits else _UNITS[-1] if seconds else (1.0, "s")


def _time_ticks(width: float) -> tuple[tuple[float, str], ...]:
    """At most ten ticks at round times."""
    power = 10.0 ** math.floor(math.log10(width / 10))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if width <= power * factor * 10)
    return tuple((place * step, f"{place * step:g}") for place in range(int(width / step + 1e-9) + 1))


def _kind_colors(timeline: Timeline) -> dict[str, str]:
    """A hue for each kind of work; of more than eight, for the seven that take most time, the others being grey."""
    present = [timeline.kinds[kind] for kind in np.unique(timeline.kind)]
    kinds = [kind for kind in present if kind not in WAITS]
    if len(kinds) > len(CATEGORIES):
        seconds = np.bincount(timeline.kind, weights=timeline.stop_s - timeline.start_s, minlength=len(timeline.kinds))
        longest = {timeline.kinds[kind] for kind in np.argsort(-seconds, kind="stable")[: len(CATEGORIES) - 1].tolist()}
        kinds = [kind for kind in kinds if kind in longest] + [kind for kind in kinds if kind not in longest]
    hues = CATEGORIES if len(kinds) <= len(CATEGORIES) else CATEGORIES[:-1]
    work = {kind: hues[place] if place < len(hues) else _OTHER for place, kind in enumerate(kinds)}
    return work | {kind: _WAITING for kind in present if kind in WAITS}


def _legend(colors: dict[str, str], hatched: Collection[str]) -> tuple[Key, ...]:
    keys = [Key(kind, color, hatched=kind in hatched) for kind, color in colors.items() if color != _OTHER]
    return (*keys, Key("other", _OTHER)) if _OTHER in colors.values() else tuple(keys)


def _title(timeline: Timeline, scale: float, unit: str) -> str:
    if not len(timeline):
        return "nothing ran"
    shares = timeline.utilisation()
    (rank, lane), share = max(shares.items(), key=lambda entry: entry[1])
    return f"{timeline.makespan_s / scale:.3g} {unit}; busiest is rank {rank}'s {lane}, {share:.0%} of the time"
