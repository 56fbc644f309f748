"""Drawings of what ran when: a Gantt chart of ranks and lanes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..timeline.timeline import WAITS, Timeline
from ..values.checks import of_type
from ..values.units import round_ticks, time_unit
from .marks import Drawing, Key, Rects, numbers_on
from .palette import CATEGORIES

COMMUNICATION = frozenset(
    (
        "allgather",
        "allreduce",
        "alltoall",
        "barrier",
        "broadcast",
        "gather",
        "recv",
        "reduce",
        "reduce_scatter",
        "scatter",
        "send",
    )
)
_WIDE_PX, _ROW_PX, _GAP = 860.0, 22.0, 0.5
_DIGIT_PX, _WORDS_PX = 6.4, 8.0  # the latter with room for Axes that are narrower than the drawing
_MOST_SPANS = 20_000
_OTHER, _WAITING = "#b0b0b0", "#e2e2e2"
_KINDS = (  # those known, by the hue in `CATEGORIES` that they have
    "read load allreduce",
    "decode forward",
    "collate unpack",
    "pin optimizer",
    "copy",
    "compute train step backward",
    "start",
    "stop",
)
_KNOWN = {kind: hue for hue, kinds in zip(CATEGORIES, _KINDS, strict=True) for kind in kinds.split()}


def draw_timeline(timeline: Timeline, title: str | None = None, hatched: Collection[str] = COMMUNICATION) -> Drawing:
    """Draw what ran when, on which lane of which rank.

    A row is a lane, ranks from 0 downwards; colour is the kind of work, the number its item. In a lane with several
    kinds their names are written, too, where they fit. Waiting is light grey, and left out
    where it is shorter than a pixel; of more than eight kinds of work those that take least time are grey. Kinds in
    `hatched` are hatched, which is for communication. Time counts from the first span. Raises ValueError for more than
    20,000 spans: select a window, `timeline.select(between_s=(from, to))`, or some ranks.
    """
    if len(of_type("timeline", timeline, Timeline)) > _MOST_SPANS:
        raise ValueError(f"a drawing has at most {_MOST_SPANS} spans, got {len(timeline)}: select a window or a rank")
    waits = np.isin(timeline.kind, [place for place, kind in enumerate(timeline.kinds) if kind in WAITS])
    long = (timeline.stop_s - timeline.start_s) * _WIDE_PX >= timeline.makespan_s
    timeline = timeline.take(np.flatnonzero(~waits | long))
    rows: dict[tuple[int, str], float] = {}  # the top edge of each lane, with a gap between ranks
    top, previous = 0.0, None
    for rank, lane in timeline.rank_lanes():
        top += _GAP if previous not in (None, rank) else 0.0
        rows[rank, lane] = top
        top, previous = top + 1, rank
    scale, unit = time_unit(timeline.makespan_s)
    width = timeline.makespan_s / scale or 1.0
    start = (timeline.start_s - timeline.begin_s) / scale
    length = np.maximum((timeline.stop_s - timeline.start_s) / scale, width / _WIDE_PX)  # a mark is a pixel wide
    places = zip(timeline.rank.tolist(), timeline.lane.tolist(), strict=True)
    y = np.array([rows[rank, timeline.lanes[lane]] for rank, lane in places], dtype=float)
    colors = _kind_colors(timeline)
    fill = tuple(colors[timeline.kinds[kind]] for kind in timeline.kind.tolist())
    marked = np.array([timeline.kinds[kind] in hatched for kind in timeline.kind.tolist()], dtype=bool)
    rects = Rects(start, y + 0.06, fill, width=length, height=0.88, hatched=marked)
    words = _words(timeline, rects.width * _WIDE_PX / width)
    height = max(rows.values(), default=0.0) + 1
    keys = [Key(kind, color, hatched=kind in hatched) for kind, color in colors.items() if color != _OTHER]
    if _OTHER in colors.values():
        keys.append(Key("other", _OTHER))
    return Drawing(
        title=title or _title(timeline, scale, unit),
        x_label=f"time [{unit}]",
        y_label="rank and lane",
        width=width,
        height=height,
        size_px=(_WIDE_PX, _ROW_PX * height),
        rects=(rects,),
        texts=numbers_on(rects, words, wanted=words != ""),
        x_ticks=round_ticks(width),
        y_ticks=tuple((row + 0.5, f"{rank} {lane}") for (rank, lane), row in rows.items()),
        legend=tuple(keys),
    )


def _words(timeline: Timeline, wide_px: NDArray[np.floating[Any]]) -> NDArray[np.str_]:
    """What is written on each span: of its kind, where its lane has several, and its item what fits."""
    places = list(zip(timeline.rank.tolist(), timeline.lane.tolist(), strict=True))
    kinds: dict[tuple[int, int], set[int]] = {}
    for place, kind in zip(places, timeline.kind.tolist(), strict=True):
        kinds.setdefault(place, set()).add(kind)
    words = []
    for place, kind, item, px in zip(places, timeline.kind.tolist(), timeline.item.tolist(), wide_px, strict=True):
        number = "" if item == -1 else str(item)
        both = f"{timeline.kinds[kind]} {number}".rstrip() if len(kinds[place]) > 1 else number
        words.append(both if px >= _WORDS_PX * len(both) + 3 else number if px >= _DIGIT_PX * len(number) + 3 else "")
    return np.array(words, dtype=str)


def _kind_colors(timeline: Timeline) -> dict[str, str]:
    """A hue for each kind of work, that of `_KNOWN` where it is known and free; of more than eight kinds, for the seven
    that take most time, the others being grey."""
    present = np.unique(timeline.kind).tolist()
    work = [place for place in present if timeline.kinds[place] not in WAITS]
    shown = work
    if len(work) > len(CATEGORIES):
        seconds = np.bincount(timeline.kind, weights=timeline.stop_s - timeline.start_s)
        shown = sorted(sorted(work, key=lambda place: -seconds[place])[: len(CATEGORIES) - 1])
    kinds = [timeline.kinds[place] for place in shown]
    taken: dict[str, str] = {}  # of two kinds that are known by the same hue the first has it
    for kind in kinds:
        if kind in _KNOWN:
            taken.setdefault(_KNOWN[kind], kind)
    own = {kind: hue for hue, kind in taken.items()}
    free = (hue for hue in CATEGORIES if hue not in taken)
    hues = {kind: own[kind] if kind in own else next(free) for kind in kinds}
    others = {timeline.kinds[place]: _OTHER for place in work if place not in shown}
    return hues | others | {timeline.kinds[place]: _WAITING for place in present if place not in work}


def _title(timeline: Timeline, scale: float, unit: str) -> str:
    if not len(timeline):
        return "nothing ran"
    shares = timeline.utilisation()
    (rank, lane), share = max(shares.items(), key=lambda entry: entry[1])
    return f"{timeline.makespan_s / scale:.4g} {unit}; busiest is rank {rank}'s {lane}, {share:.0%} of the time"
