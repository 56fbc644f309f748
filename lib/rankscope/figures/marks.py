"""A drawing is data: rectangles, texts and lines in the units of what they show, painted by `svg` or by `axes`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import force_setattr
from numpy.typing import ArrayLike, NDArray

from ..common.words import printable
from .palette import INK, ink_on

FloatArray = NDArray[np.floating[Any]]
Column: TypeAlias = Any  # an array; a new value may be given a sequence, or what all marks share
Strings: TypeAlias = Any  # a tuple; a new value may be given a sequence, or what all marks share
WIDE_PX = 660.0  # of the marks of a wide drawing: with its axes, a picture is as wide as a page's text
WIDE_INCHES = 8.0  # of a wide figure of matplotlib, axes included
NARROW_PX = 4  # rectangles narrower than this have no outline, which would hide them
_FRAME_MARGIN = 0.04  # above and below the frame of a bar, as a part of its row
_MOST_CHARACTERS = 400  # of a text: matplotlib takes 0.2 ms for each


def _column(values: ArrayLike) -> FloatArray:
    return np.asarray(values, dtype=float).ravel()


def _flags(values: ArrayLike) -> NDArray[np.bool_]:
    return np.asarray(values, dtype=bool).ravel()


def plain(text: str) -> str:
    """Return a text for a picture: of printable characters and line breaks, and of bounded length."""
    # One character more than is allowed says that the text is too long.
    shown = printable(text[: _MOST_CHARACTERS + 1], keep="\n")
    if len(shown) > _MOST_CHARACTERS:
        return f"{shown[: _MOST_CHARACTERS - 1]}…"
    return shown


def _plain_texts(values: Sequence[str] | str) -> Any:
    return plain(values) if isinstance(values, str) else tuple(map(plain, values))


def _ticks(ticks: Iterable[tuple[float, str]]) -> tuple[tuple[float, str], ...]:
    return tuple((place, plain(label)) for place, label in ticks)


def _strings(values: Sequence[str] | str) -> Any:
    return values if isinstance(values, str) else tuple(values)


def _convert(value: msgspec.Struct, to: Callable[[Any], Any], *names: str) -> None:
    """Convert fields of a new value, which may have been given in other types."""
    for name in names:
        force_setattr(value, name, to(getattr(value, name)))


def _align(marks: Any, kind: str, columns: Sequence[str], strings: Sequence[str]) -> None:
    """Give all columns of new marks the same length: a value that all share is repeated.

    `columns` and `strings` name the fields that have a number, or a string, for each mark.
    """
    aligned = np.broadcast_arrays(*(getattr(marks, name) for name in columns))
    for name, column in zip(columns, aligned, strict=True):
        force_setattr(marks, name, column)
    size = aligned[0].size
    for name in strings:
        values = getattr(marks, name)
        if isinstance(values, str):
            force_setattr(marks, name, (values,) * size)
        elif len(values) != size:
            raise ValueError(f"{size} {kind} need {size} values of {name}, got {len(values)}")


class Rects(msgspec.Struct, frozen=True, eq=False):
    """Rectangles as columns: left edge, top edge, fill (``#rrggbb``), width, height, hatched or not.

    A value that all share may be given once. `edge` colours every outline. `joined` says that an SVG may have one shape
    for all of a fill, which a browser paints faster if there are hundreds. Raises ValueError for columns of other
    lengths.
    """

    x: Column
    y: Column
    fill: Strings
    width: Column = 1.0
    height: Column = 1.0
    hatched: Column = False
    edge: str = "#ffffff"
    joined: bool = False

    def __post_init__(self) -> None:
        _convert(self, _column, "x", "y", "width", "height")
        _convert(self, _flags, "hatched")
        _convert(self, _strings, "fill")
        _align(self, "rectangles", ("x", "y", "width", "height", "hatched"), ("fill",))


class Texts(msgspec.Struct, frozen=True, eq=False):
    """Texts at points, a colour each; `halo`, if not empty, has the colour that outlines each, for a hatched ground.

    A value that all share may be given once. Raises ValueError for columns of other lengths.
    """

    x: Column
    y: Column
    text: Strings
    color: Strings = INK
    size_px: float = 11.0
    anchor: str = "middle"
    halo: Strings = ()

    def __post_init__(self) -> None:
        _convert(self, _column, "x", "y")
        _convert(self, _plain_texts, "text")
        _convert(self, _strings, "color", "halo")
        strings = ["text", "color"]
        if self.halo:  # it may be empty, and the others may not
            strings.append("halo")
        _align(self, "texts", ("x", "y"), strings)


class Lines(msgspec.Struct, frozen=True, eq=False):
    """Straight lines as columns, a colour each, dashed or not; `arrows` puts a head at the end of each.

    A value that all share may be given once. Raises ValueError for columns of other lengths.
    """

    x0: Column
    y0: Column
    x1: Column
    y1: Column
    color: Strings = INK
    dashed: Column = False
    arrows: bool = False
    width_px: float = 1.5
    joined: bool = False

    def __post_init__(self) -> None:
        _convert(self, _column, "x0", "y0", "x1", "y1")
        _convert(self, _flags, "dashed")
        _convert(self, _strings, "color")
        _align(self, "lines", ("x0", "y0", "x1", "y1", "dashed"), ("color",))


class Key(msgspec.Struct, frozen=True):
    """One entry of a legend: a box, or a piece of line if `line` is "solid" or "dashed", or no mark if it is "none"."""

    label: str
    fill: str
    hatched: bool = False
    edge: str = "#ffffff"
    line: str = ""

    def __post_init__(self) -> None:
        _convert(self, plain, "label")


class Drawing(msgspec.Struct, frozen=True):
    """Marks in data units, x to the right and y DOWN (rank 0 on top), with title, labels, ticks and legend.

    `width` and `height` are the extent in data units from (0, 0); `size_px` is the size of the area they fill. Lines
    lie on rectangles, texts on both. `rules` are vertical lines from the top down to `rules_to`, over the whole height
    if that is None. `x_axis` says from where to where the horizontal axis runs, over the whole width if that is None:
    its label is below the middle of it. All texts are written as `plain` returns them.
    """

    title: str
    x_label: str
    y_label: str
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
        _convert(self, plain, "title", "x_label", "y_label")
        _convert(self, tuple, "rects", "lines", "texts", "rules", "legend")
        _convert(self, _ticks, "x_ticks", "y_ticks")

    @property
    def x_middle(self) -> float:
        """The middle of the horizontal axis, in data units."""
        left, right = self.x_axis or (0.0, self.width)
        return (left + right) / 2


def grid_drawing(
    *,
    title: str,
    x_label: str,
    y_label: str,
    columns: int,
    rows: float,
    column_px: float,
    row_px: float,
    rects: Sequence[Rects],
    texts: Sequence[Texts] = (),
    rules: Sequence[float] = (),
    rules_to: float | None = None,
    x_ticks: Sequence[tuple[float, str]] = (),
    y_ticks: Sequence[tuple[float, str]] = (),
    legend: Sequence[Key] = (),
) -> Drawing:
    """Return a drawing in whose data units a cell is 1 wide and 1 high, of cells of this size in pixels."""
    return Drawing(
        title=title,
        x_label=x_label,
        y_label=y_label,
        width=columns,
        height=rows,
        size_px=(column_px * columns, row_px * rows),
        rects=rects,
        texts=texts,
        rules=rules,
        rules_to=rules_to,
        x_ticks=x_ticks,
        y_ticks=y_ticks,
        legend=legend,
    )


def numbers_on(
    rects: Rects,
    numbers: NDArray[Any],
    color: str | None = None,
    size_px: float = 11.0,
    wanted: NDArray[np.bool_] | None = None,
) -> tuple[Texts, ...]:
    """Write a number in the middle of each rectangle, or of the `wanted` ones.

    Without a `color` it is dark or white, whichever stands out more from the fill. On a hatched ground it has a halo of
    the fill's colour, which keeps the hatching off it.
    """
    if wanted is None:
        wanted = np.ones(numbers.size, dtype=bool)
    texts = []
    for hatched in (False, True):
        chosen = np.flatnonzero(wanted & (rects.hatched == hatched))
        fills = [rects.fill[index] for index in chosen.tolist()]
        ink = [ink_on(fill) if color is None else color for fill in fills]
        x = rects.x[chosen] + rects.width[chosen] / 2
        y = rects.y[chosen] + rects.height[chosen] / 2
        words = [str(number) for number in numbers[chosen].tolist()]
        texts.append(Texts(x, y, words, ink, size_px=size_px, halo=fills if hatched else ()))
    return tuple(texts)


def frame(rows: ArrayLike, length: ArrayLike, width: float, margin: float = 0.003) -> Rects:
    """Return frames around the horizontal bars of these rows and lengths, for a drawing of that width.

    A frame is longer than its bar by `margin` of the drawing's width at each end, and fills most of the row.
    """
    pad = margin * width
    return Rects(
        -pad, np.add(rows, _FRAME_MARGIN), INK, width=np.add(length, 2 * pad), height=1 - 2 * _FRAME_MARGIN, edge=INK
    )


def stacked(parts: Mapping[Key, FloatArray], margin: float = 0.14) -> list[Rects]:
    """Return horizontal bars, one below the other: each part looks as its key, and begins where the one before ends.

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
    >>> [label for _, label in whole_ticks(64)]
    ['0', '10', '20', '30', '40', '50', '60']
    """
    steps = (factor * 10**power for power in range(20) for factor in (1, 2, 5))  # more than any array has cells
    step = next(step for step in steps if count <= step * most)
    return tuple((cell + 0.5, str(cell)) for cell in range(0, count, step))


def spread_out(places: Sequence[float], least: float) -> list[float]:
    """Return rising places, moved as little as possible so that they are at least this far apart, and at most 1.

    Places that are too close form a group, which keeps its middle. Those that would be above 1 are moved down.

    >>> [round(place, 3) for place in spread_out([0.0, 0.0, 1.0], 0.1)]
    [-0.05, 0.05, 1.0]
    """

    def middle(group: list[float]) -> float:
        return sum(group) / len(group)

    def overlap(lower: list[float], upper: list[float]) -> bool:
        half_of_lower = least / 2 * len(lower)  # each place of a group takes `least`
        half_of_upper = least / 2 * len(upper)
        return middle(upper) - middle(lower) < half_of_lower + half_of_upper

    groups: list[list[float]] = []
    for place in places:
        groups.append([place])
        # A group that grows may reach the one below it, and so on.
        while len(groups) > 1 and overlap(groups[-2], groups[-1]):
            last_group = groups.pop()
            groups[-1] = groups[-1] + last_group
    moved = []
    for group in groups:
        for number in range(len(group)):
            steps_from_middle = number - (len(group) - 1) / 2
            moved.append(middle(group) + steps_from_middle * least)
    spread = []
    for index, place in enumerate(moved):
        num_above = len(moved) - 1 - index
        highest = 1 - least * num_above  # so that those above it have room up to 1
        spread.append(min(place, highest))
    return spread
