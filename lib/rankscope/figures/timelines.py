"""What ran when: a row per lane of a rank; panels share one axis, so that a prediction stands above its measurement."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping

import numpy as np

from ..common.checks import of_type
from ..common.units import percent_words, round_ticks, time_unit, time_words
from ..timeline.timeline import WAITS, Timeline
from .marks import DIGIT_PX, LEFT_PX, LETTER_PX, RIGHT_PX, Box, Drawing, Line, Mark, Text, axis, moved_down, plain
from .palette import HUES, OTHER, WORK, WorkLook, work_look
from .plots import Key, key_marks

COMMUNICATION = frozenset(kind for kind, look in WORK.items() if look.hatched)
_ROWS_PX = 420.0  # of all lanes, if there are many
_MOST_ROW_PX, _LEAST_ROW_PX = 26.0, 9.0
_GAP_PX, _HEAD_PX = 10.0, 26.0  # between ranks with several lanes, and above a panel with a name
_WIDE_LETTER_PX = 1.32 * LETTER_PX  # on a phone
_MOST_SPANS = 20_000
_MOST_KEYED = 800  # spans that answer to the pointer
_MOST_TIPS = 6


def draw_timeline(
    timeline: Timeline | Mapping[str, Timeline],
    title: str | None = None,
    deck: str | None = None,
    hatched: Collection[str] = (),
    rank_names: Mapping[int, str] | None = None,
    callouts_s: Mapping[str, float] | None = None,
) -> Drawing:
    """Draw the spans of a timeline, a row per lane of a rank; of several timelines by name, one below the other.

    The colour shows the kind of work, hatching shows communication (`palette.WORK`) and the kinds in `hatched`, and the
    number is the item. Waits are dotted lines. `rank_names` replace "rank 0" and so on. `callouts_s` are instants to
    point at, by their words; of two timelines, the difference of their ends is pointed at. Time starts at the first
    span. Raises ValueError if there are more than 20,000 spans; select a window or some ranks.
    """
    panels = timeline if isinstance(timeline, Mapping) else {"": timeline}
    for name, panel in panels.items():
        of_type("timeline" if not name else f"timeline {name!r}", panel, Timeline)
    num_spans = sum(map(len, panels.values()))
    if num_spans > _MOST_SPANS:
        raise ValueError(f"a drawing has at most {_MOST_SPANS} spans, got {num_spans}: select a window or a rank")
    picture = _Picture(panels, hatched, rank_names, bool(callouts_s))
    for name, panel in panels.items():
        picture.panel(name, panel)
    picture.axis()
    for words, instant_s in (callouts_s or {}).items():
        picture.call_out(words, instant_s - next(iter(panels.values())).begin_s)
    if len(panels) == 2:
        picture.difference(*panels.values())
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

    def __init__(
        self,
        panels: Mapping[str, Timeline],
        hatched: Collection[str] = (),
        rank_names: Mapping[int, str] | None = None,
        has_callouts: bool = False,
    ) -> None:
        self.marks: list[Mark] = []
        self.tips: dict[Hashable, str] = {}
        self.rank_names = rank_names or {}
        self.end_s = max([panel.makespan_s for panel in panels.values()], default=0.0)
        lanes = [panel.rank_lanes() for panel in panels.values()]
        self.row_px = min(max(_ROWS_PX / max(sum(map(len, lanes)), 1), _LEAST_ROW_PX), _MOST_ROW_PX)
        names = {lane for rank_lanes in lanes for _, lane in rank_lanes}
        has_ranks = any(len({rank for rank, _ in rank_lanes}) > 1 for rank_lanes in lanes)
        self.has_both = has_ranks and len(names) > 1  # else the names of the ranks, or of the lanes, say all
        self.has_ranks = has_ranks
        ranks = {rank for rank_lanes in lanes for rank, _ in rank_lanes}
        longest = max([len(self._rank_name(rank)) for rank in ranks], default=0)
        rank_px = (_WIDE_LETTER_PX * longest + 8) * self.has_both  # next to the names of the lanes
        self.left = max(LEFT_PX + rank_px, _WIDE_LETTER_PX * longest + 20)
        widest = max([_WIDE_LETTER_PX * len(name) for name in names], default=0.0)
        if not has_ranks or self.has_both:
            self.left = max(self.left, widest + 20 + rank_px)
        self.px_per_s = (RIGHT_PX - self.left) / (self.end_s or 1.0)
        self.looks = _looks(panels, hatched)
        self.named: set[str] = set()  # kinds whose name stands on a span
        self.is_keyed = sum(map(len, panels.values())) <= _MOST_KEYED
        self.top_of: list[float] = []  # of the panels
        self.y = 18.0 * has_callouts

    def panel(self, name: str, timeline: Timeline) -> None:
        if name:
            self.y += _HEAD_PX - 4
            self.marks.append(Text(self.left, self.y - 8, plain(name), "deck"))
        self.top_of.append(self.y)
        first = self.y
        has_number = _numbered(timeline)
        lanes: dict[tuple[int, str], list[int]] = {pair: [] for pair in timeline.rank_lanes()}
        for index in np.lexsort((timeline.stop_s, timeline.start_s)).tolist():
            lanes[int(timeline.rank[index]), timeline.lanes[timeline.lane[index]]].append(index)
        last_rank = None
        named_to = -np.inf  # below which a name of a row has room
        for (rank, lane), indices in lanes.items():
            if rank != last_rank:
                self.y += _GAP_PX * (self.has_both and self.y > first)
            baseline = self.y + self.row_px / 2 + 4
            rank_name = self._rank_name(rank)
            if self.has_both and rank != last_rank:
                self.marks.append(Text(8, baseline, rank_name, "label"))
            words = lane if self.has_both or not self.has_ranks else rank_name
            if baseline >= named_to:
                tone = "mute" if self.has_both else "ink"
                self.marks.append(Text(self.left - 12, baseline, plain(words), "label", tone, "end"))
                named_to = baseline + 13
            for index in indices:
                self.span(name, timeline, index, has_number)
            last_rank = rank
            self.y += self.row_px
        self.y += 8

    def _rank_name(self, rank: int) -> str:
        return plain(self.rank_names.get(rank, f"rank {rank}"))

    def span(self, panel: str, timeline: Timeline, index: int, has_number: Collection[str]) -> None:
        kind = timeline.kinds[timeline.kind[index]]
        start_s = float(timeline.start_s[index]) - timeline.begin_s
        length_s = float(timeline.stop_s[index] - timeline.start_s[index])
        x, width = self.left + start_s * self.px_per_s, length_s * self.px_per_s
        if kind in WAITS:
            self.wait(kind, x, width, length_s)
            return
        item = int(timeline.item[index])
        number = str(item) if kind in has_number and item != -1 else ""
        words = f"{kind} {number}".strip()
        needed_px = LETTER_PX * len(words) + 8
        if self.row_px < 12:
            words = ""
        elif width > needed_px and (kind not in self.named or not number):
            self.named.add(kind)
        else:
            words = number if width > DIGIT_PX * len(number) + 4 else ""
        look = self.looks[kind]
        key = (panel, item) if number and self.is_keyed else None
        width = max(width - (width > 3), 1.5)  # with a pixel of paper to the next one
        margin = min(2.0, self.row_px / 8)
        height = self.row_px - 2 * margin
        at = min(x, RIGHT_PX - width), self.y + margin
        self.marks.append(Box(*at, width, height, look.hue, "work", look.hatched, plain(words), key))
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
        unnamed = [kind for kind in self.looks if kind not in self.named and kind not in WAITS]
        return key_marks([Key(kind, *self.looks[kind]) for kind in unnamed])

    def axis(self) -> None:
        scale, unit = time_unit(self.end_s)
        ticks = []
        for time, words in round_ticks(self.end_s / scale or 1.0):
            ticks.append((self.left + time * scale * self.px_per_s, words if time else f"0 {unit}"))
        marks = axis(self.y, ticks)[1:]
        self.marks.append(Line(((self.left, self.y), (RIGHT_PX, self.y))))
        self.marks += marks

    def call_out(self, words: str, instant_s: float) -> None:
        """A line at an instant over all rows, with words at its top."""
        x = self.left + instant_s * self.px_per_s
        is_right = x > (self.left + RIGHT_PX) / 2
        self.marks.append(Line(((x, 16), (x, self.y)), "accent", 1.5))
        anchor = "end" if is_right else "start"
        self.marks.append(Text(x + (-6 if is_right else 6), 12, plain(words), "label", "accent", anchor))

    def difference(self, first: Timeline, second: Timeline) -> None:
        """An arrow from where the first panel ends to where the second does, above it, with the difference in words."""
        ends = [self.left + panel.makespan_s * self.px_per_s for panel in (first, second)]
        more_s = second.makespan_s - first.makespan_s
        if abs(ends[1] - ends[0]) < 8:
            return
        y = self.top_of[1] - 10
        words = f"{time_words(abs(more_s))} {'more' if more_s > 0 else 'less'}"
        self.marks.append(Line(((ends[0], self.top_of[1] - 26), (ends[0], self.y)), "accent", 1.5, "3 3"))
        self.marks.append(Line(((ends[1], self.top_of[1] - 12), (ends[1], self.y)), "accent", 1.5))
        self.marks.append(Line(((ends[0], y), (ends[1], y)), "accent", 1.5, arrow=True))
        self.marks.append(Text(min(ends) - 8, y + 4, words, "deck", "accent", "end", halo=True))


def _numbered(timeline: Timeline) -> set[str]:
    """The kinds that have several items: only there does the number say something."""
    kinds = set()
    for number, kind in enumerate(timeline.kinds):
        if np.unique(timeline.item[timeline.kind == number]).size > 1:
            kinds.add(kind)
    return kinds


def _looks(panels: Mapping[str, Timeline], hatched: Collection[str]) -> dict[str, WorkLook]:
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
    return {kind: WorkLook(look.hue, look.hatched or kind in hatched) for kind, look in looks.items() if look}


def _finding(timeline: Timeline) -> str:
    if not len(timeline):
        return "Nothing ran"
    (rank, lane), share = max(timeline.utilisation().items(), key=lambda entry: entry[1])
    busy = f"{lane} works for {percent_words(share)} of {time_words(timeline.makespan_s)}"
    named = f"Rank {rank}'s {busy}"
    return named if len(named) <= 48 else busy
