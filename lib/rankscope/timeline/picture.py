"""What ran when: a row per lane of a rank; panels share one axis, so that a prediction stands above its measurement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping

from ..common.checks import of_type
from ..common.units import cell_words
from ..drawing.drawing import Drawing
from ..drawing.marks import (
    LETTER_PX,
    RIGHT_PX,
    Box,
    Line,
    Mark,
    Text,
    every_nth,
    key_marks,
    left_of,
    moved_down,
    row_name,
    time_axis,
)
from ..drawing.palette import HUES, OTHER, WorkLook, work_look
from .spans import Span
from .timeline import WAITS, Timeline

_ROWS_PX = 420.0  # of all lanes, if there are many
_MOST_ROW_PX = 26.0
_LEAST_ROW_PX = 9.0
_GAP_PX = 10.0  # between ranks with several lanes
_HEAD_PX = 26.0  # above a panel with a name
_ARROW_PX = 22.0  # under the name of a second panel, for the difference of both
_MOST_SPANS = 20_000
_MOST_KEYED = 800  # spans that answer to the pointer


def draw_timeline(timeline: Timeline | Mapping[str, Timeline], title: str | None = None, deck: str = "") -> Drawing:
    """Draw the spans of a timeline, a row per lane of a rank; of several timelines by name, one below the other.

    The colour shows the kind of work, hatching shows communication (`palette.WORK`), and the number is the item. Waits
    are dotted lines. Time starts at the first span. Of two timelines, the difference of their ends is pointed at.
    Raises ValueError if there are more than 20,000 spans; select a window or some ranks.
    """
    panels = timeline if isinstance(timeline, Mapping) else {"": timeline}
    for name, panel in panels.items():
        of_type(f"timeline {name}".strip(), panel, Timeline)
    picture = _Picture(panels)
    if picture.num_spans > _MOST_SPANS:
        raise ValueError(f"at most {_MOST_SPANS} spans are drawn, got {picture.num_spans}: select a window or a rank")
    below = [mark for name, panel in panels.items() for mark in picture.panel(name, panel)]
    below += time_axis(picture.y, picture.left, picture.end_s)
    if picture.has_arrow:  # behind the bars and their words
        below = [*picture.difference(), *below]
    unnamed: dict[WorkLook, list[str]] = defaultdict(list)
    for kind, look in picture.looks.items():
        if kind not in picture.named:
            unnamed[look].append(kind)
    marks, legend_px = key_marks({", ".join(kinds): look for look, kinds in unnamed.items()})
    marks += [moved_down(mark, legend_px) for mark in below]
    return Drawing(
        title or _finding(next(iter(panels.values()))), marks, legend_px + picture.y + 26, deck, picture.tips
    )


def time_scale(timeline: Timeline) -> tuple[float, float]:
    """Return where time begins in the drawing of a timeline, and the pixels of a second."""
    picture = _Picture({"": timeline})
    return picture.left, picture.px_per_s


class _Picture:
    """The marks of timelines, from the top down; `y` is where the next row begins."""

    def __init__(self, panels: Mapping[str, Timeline]) -> None:
        names = [name for panel in panels.values() for name in _row_names(panel).values()]
        self.row_px = min(max(_ROWS_PX / max(len(names), 1), _LEAST_ROW_PX), _MOST_ROW_PX)
        self.left = left_of(names)
        self.end_s = max([panel.makespan_s for panel in panels.values()]) or 1.0
        self.px_per_s = (RIGHT_PX - self.left) / self.end_s
        self.stops = [self.x(panel.makespan_s) for panel in panels.values()]
        self.has_arrow = len(self.stops) == 2 and abs(self.stops[1] - self.stops[0]) >= 8
        self.looks = _looks(panels)
        self.named: set[str] = set()  # kinds whose name stands on a span, or next to their row
        self.num_spans = sum(map(len, panels.values()))
        self.tips: dict[Hashable, str] = {}
        self.y = 0.0
        self.top = 0.0  # of the last panel

    def x(self, time_s: float) -> float:
        return self.left + time_s * self.px_per_s

    def panel(self, name: str, timeline: Timeline) -> Iterator[Mark]:
        """Yield the rows of a timeline."""
        if name:
            yield Text(self.left, self.y + _HEAD_PX - 8, name, "deck", halo=True)
            self.y += _HEAD_PX + (_ARROW_PX if self.y and self.has_arrow else 0)
        self.top = self.y
        items: dict[str, set[int]] = defaultdict(set)  # of each kind of work; of several, a number says something
        has_room: dict[str, list[bool]] = defaultdict(list)  # for its number
        spans_of: dict[tuple[int, str], list[Span]] = defaultdict(list)
        for span in sorted(timeline, key=lambda span: (span.start_s, span.stop_s)):
            items[span.kind].add(span.item if span.kind not in WAITS else -1)
            has_room[span.kind].append(self.fits(span, str(span.item)))
            spans_of[span.rank, span.lane].append(span)
        numbered = {kind for kind, fits in has_room.items() if 2 * sum(fits) > len(fits)}  # most of its spans
        begin_s = timeline.begin_s
        names = _row_names(timeline)
        has_lanes = len(names) > len({rank for rank, _ in names})
        last_rank = min(timeline.rank, default=0)
        for row, (place, words) in enumerate(names.items()):
            if has_lanes and place[0] != last_rank:
                self.y += _GAP_PX
            last_rank = place[0]
            if row % every_nth(self.row_px, 13) == 0:
                yield row_name(self.y + self.row_px / 2 + 4, words, left=self.left)
                self.named |= {place[1], place[1].partition(" ")[0]}
            for span in spans_of[place]:
                number = str(span.item) if len(items[span.kind]) > 1 and span.item != -1 else ""
                if span.kind in self.looks:
                    yield from self.span(name, span, span.start_s - begin_s, number, span.kind in numbered)
            self.y += self.row_px
        self.y += 8

    def fits(self, span: Span, words: str) -> bool:
        """Return whether there is room for words on the bar of a span."""
        return (span.stop_s - span.start_s) * self.px_per_s > LETTER_PX * len(words) + 8 and self.row_px >= 12

    def span(self, panel: str, span: Span, start_s: float, number: str, is_numbered: bool) -> Iterator[Mark]:
        """Yield a bar with its kind, its number or both, or the dotted line of a wait and its length."""
        duration_s = span.stop_s - span.start_s
        width = duration_s * self.px_per_s
        bar_px = max(width - (width > 3), 1.5)  # with a pixel of paper to the next one
        margin = min(2.0, self.row_px / 8)
        at = min(self.x(start_s), RIGHT_PX - bar_px), self.y + margin, bar_px, self.row_px - 2 * margin
        look = self.looks[span.kind]
        text = number if is_numbered and self.fits(span, number) else ""
        words = f"{span.kind} {number}".strip() if span.kind not in WAITS else f"{span.kind} {cell_words(duration_s)}"
        if self.fits(span, words) and (span.kind not in self.named or not number):
            self.named.add(span.kind)
            text = words
        box = Box(*at, look.hue, look.look, look.hatched, text)
        if number and self.num_spans <= _MOST_KEYED:
            box = box._replace(key=(panel, span.item))
            tip = self.tips.get(box.key, f"{number}:")
            self.tips[box.key] = f"{tip} {span.kind} {cell_words(start_s)} to {cell_words(start_s + duration_s)};"
        yield box

    def difference(self) -> Iterator[Mark]:
        """Yield an arrow from where the first panel ends to where the second does, under its name, with its length."""
        start, stop = self.stops
        words = f"{cell_words(abs(stop - start) / self.px_per_s)} {'more' if stop > start else 'less'}"
        y = self.top - 12
        yield Line(((start, y - 6), (start, self.y)), "accent", 1.5, "3 3")
        yield Line(((stop, y - 2), (stop, self.y)), "accent", 1.5)
        yield Line(((start, y), (stop, y)), "accent", 1.5, arrow=True)
        yield Text(max(min(start, stop) - 8, 120), y + 4, words, "deck", "accent", "end")


def _row_names(timeline: Timeline) -> dict[tuple[int, str], str]:
    """Name each row after its lane, its rank, or both where both are several; then only the first of each rank."""
    rank_lanes = timeline.rank_lanes()
    num_lanes = len({lane for _, lane in rank_lanes})
    last_rank = -1
    if len({rank for rank, _ in rank_lanes}) == 1:
        last_rank = rank_lanes[0][0]  # needs no name
    names = {}
    for rank, lane in rank_lanes:
        words = lane
        if rank != last_rank:
            words = f"rank {rank} {lane}" if num_lanes > 1 else f"rank {rank}"
        names[rank, lane] = words
        last_rank = rank
    return names


def _looks(panels: Mapping[str, Timeline]) -> dict[str, WorkLook]:
    """Return the look of each kind that shows: its own, or a hue that is left, the longest first; the rest is grey."""
    seconds: dict[str, float] = defaultdict(float)
    for panel in panels.values():
        for span in panel:
            seconds[span.kind] += span.stop_s - span.start_s
    used = {work_look(kind.partition(" ")[0]) for kind in seconds}
    free = iter([hue for hue in HUES if not {WorkLook(hue, False), WorkLook(hue, True)} & used])
    others = {
        kind: WorkLook(next(free, OTHER), False)
        for kind in sorted(seconds, key=lambda kind: -seconds[kind])
        if not work_look(kind)
    }
    return {kind: work_look(kind) or others[kind] for kind in seconds if seconds[kind] or kind not in WAITS}


def _finding(timeline: Timeline) -> str:
    if not len(timeline):
        return "Nothing ran"
    (rank, lane), share = max(timeline.utilisation().items(), key=lambda entry: entry[1])
    idle_s = round((1 - share) * timeline.makespan_s, 12)  # less comes from rounding
    return f"Rank {rank}'s {lane} idles for {cell_words(idle_s)} of {cell_words(timeline.makespan_s)}"
