"""`Plot`: a drawing whose marks are columns in data units, with a horizontal axis, names of rows, and keys above it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import force_setattr
from numpy.typing import ArrayLike, NDArray

from .marks import LEFT_PX, LETTER_PX, RIGHT_PX, Box, Drawing, Line, Mark, Text, axis
from .palette import INK, MEMORY, PAPER, RANKS, TONES, WORK, ink_on

FloatArray = NDArray[np.floating[Any]]
WIDE_PX = 548.0  # of the marks of a wide plot
_RANKS = frozenset(RANKS)
_TINTED = _RANKS | {look.hue for look in (*WORK.values(), *MEMORY.values())}  # these are painted at partial opacity
_TONE_OF = {color: tone for tone, color in TONES.items()}
_KEY_PX = 20.0  # the height of a row of keys


class _Columns(msgspec.Struct, frozen=True, eq=False):
    """Marks as columns of equal length; a new value may be given what all marks share."""

    def __post_init__(self) -> None:
        """Repeat what all marks share. Raises ValueError for columns of other lengths."""
        given = {name: getattr(self, name) for name in self._columns()}
        arrays = [np.asarray(values).ravel() for values in given.values()]
        for name, column in zip(given, np.broadcast_arrays(*arrays), strict=True):
            force_setattr(self, name, tuple(column.tolist()) if column.dtype.kind in "UO" else column)

    def _columns(self) -> list[str]:
        single = ("edge", "anchor", "halo", "arrows", "width_px")
        return [name for name in self.__struct_fields__ if name not in single]


class Rects(_Columns, frozen=True, eq=False):
    """Rectangles: left edge, top edge, fill (``#rrggbb``), width, height, hatched or not; `edge` outlines all."""

    x: Any
    y: Any
    fill: Any
    width: Any = 1.0
    height: Any = 1.0
    hatched: Any = False
    edge: str = PAPER


class Texts(_Columns, frozen=True, eq=False):
    """Texts at points, a colour each; with a `halo`, they keep what lies behind off their letters."""

    x: Any
    y: Any
    text: Any
    color: Any = INK
    anchor: str = "middle"
    halo: Any = ()


class Lines(_Columns, frozen=True, eq=False):
    """Straight lines, a colour each, dashed or not; `arrows` puts a head at the end of each."""

    x0: Any
    y0: Any
    x1: Any
    y1: Any
    color: Any = INK
    dashed: Any = False
    arrows: bool = False
    width_px: float = 1.5


class Key(msgspec.Struct, frozen=True):
    """A word above the marks: with a box, a piece of line that is "solid" or "dashed", or nothing ("none")."""

    label: str
    fill: str
    hatched: bool = False
    edge: str = PAPER
    line: str = ""


class Plot(Drawing, frozen=True, eq=False, kw_only=True):
    """A drawing in data units, x to the right and y down from (0, 0) to (`width`, `height`).

    `size_px` is the size of the area that they fill. Lines lie on rectangles, texts on both. `rules` are vertical lines
    down to `rules_to`. The horizontal axis runs over `x_axis`, by default over the whole width.
    """

    x_label: str = ""
    y_label: str = ""
    width: float
    height: float
    size_px: tuple[float, float]
    rects: Sequence[Rects] = ()
    lines: Sequence[Lines] = ()
    texts: Sequence[Texts] = ()
    rules: Sequence[float] = ()
    rules_to: float | None = None
    x_axis: tuple[float, float] | None = None
    x_ticks: Sequence[tuple[float, str]] = ()
    y_ticks: Sequence[tuple[float, str]] = ()
    legend: Sequence[Key] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "rules", tuple(self.rules))
        marks, height_px = _marks(self)
        force_setattr(self, "marks", marks)
        force_setattr(self, "height_px", height_px)


def _marks(plot: Plot) -> tuple[list[Mark], float]:
    """The marks in pixels, and how high all are together."""
    longest = max([len(label) for _, label in plot.y_ticks], default=0)
    left = max(LEFT_PX, 1.32 * LETTER_PX * longest + 16)  # with the letters of a phone
    across = min(RIGHT_PX - left, max(plot.size_px[0], 160.0)) / plot.width
    keys, top = key_marks(plot.legend)
    down = plot.size_px[1] / plot.height
    if plot.y_label:
        is_long = LETTER_PX * len(plot.y_label) > left - 20
        at_x, anchor = (8.0, "start") if is_long else (left - 12, "end")
        keys.append(Text(at_x, top + 10, plot.y_label, "label", "mute", anchor))
        top += 18

    def at(x: float, y: float) -> tuple[float, float]:
        return left + x * across, top + y * down

    marks: list[Mark] = keys
    for rects in plot.rects:
        edge = _TONE_OF.get(rects.edge, rects.edge if rects.edge != "none" else "paper")
        columns = zip(rects.x, rects.y, rects.width, rects.height, rects.fill, rects.hatched, strict=True)
        for x, y, width, height, fill, hatched in columns:
            px = max(width * across - 1, 1), max(height * down - 1, 1)
            tone = _TONE_OF.get(fill, fill)
            marks.append(Box(*at(x, y), *px, tone, _look(fill), bool(hatched), edge=edge if edge != "paper" else ""))
    bottom = plot.height if plot.rules_to is None else plot.rules_to
    for rule in plot.rules:
        marks.append(Line((at(rule, 0), at(rule, bottom)), "accent", 1.5))
    for lines in plot.lines:
        for x0, y0, x1, y1, color, dashed in zip(
            lines.x0, lines.y0, lines.x1, lines.y1, lines.color, lines.dashed, strict=True
        ):
            tone = _TONE_OF.get(color, color)
            dash = "3 3" if dashed else ""
            marks.append(Line((at(x0, y0), at(x1, y1)), tone, lines.width_px, dash, lines.arrows))
    for texts in plot.texts:
        has_halo = bool(texts.halo) and PAPER in texts.halo
        for x, y, words, color in zip(texts.x, texts.y, texts.text, texts.color, strict=True):
            if words:
                text_x, text_y = at(x, y)
                tone = _TONE_OF.get(color, color)
                marks.append(Text(text_x, text_y + 4, words, "number", tone, texts.anchor, has_halo))
    for y, label in plot.y_ticks:
        marks.append(Text(left - 12, at(0, y)[1] + 4, label, "label", "ink", "end"))
    end = top + plot.size_px[1] + 4
    start_x, stop_x = plot.x_axis or (0.0, plot.width)
    if plot.x_ticks:
        ticks = [(at(x, 0)[0], label) for x, label in plot.x_ticks]
        marks += axis(end, ticks, at(start_x, 0)[0], at(stop_x, 0)[0])
        end += 22
    if plot.x_label:
        middle = at((start_x + stop_x) / 2, 0)[0]
        marks.append(Text(middle, end + 14, plot.x_label, "label", "mute", "middle"))
        end += 20
    return marks, end + 4


