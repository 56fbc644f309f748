"""Drawings of what ran when: a Gantt chart of ranks and lanes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.checks import of_type
from ..common.units import percent_words, round_ticks, time_unit
from ..timeline.timeline import WAITS, Timeline
from .marks import WIDE_PX, Drawing, Key, Rects, Texts, numbers_on
from .palette import HUES, OTHER, WORK, WorkLook, work_look

COMMUNICATION = frozenset(kind for kind, (_, hatched) in WORK.items() if hatched)
_ROW_PX = 22.0
_GAP = 0.5  # rows between ranks
_LANE_MARGIN = 0.06  # rows above and below the spans of a lane
_HEAD = 0.85  # rows above the lanes of a rank, if its name stands there
_HEAD_MIDDLE = 0.4  # rows from the middle of the name down to the first lane
_DIGIT_PX = 6.4  # of a number
_LETTER_PX = 8.0  # of words, with room for Axes that are narrower than the drawing
_TEXT_MARGIN_PX = 3.0  # of both sides of a text on a span, together
_MOST_SPANS = 20_000


def draw_timeline(
    timeline: Timeline,
    title: str | None = None,
    hatched: Collection[str] = (),
    rank_names: Mapping[int, str] | None = None,
) -> Drawing:
    """Draw the spans of a timeline, with one row per lane of a rank.

    Rank 0 is on top. The colour shows the kind of work, hatching shows communication, as in every figure (see
    `palette.WORK`), and the number is the item. In lanes with several kinds, their names are written if there is space.
    Waiting is light grey, and omitted if it is shorter than a pixel. Unknown kinds are assigned the remaining colours,
    the longest first; all others are grey. Kinds in `hatched` are also hatched. `rank_names` replace "rank 0" and so
    on. Time starts at the first span. Raises ValueError if there are more than 20,000 spans; select a window,
    `timeline.select(between_s=(from, to))`, or some ranks.
    """
    if len(of_type("timeline", timeline, Timeline)) > _MOST_SPANS:
        raise ValueError(f"a drawing has at most {_MOST_SPANS} spans, got {len(timeline)}: select a window or a rank")
    timeline = _without_short_waits(timeline)
    layout = _layout(list(timeline.rank_lanes()), rank_names or {})
    scale, unit = time_unit(timeline.makespan_s)
    width = timeline.makespan_s / scale or 1.0  # a timeline without any time has some width, too

    start = (timeline.start_s - timeline.begin_s) / scale
    length = np.maximum((timeline.stop_s - timeline.start_s) / scale, width / WIDE_PX)  # at least a pixel
    start = np.minimum(start, width - length)  # so that a pixel at the very end is not beyond the drawing
    lanes_of_spans = zip(timeline.rank.tolist(), timeline.lane.tolist(), strict=True)
    y = np.array([layout.top_of[rank, timeline.lanes[lane]] for rank, lane in lanes_of_spans], dtype=float)
    looks = _looks(timeline, hatched)
    look_of_spans = [looks[timeline.kinds[kind]] for kind in timeline.kind.tolist()]
    rects = Rects(
        start,
        y + _LANE_MARGIN,
        [look.hue for look in look_of_spans],
        width=length,
        height=1 - 2 * _LANE_MARGIN,
        hatched=[look.hatched for look in look_of_spans],
    )
    words = _words(timeline, rects.width * WIDE_PX / width)
    head_names = [name for _, name in layout.heads]
    heads = Texts(0.0, [y for y, _ in layout.heads], head_names, anchor="start")
    return Drawing(
        title=title or _title(timeline, scale, unit),
        x_label=f"time [{unit}]",
        y_label=layout.label,
        width=width,
        height=layout.height,
        size_px=(WIDE_PX, _ROW_PX * layout.height),
        rects=(rects,),
        texts=(*numbers_on(rects, words, wanted=words != ""), heads),
        x_ticks=round_ticks(width),
        y_ticks=layout.ticks,
        legend=_keys(looks),
    )


def _without_short_waits(timeline: Timeline) -> Timeline:
    """Return the spans without waits that are shorter than a pixel."""
    wait_kinds = [number for number, kind in enumerate(timeline.kinds) if kind in WAITS]
    is_wait = np.isin(timeline.kind, wait_kinds)
    is_visible = (timeline.stop_s - timeline.start_s) * WIDE_PX >= timeline.makespan_s
    return timeline.take(np.flatnonzero(~is_wait | is_visible))


# ---- rows


class _Layout(NamedTuple):
    """Where lanes stand, from the top down, in rows."""

    top_of: dict[tuple[int, str], float]  # the top edge of each rank's lane
    heads: list[tuple[float, str]]  # heights and names of ranks, if these stand above their lanes
    height: float
    label: str  # of the axis
    ticks: list[tuple[float, str]]


def _layout(lanes: Sequence[tuple[int, str]], rank_names: Mapping[int, str]) -> _Layout:
    """Lay lanes out, which are sorted by rank, with a gap between ranks; each is a rank and the name of its lane.

    If there are several ranks, and lanes of several names, each rank's name stands in the gap above its lanes.
    """
    ranks = {rank for rank, _ in lanes}
    name_of = {rank: rank_names.get(rank, f"rank {rank}") for rank in ranks}
    lane_names = {lane for _, lane in lanes}
    has_heads = len(ranks) > 1 and len(lane_names) > 1  # else the axis and its ticks name the ranks
    top_of: dict[tuple[int, str], float] = {}
    heads: list[tuple[float, str]] = []
    top = 0.0
    last_rank: int | None = None
    for rank, lane in lanes:
        if rank != last_rank:
            if has_heads:
                top += _HEAD
                heads.append((top - _HEAD_MIDDLE, name_of[rank]))
            elif last_rank is not None:
                top += _GAP
        top_of[rank, lane] = top
        top += 1
        last_rank = rank

    has_one_lane_each = len(ranks) > 1 and len(lane_names) == 1  # the same on all ranks
    label = ""
    if len(ranks) == 1:
        (label,) = name_of.values()
    elif has_one_lane_each:
        (label,) = lane_names
    ticks = []
    for (rank, lane), y in top_of.items():
        ticks.append((y + 0.5, name_of[rank] if has_one_lane_each else lane))
    height = max(top, 1.0)  # a timeline without any lane has some height, too
    return _Layout(top_of, heads, height, label, ticks)


# ---- looks of spans


def _looks(timeline: Timeline, hatched: Collection[str]) -> dict[str, WorkLook]:
    """Return the look of each kind of work in the timeline, waits last.

    It is the kind's own if the palette has one. The longest of the other kinds get the hues that are left, in the order
    of the timeline's kinds.
    """
    present = [timeline.kinds[number] for number in np.unique(timeline.kind).tolist()]
    known: dict[str, WorkLook] = {}
    used_hues = set()
    for kind in present:
        own_look = work_look(kind)
        if own_look is None:
            continue
        known[kind] = own_look
        # "forward 1" has a paler hue of its own, but uses that of "forward", under which the palette has it.
        kind_in_palette = kind if kind in WORK else kind.partition(" ")[0]
        used_hues.add(WORK[kind_in_palette].hue)
    unknown = [kind for kind in present if kind not in known]
    free_hues = [hue for hue in HUES if hue not in used_hues]
    seconds = np.bincount(timeline.kind, weights=timeline.stop_s - timeline.start_s, minlength=len(timeline.kinds))
    longest_first = sorted(unknown, key=lambda kind: -seconds[timeline.kinds.index(kind)])
    with_hue = sorted(longest_first[: len(free_hues)], key=unknown.index)
    hue_of = dict(zip(with_hue, free_hues, strict=False))  # some hues may be left over
    looks = {}
    for kind in _in_legend_order(present):
        look = known.get(kind)
        if look is None:
            look = WorkLook(hue_of.get(kind, OTHER), hatched=False)
        looks[kind] = WorkLook(look.hue, look.hatched or kind in hatched)
    return looks


def _in_legend_order(kinds: Sequence[str]) -> list[str]:
    """Return kinds in their order, but "forward 1" and so on next to "forward", and waits last.

    >>> _in_legend_order(["forward", "wait", "backward", "send", "forward 2", "forward 1"])
    ['forward', 'forward 1', 'forward 2', 'backward', 'send', 'wait']
    """
    first_place: dict[str, int] = {}  # by the kind without its number
    for place, kind in enumerate(kinds):
        first_place.setdefault(_without_number(kind)[0], place)

    def place_in_legend(kind: str) -> tuple[bool, int, int]:
        base, number = _without_number(kind)
        return kind in WAITS, first_place[base], number

    return sorted(kinds, key=place_in_legend)


def _without_number(kind: str) -> tuple[str, int]:
    """Split "forward 1" into "forward" and 1; a kind without a number has 0."""
    base, _, number = kind.rpartition(" ")
    if base and number.isdecimal():
        return base, int(number)
    return kind, 0


def _keys(looks: Mapping[str, WorkLook]) -> list[Key]:
    """Return an entry for each look; kinds with the same look share the entry."""
    names_of = defaultdict[WorkLook, list[str]](list)
    for kind, look in looks.items():
        is_other = look.hue == OTHER and kind not in WORK  # no hue was left for it
        name = "other" if is_other else kind
        if name not in names_of[look]:
            names_of[look].append(name)
    return [Key(", ".join(names), look.hue, hatched=look.hatched) for look, names in names_of.items()]


def _words(timeline: Timeline, width_px: NDArray[np.floating[Any]]) -> NDArray[np.str_]:
    """Return the text on each span: its kind, if its lane has several, and its item, as much of it as fits."""
    lanes = list(zip(timeline.rank.tolist(), timeline.lane.tolist(), strict=True))
    kinds_of = defaultdict[tuple[int, int], set[int]](set)
    for lane, kind in zip(lanes, timeline.kind.tolist(), strict=True):
        kinds_of[lane].add(kind)
    words = []
    for lane, kind, item, px in zip(lanes, timeline.kind.tolist(), timeline.item.tolist(), width_px, strict=True):
        number = "" if item == -1 else str(item)  # -1 is no item
        text = number
        if len(kinds_of[lane]) > 1:
            text = f"{timeline.kinds[kind]} {number}".rstrip()
        words.append(_fitting(text, number, px))
    return np.array(words, dtype=str)


def _fitting(text: str, number: str, px: float) -> str:
    """Return the text if a span of this width has room for it, else the number, else nothing."""
    if px >= _LETTER_PX * len(text) + _TEXT_MARGIN_PX:
        return text
    if px >= _DIGIT_PX * len(number) + _TEXT_MARGIN_PX:
        return number
    return ""


def _title(timeline: Timeline, scale: float, unit: str) -> str:
    if not len(timeline):
        return "nothing ran"
    shares = timeline.utilisation()
    (rank, lane), share = max(shares.items(), key=lambda entry: entry[1])
    makespan = f"{timeline.makespan_s / scale:.4g} {unit}"
    return f"{makespan}; rank {rank}'s {lane} is the busiest, {percent_words(share)} of the time"
