"""A drawing is data: a list of marks in pixels of a page that is 640 px wide, which `svg` paints."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ..common.units import round_ticks, time_unit
from .palette import WorkLook

WIDTH_PX = 640.0  # of a page
LEFT_PX = 84.0  # where marks begin; the names of rows end 12 px before them
RIGHT_PX = 632.0  # where marks end
SIZES_PX = {"title": 18, "deck": 13, "label": 12, "number": 11}  # of letters
LETTER_PX = 6.4  # the mean width of a letter of a label, and the width of a digit
WIDE_LETTER_PX = 1.32 * LETTER_PX  # on a phone
_NAME_LETTERS = 36  # of a row, at most
_KEY_LETTERS = 60  # of what a look means, at most


class Box(NamedTuple):
    """A rectangle. Boxes of one `key` light up together, and move when a drawing replaces another one.

    `fill` and `edge` are ``#rrggbb`` or a tone of the palette. `look` is "tint", "work", which begins with an edge of
    its full hue, "wait", a dotted line, "hole", which is nearly paper, or "solid".
    """

    x: float
    y: float
    width: float
    height: float
    fill: str
    look: str = "tint"
    hatched: bool = False
    text: str = ""
    key: Hashable = None
    edge: str = ""


class Text(NamedTuple):
    """A text on its baseline; `halo` keeps what lies behind off it. Words between asterisks have the alarm's tone."""

    x: float
    y: float
    text: str
    size: str = "label"
    tone: str = "ink"
    anchor: str = "start"
    halo: bool = False


class Line(NamedTuple):
    """A line through points. A `curved` one has three, of which it does not touch the middle one.

    With a `key`, it shows only while the pointer is on a box of that key.
    """

    points: Sequence[tuple[float, float]]
    tone: str = "rule"
    width: float = 1.0
    dash: str = ""  # as SVG writes it
    arrow: bool = False
    curved: bool = False
    key: Hashable = None


Mark: TypeAlias = Box | Text | Line


def moved_down(mark: Mark, by_px: float) -> Mark:
    """Return the same mark, so much further down."""
    if isinstance(mark, Line):
        return mark._replace(points=[(x, y + by_px) for x, y in mark.points])
    return mark._replace(y=mark.y + by_px)


def with_text(box: Box, words: str) -> Box:
    """Return the box with a text in it, if there is room."""
    has_room = box.width >= LETTER_PX * len(words) + 2 and box.height >= 9
    return box._replace(text=words) if has_room else box


def every_nth(pitch_px: float, least_px: float) -> int:
    """Return of how many neighbours, so far apart, one has a name: every one, or every second, fifth, tenth …"""
    return next(nth for nth in (1, 2, 5, 10, 20, 50, 100, 1000) if nth * pitch_px >= least_px)


def left_of(names: Iterable[str]) -> float:
    """Return where rows of these names begin."""
    letters = min(max(map(len, names), default=0), _NAME_LETTERS)
    return max(LEFT_PX, WIDE_LETTER_PX * letters + 20)


def row_name(y: float, words: str, tone: str = "ink", left: float = LEFT_PX) -> Text:
    """Return the name of a row whose baseline is at `y`, and which begins at `left`."""
    return Text(left - 12, y, _cut(words, _NAME_LETTERS), "label", tone, "end")


def _cut(words: str, most: int) -> str:
    """Leave out the middle of a text of more than `most` letters: names often differ at the end."""
    return words if len(words) <= most else f"{words[: most // 2]}…{words[1 - most // 2 :]}"


def key_marks(keys: Mapping[str, WorkLook]) -> tuple[list[Mark], float]:
    """Return what each look means, in rows from the left, and how high the rows are; waiting is a dotted line."""
    marks: list[Mark] = []
    x = LEFT_PX
    y = 0.0
    for name, look in keys.items():
        label = _cut(name, _KEY_LETTERS)
        width = WIDE_LETTER_PX * len(label) + 34
        if x > LEFT_PX and x + width > RIGHT_PX + 20:
            x = LEFT_PX
            y += 20
        marks.append(Box(x, y, 12, 12, look.hue, look.look, look.hatched))
        marks.append(Text(x + 18, y + 10, label, "label", "mute"))
        x += width
    return marks, y + 24 if keys else 0.0


def axis(y: float, ticks: Sequence[tuple[float, str]], left: float) -> list[Mark]:
    """Return a horizontal axis, with its ticks at these places in pixels."""
    marks: list[Mark] = [Line(((left, y), (RIGHT_PX, y)))]
    for x, words in ticks:
        marks.append(Line(((x, y), (x, y + 5)), "mute"))
        inside = min(x, WIDTH_PX - WIDE_LETTER_PX * len(words) / 2)
        marks.append(Text(inside, y + 18, words, "label", "mute", "middle"))
    return marks


def time_axis(y: float, left: float, end_s: float) -> list[Mark]:
    """Return an axis of time from 0 to `end_s`, which is not 0."""
    scale, unit = time_unit(end_s)
    ticks = []
    for time, words in round_ticks(end_s / scale):
        x = left + time * scale / end_s * (RIGHT_PX - left)
        ticks.append((x, words if time else f"0 {unit}"))
    return axis(y, ticks, left)