def _look(fill: str) -> str:
    if fill in _RANKS:
        return "tint"
    return "work" if fill in _TINTED else "solid"


def key_marks(keys: Sequence[Key]) -> tuple[list[Mark], float]:
    """Return the keys in rows from the left, and how high they are together."""
    marks: list[Mark] = []
    x, y = LEFT_PX, 0.0
    for key in keys:
        mark_px = 0 if key.line == "none" else 18
        needed_px = mark_px + 1.32 * LETTER_PX * len(key.label) + 16  # with the letters of a phone
        if x + needed_px > RIGHT_PX + 16 and x > LEFT_PX:
            x, y = LEFT_PX, y + _KEY_PX
        tone = _TONE_OF.get(key.fill, key.fill)
        if key.line in ("solid", "dashed"):
            marks.append(Line(((x, y + 6), (x + 13, y + 6)), tone, 2, "4 3" if key.line == "dashed" else ""))
        elif mark_px:
            edge = "" if key.edge == PAPER else _TONE_OF.get(key.edge, key.edge)
            marks.append(Box(x, y, 12, 12, key.fill, _look(key.fill), key.hatched, edge=edge))
        marks.append(Text(x + mark_px, y + 10, key.label, "label", "mute"))
        x += needed_px
    return marks, y + _KEY_PX + 4 if keys else 0.0


def numbers_on(rects: Rects, numbers: NDArray[Any], wanted: NDArray[np.bool_] | None = None) -> tuple[Texts, ...]:
    """Write a number, legibly, in the middle of each rectangle, or of the `wanted` ones."""
    chosen = np.flatnonzero(np.ones(numbers.size, dtype=bool) if wanted is None else wanted)
    fills = [rects.fill[index] for index in chosen.tolist()]
    inks = [INK if fill in _TINTED else ink_on(fill) for fill in fills]
    x = rects.x[chosen] + rects.width[chosen] / 2
    y = rects.y[chosen] + rects.height[chosen] / 2
    return (Texts(x, y, [str(number) for number in numbers[chosen].tolist()], inks),)


def frame(rows: ArrayLike, length: ArrayLike, width: float, margin: float = 0.003) -> Rects:
    """Return frames around the horizontal bars of these rows and lengths, for a plot of that width."""
    pad = margin * width
    return Rects(-pad, np.add(rows, 0.04), PAPER, width=np.add(length, 2 * pad), height=0.92, edge=INK)


def stacked(parts: Mapping[Key, FloatArray], margin: float = 0.14) -> list[Rects]:
    """Return horizontal bars, one below the other: each part begins where the one before ends, and has its key's look.

    A part has a length for each bar. Rows are 1 high, and `margin` of a row is free above its bar, and also below it.
    """
    bars: list[Rects] = []
    start: FloatArray = np.zeros(1)  # for all bars
    for key, length in parts.items():
        y = np.arange(length.size) + margin
        bars.append(Rects(start, y, key.fill, width=length, height=1 - 2 * margin, hatched=key.hatched))
        start = start + length
    return bars


def whole_ticks(count: int, most: int = 12) -> tuple[tuple[float, str], ...]:
    """Return ticks at the middles of cells 0 … count-1: every 1st, 2nd, 5th, 10th, … so that there are at most `most`.

    >>> whole_ticks(4)
    ((0.5, '0'), (1.5, '1'), (2.5, '2'), (3.5, '3'))
    """
    steps = (factor * 10**power for power in range(20) for factor in (1, 2, 5))
    step = next(step for step in steps if count <= step * most)
    return tuple((cell + 0.5, str(cell)) for cell in range(0, count, step))


def spread_out(places: Sequence[float], least: float) -> list[float]:
    """Return rising places, moved so that they are at least this far apart, and at most 1.

    >>> [round(place, 3) for place in spread_out([0.0, 0.0, 1.0, 1.0], 0.1)]
    [0.0, 0.1, 0.9, 1.0]
    """
    upwards: list[float] = []
    for place in places:
        lowest = upwards[-1] + least if upwards else place
        upwards.append(max(place, lowest))
    downwards: list[float] = []
    highest = 1.0
    for place in reversed(upwards):
        downwards.append(min(place, highest))
        highest = downwards[-1] - least
    return downwards[::-1]
