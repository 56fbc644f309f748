"""Drawings of what ran when: a Gantt chart of ranks and lanes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.checks import of_type
from ..common.units import round_ticks, time_unit
from ..timeline.timeline import WAITS, Timeline
from .marks import Drawing, Key, Rects, Texts, numbers_on
from .palette import HUES, OTHER, WORK

COMMUNICATION = frozenset(kind for kind, (_, hatched) in WORK.items() if hatched)
_WIDE_PX, _ROW_PX, _GAP = 860.0, 22.0, 0.5
_HEAD = 0.85  # rows above the lanes of a rank, where its name stands
_DIGIT_PX, _WORDS_PX = 6.4, 8.0  # the latter with room for Axes that are narrower than the drawing
_MOST_SPANS = 20_000


def draw_timeline(timeline: Timeline, title: str | None = None, hatched: Collection[str] = ()) -> Drawing:
    """Draw what ran when, on which lane of which rank.

    A row is a lane, rank 0 on top. Colour is the kind of work, hatching is communication, the same in every figure (see
    `palette.WORK`), and the number is the item. In a lane with several kinds their names are written where they fit.
    Waiting is light grey, and left out where it is shorter than a pixel. Kinds that are not known take the colours that
    are left, those that take most time first; the rest is grey. Kinds in `hatched` are hatched, too. Time counts from
    the first span. Raises ValueError for more than 20,000 spans: select a window,
    `timeline.select(between_s=(from, to))`, or some ranks.
    """
    if len(of_type("timeline", timeline, Timeline)) > _MOST_SPANS:
        raise ValueError(f"a drawing has at most {_MOST_SPANS} spans, got {len(timeline)}: select a window or a rank")
    waits = np.isin(timeline.kind, [place for place, kind in enumerate(timeline.kinds) if kind in WAITS])
    long = (timeline.stop_s - timeline.start_s) * _WIDE_PX >= timeline.makespan_s
    timeline = timeline.take(np.flatnonzero(~waits | long))
    rows, heads = _rows(list(timeline.rank_lanes()))
    scale, unit = time_unit(timeline.makespan_s)
    width = timeline.makespan_s / scale or 1.0
    start = (timeline.start_s - timeline.begin_s) / scale
    length = np.maximum((timeline.stop_s - timeline.start_s) / scale, width / _WIDE_PX)  # a mark is a pixel wide
    places = zip(timeline.rank.tolist(), timeline.lane.tolist(), strict=True)
    y = np.array([rows[rank, timeline.lanes[lane]] for rank, lane in places], dtype=float)
    styles = {kind: (hue, marked or kind in hatched) for kind, (hue, marked) in _styles(timeline).items()}
    looks = [styles[timeline.kinds[kind]] for kind in timeline.kind.tolist()]
    marked = np.array([look[1] for look in looks], dtype=bool)
    rects = Rects(start, y + 0.06, [hue for hue, _ in looks], width=length, height=0.88, hatched=marked)
    words = _words(timeline, rects.width * _WIDE_PX / width)
    height = max(rows.values(), default=0.0) + 1
    ranks, lanes = {rank for rank, _ in rows}, {lane for _, lane in rows}
    single = len(lanes) == 1 < len(ranks)
    label = f"rank {min(ranks)}" if len(ranks) == 1 else min(lanes) if single else ""
    names = Texts(0.0, [y for y, _ in heads], [name for _, name in heads], anchor="start", size_px=11.0)
    return Drawing(
        title=title or _title(timeline, scale, unit),
        x_label=f"time [{unit}]",
        y_label=label,
        width=width,
        height=height,
        size_px=(_WIDE_PX, _ROW_PX * height),
        rects=(rects,),
        texts=(*numbers_on(rects, words, wanted=words != ""), names),
        x_ticks=round_ticks(width),
        y_ticks=[(row + 0.5, f"rank {rank}" if single else lane) for (rank, lane), row in rows.items()],
        legend=_keys(styles),
    )


def _rows(lanes: list[tuple[int, str]]) -> tuple[dict[tuple[int, str], float], list[tuple[float, str]]]:
    """The top edge of each lane, with a gap between ranks; where ranks have several lanes each, its name in the gap."""
    ranks = [rank for rank, _ in lanes]
    headed = 1 < len(set(ranks)) < len(lanes)
    rows: dict[tuple[int, str], float] = {}
    heads, top = [], 0.0
    for place, (rank, lane) in enumerate(lanes):
        if place == 0 or rank != ranks[place - 1]:
            top += _HEAD if headed else _GAP if place else 0.0
            heads += [(top - 0.4, f"rank {rank}")] * headed
        rows[rank, lane] = top
        top += 1
    return rows, heads


def _keys(styles: Mapping[str, tuple[str, bool]]) -> tuple[Key, ...]:
    """An entry for each look; the kinds that share one share the entry."""
    kinds = defaultdict[tuple[str, bool], list[str]](list)
    for kind, look in styles.items():
        kinds[look].append("other" if look[0] == OTHER and kind not in WORK else kind)
    return tuple(Key(", ".join(dict.fromkeys(names)), hue, hatched=hatched) for (hue, hatched), names in kinds.items())


def _words(timeline: Timeline, wide_px: NDArray[np.floating[Any]]) -> NDArray[np.str_]:
    """What is written on each span: of its kind, where its lane has several, and its item what fits."""
    places = list(zip(timeline.rank.tolist(), timeline.lane.tolist(), strict=True))
    kinds = defaultdict[tuple[int, int], set[int]](set)
    for place, kind in zip(places, timeline.kind.tolist(), strict=True):
        kinds[place].add(kind)
    words = []
    for place, kind, item, px in zip(places, timeline.kind.tolist(), timeline.item.tolist(), wide_px, strict=True):
        number = "" if item == -1 else str(item)
        both = f"{timeline.kinds[kind]} {number}".rstrip() if len(kinds[place]) > 1 else number
        words.append(both if px >= _WORDS_PX * len(both) + 3 else number if px >= _DIGIT_PX * len(number) + 3 else "")
    return np.array(words, dtype=str)


def _styles(timeline: Timeline) -> dict[str, tuple[str, bool]]:
    """The look of each kind of work that is there: its own where it is known, else a hue that is left."""
    present = [timeline.kinds[place] for place in np.unique(timeline.kind).tolist()]
    unknown = [kind for kind in present if kind not in WORK]
    taken = {WORK[kind][0] for kind in present if kind in WORK}
    free = [hue for hue in HUES if hue not in taken]
    seconds = np.bincount(timeline.kind, weights=timeline.stop_s - timeline.start_s, minlength=len(timeline.kinds))
    longest = sorted(unknown, key=lambda kind: -seconds[timeline.kinds.index(kind)])[: len(free)]
    own = {kind: (hue, False) for kind, hue in zip(sorted(longest, key=unknown.index), free, strict=False)}
    return {kind: WORK.get(kind) or own.get(kind) or (OTHER, False) for kind in sorted(present, key=WAITS.__contains__)}


def _title(timeline: Timeline, scale: float, unit: str) -> str:
    if not len(timeline):
        return "nothing ran"
    shares = timeline.utilisation()
    (rank, lane), share = max(shares.items(), key=lambda entry: entry[1])
    return f"{timeline.makespan_s / scale:.4g} {unit}; busiest is rank {rank}'s {lane}, {share:.0%} of the time"
