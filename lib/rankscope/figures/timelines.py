"""What ran when: a row per lane of a rank; panels share one axis, so that a prediction stands above its measurement."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping

import numpy as np

from ..common.checks import of_type
from ..common.units import percent_words, round_ticks, time_unit, time_words
from ..timeline.timeline import WAITS, Timeline
from .marks import DIGIT_PX, LEFT_PX, LETTER_PX, RIGHT_PX, Box, Drawing, Line, Mark, Text, axis, key_marks, moved_down
from .palette import HUES, OTHER, WORK, WorkLook, work_look

_ROWS_PX = 420.0  # of all lanes, if there are many
_MOST_ROW_PX = 26.0
_LEAST_ROW_PX = 9.0
_GAP_PX = 10.0  # between ranks with several lanes
_HEAD_PX = 26.0  # above a panel with a name
_WIDE_LETTER_PX = 1.32 * LETTER_PX  # on a phone
_ARROW_PX = 18.0  # above the name of a second panel, for the difference of both
_MOST_SPANS = 20_000
_MOST_KEYED = 800  # spans that answer to the pointer
_MOST_TIPS = 6


def draw_timeline(
    timeline: Timeline | Mapping[str, Timeline], title: str | None = None, deck: str | None = None
) -> Drawing:
    """Draw the spans of a timeline, a row per lane of a rank; of several timelines by name, one below the other.

    The colour shows the kind of work, hatching shows communication (`palette.WORK`), and the number is the item. Waits
    are dotted lines. Time starts at the first span. Of two timelines, the difference of their ends is pointed at.
    Raises ValueError if there are more than 20,000 spans; select a window or some ranks.
    """
    panels = timeline if isinstance(timeline, Mapping) else {"": timeline}
    for name, panel in panels.items():
        of_type("timeline" if not name else f"timeline {name!r}", panel, Timeline)
    num_spans = sum(map(len, panels.values()))
    if num_spans > _MOST_SPANS:
        raise ValueError(f"a drawing has at most {_MOST_SPANS} spans, got {num_spans}: select a window or a rank")
    picture = _Picture(panels)
    tops = [picture.panel(name, panel) for name, panel in panels.items()]
    picture.axis()
    if len(panels) == 2:
        picture.difference(tops[1], *panels.values())
    legend, legend_px = picture.legend()
    marks = legend + [moved_down(mark, legend_px) for mark in picture.marks]
    found = _finding(next(iter(panels.values())))
    return Drawing(title or found, marks, legend_px + picture.y + 26, deck or "", picture.tips)


def time_scale(timeline: Timeline) -> tuple[float, float]:
    """Return where time begins in the drawing of a timeline, and the pixels of a second."""
    picture = _Picture({"": timeline})
    return picture.left, picture.px_per_s


class _Picture:
    """The marks of timelines, from the top down; `y` is where the next row begins."""

    def __init__(self, panels: Mapping[str, Timeline]) -> None:
        self.marks: list[Mark] = []
        self.tips: dict[Hashable, str] = {}
        names = [name for panel in panels.values() for name in _row_names(panel).values()]
        self.row_px = min(max(_ROWS_PX / max(len(names), 1), _LEAST_ROW_PX), _MOST_ROW_PX)
        self.left = max([LEFT_PX, *(_WIDE_LETTER_PX * len(name) + 20 for name in names)])
        self.end_s = max([panel.makespan_s for panel in panels.values()], default=0.0)
        self.px_per_s = (RIGHT_PX - self.left) / (self.end_s or 1.0)
        self.looks = _looks(panels)
        self.named: set[str] = set()  # kinds whose name stands on a span
        self.is_keyed = sum(map(len, panels.values())) <= _MOST_KEYED
        self.y = 0.0

    def panel(self, name: str, timeline: Timeline) -> float:
        """Add a timeline, and return where its rows begin."""
        if name:
            self.y += _HEAD_PX + (_ARROW_PX if self.y else 0)
            self.marks.append(Text(self.left, self.y - 8, name, "deck"))
        top = self.y
        numbered = _numbered(timeline)
        lanes: dict[tuple[int, str], list[int]] = {pair: [] for pair in timeline.rank_lanes()}
        for index in np.lexsort((timeline.stop_s, timeline.start_s)).tolist():
            lanes[int(timeline.rank[index]), timeline.lanes[timeline.lane[index]]].append(index)
        every = 1 if self.row_px >= 13 else 2
        has_gaps = len(lanes) > len({rank for rank, _ in lanes})
        last_rank = -1
        for row, (pair, words) in enumerate(_row_names(timeline).items()):
            self.y += _GAP_PX * (has_gaps and row > 0 and pair[0] != last_rank)
            last_rank = pair[0]
            if row % every == 0:
                self.marks.append(Text(self.left - 12, self.y + self.row_px / 2 + 4, words, "label", "ink", "end"))
            for index in lanes[pair]:
                self.span(name, timeline, index, numbered)
            self.y += self.row_px
        self.y += 8
        return top

    def span(self, panel: str, timeline: Timeline, index: int, numbered: Collection[str]) -> None:
        kind = timeline.kinds[timeline.kind[index]]
        start_s = float(timeline.start_s[index]) - timeline.begin_s
        length_s = float(timeline.stop_s[index] - timeline.start_s[index])
        x, width = self.left + start_s * self.px_per_s, length_s * self.px_per_s
        if kind in WAITS:
            self.wait(kind, x, width, length_s)
            return
        item = int(timeline.item[index])
        number = str(item) if kind in numbered and item != -1 else ""
        words = f"{kind} {number}".strip()
        if self.row_px < 12:
            words = ""
        elif width > LETTER_PX * len(words) + 8 and (kind not in self.named or not number):
            self.named.add(kind)
        else:
            words = number if width > DIGIT_PX * len(number) + 4 else ""
        key = (panel, item) if number and self.is_keyed else None
        width = max(width - (width > 3), 1.5)  # with a pixel of paper to the next one
        margin = min(2.0, self.row_px / 8)
        at = min(x, RIGHT_PX - width), self.y + margin, width, self.row_px - 2 * margin
        hue, is_hatched = self.looks[kind]
        self.marks.append(Box(*at, hue, "work", is_hatched, words, key))
        if key is not None and self.tips.get(key, "").count(";") < _MOST_TIPS:
            when = f"{time_words(start_s)} to {time_words(start_s + length_s)}"
            self.tips[key] = f"{self.tips.get(key, f'{item}:')} {kind} {when};"

    def wait(self, kind: str, x: float, width: float, length_s: float) -> None:
        """A dotted line, with its length where there is room."""
        if width <= 4:
            return
        middle = self.y + self.row_px / 2
        self.marks.append(Line(((x + 2, middle), (x + width - 3, middle)), "mute", 1.2, "1.2 3"))
        words = f"{kind} {time_words(length_s)}"
        if width > _WIDE_LETTER_PX * len(words) + 12 and self.row_px >= 14:
            self.marks.append(Text(x + width / 2, middle + 4, words, "number", "mute", "middle", halo=True))

    def legend(self) -> tuple[list[Mark], float]:
        """The kinds whose name stands on no span, and how high they are together."""
        unnamed = {kind: look for kind, look in self.looks.items() if kind not in self.named and kind not in WAITS}
        return key_marks(unnamed)

    def axis(self) -> None:
        scale, unit = time_unit(self.end_s)
        ticks = []
        for time, words in round_ticks(self.end_s / scale or 1.0):
            ticks.append((self.left + time * scale * self.px_per_s, words if time else f"0 {unit}"))
        self.marks += axis(self.y, ticks, self.left)

    def difference(self, top: float, first: Timeline, second: Timeline) -> None:
        """An arrow from where the first timeline ends to where the second does, above it, and its length in words."""
        more_s = second.makespan_s - first.makespan_s
        start, stop = (self.left + panel.makespan_s * self.px_per_s for panel in (first, second))
        if abs(stop - start) < 8:
            return
        words = f"{time_words(abs(more_s))} {'more' if more_s > 0 else 'less'}"
        y = top - _HEAD_PX - 8
        self.marks.append(Line(((start, y - 6), (start, self.y)), "accent", 1.5, "3 3"))
        self.marks.append(Line(((stop, y - 2), (stop, self.y)), "accent", 1.5))
        self.marks.append(Line(((start, y), (stop, y)), "accent", 1.5, arrow=True))
        x, anchor = min(start, stop) - 8, "end"
        if abs(stop - start) > _WIDE_LETTER_PX * len(words) + 30:
            x, anchor = (start + stop) / 2, "middle"
        self.marks.append(Text(x, y + 4, words, "deck", "accent", anchor, halo=True))


def _row_names(timeline: Timeline) -> dict[tuple[int, str], str]:
    """Name each row after its lane, its rank, or both where both are several; then only the first of each rank."""
    pairs = timeline.rank_lanes()
    num_ranks = len({rank for rank, _ in pairs})
    num_lanes = len({lane for _, lane in pairs})
    names: dict[tuple[int, str], str] = {}
    named: set[int] = set()
    for rank, lane in pairs:
        if num_ranks == 1 or rank in named:
            names[rank, lane] = lane
        elif num_lanes == 1:
            names[rank, lane] = f"rank {rank}"
        else:
            names[rank, lane] = f"rank {rank} {lane}"
        named.add(rank)
    return names


def _numbered(timeline: Timeline) -> set[str]:
    """The kinds that have several items: only there does the number say something."""
    kinds = set()
    for number, kind in enumerate(timeline.kinds):
        if np.unique(timeline.item[timeline.kind == number]).size > 1:
            kinds.add(kind)
    return kinds


def _looks(panels: Mapping[str, Timeline]) -> dict[str, WorkLook]:
    """Return the look of each kind: its own, or one of the hues that are left, the longest first; the rest is grey."""
    seconds: dict[str, float] = {}
    for panel in panels.values():
        lengths = np.bincount(panel.kind, panel.stop_s - panel.start_s, len(panel.kinds)).tolist()
        for number in np.unique(panel.kind).tolist():
            seconds[panel.kinds[number]] = seconds.get(panel.kinds[number], 0.0) + lengths[number]
    looks = {kind: work_look(kind) for kind in seconds}
    used = {WORK.get(kind, WORK.get(kind.partition(" ")[0], WorkLook("", False))).hue for kind in seconds}
    free = iter([hue for hue in HUES if hue not in used])
    for kind in sorted(seconds, key=lambda kind: -seconds[kind]):
        if looks[kind] is None:
            looks[kind] = WorkLook(next(free, OTHER), False)
    return {kind: look for kind, look in looks.items() if look}


def _finding(timeline: Timeline) -> str:
    if not len(timeline):
        return "Nothing ran"
    (rank, lane), share = max(timeline.utilisation().items(), key=lambda entry: entry[1])
    busy = f"{lane} works for {percent_words(share)} of {time_words(timeline.makespan_s)}"
    named = f"Rank {rank}'s {busy}"
    return named if len(named) <= 48 else busy
