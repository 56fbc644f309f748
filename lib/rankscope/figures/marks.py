"""A drawing is data: rectangles, texts and lines in the units of what they show, painted by `svg` or by `axes`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .palette import INK, ink_on

FloatArray = NDArray[np.floating[Any]]


def _columns(*values: ArrayLike) -> list[FloatArray]:
    """The values as columns of one length."""
    return [column.ravel() for column in np.broadcast_arrays(*(np.asarray(one, dtype=float) for one in values))]


def _each(marks: str, what: str, values: Sequence[str] | str, size: int) -> tuple[str, ...]:
    """One value for each mark: those given, or the one that all share."""
    found = (values,) * size if isinstance(values, str) else tuple(values)
    if len(found) != size:
        raise ValueError(f"{size} {marks} need {size} {what}, got {len(found)}")
    return found


@dataclass(frozen=True, eq=False)
class Rects:
    """Rectangles as columns: left edge, top edge, width, height, fill (``#rrggbb``), hatched or not; `edge` colours
    every outline."""

    x: FloatArray
    y: FloatArray
    width: FloatArray
    height: FloatArray
    fill: tuple[str, ...]
    hatched: NDArray[np.bool_]
    edge: str = "#ffffff"

    @classmethod
    def of(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        fill: Sequence[str] | str,
        *,
        width: ArrayLike = 1.0,
        height: ArrayLike = 1.0,
        hatched: ArrayLike = False,
        edge: str = "#ffffff",
    ) -> Rects:
        """Make rectangles from columns and from values that all share."""
        left, top, wide, high = _columns(x, y, width, height)
        fills = _each("rectangles", "fills", fill, left.size)
        return cls(left, top, wide, high, fills, np.broadcast_to(np.asarray(hatched, dtype=bool), left.shape), edge)


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts at points, a colour each; `halo`, if not empty, has the colour that outlines each, for a hatched ground."""

    x: FloatArray
    y: FloatArray
    text: tuple[str, ...]
    color: tuple[str, ...]
    size_px: float = 11.0
    anchor: str = "middle"
    halo: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        text: Sequence[str],
        color: Sequence[str] | str = INK,
        *,
        size_px: float = 11.0,
        anchor: str = "middle",
        halo: Sequence[str] | str = (),
    ) -> Texts:
        """Make texts from columns and from values that all share."""
        x, y, _ = _columns(x, y, np.zeros(len(text)))
        colors = _each("texts", "colours", color, x.size)
        return cls(x, y, tuple(text), colors, size_px, anchor, _each("texts", "halos", halo, x.size) if halo else ())


@dataclass(frozen=True, eq=False)
class Lines:
    """Straight lines as columns, a colour each, dashed or not; `arrows` puts a head at the end of each."""

    x0: FloatArray
    y0: FloatArray
    x1: FloatArray
    y1: FloatArray
    color: tuple[str, ...]
    dashed: NDArray[np.bool_]
    arrows: bool = False
    width_px: float = 1.5

    @classmethod
    def of(
        cls,
        x0: ArrayLike,
        y0: ArrayLike,
        x1: ArrayLike,
        y1: ArrayLike,
        color: Sequence[str] | str,
        *,
        dashed: ArrayLike = False,
        arrows: bool = False,
        width_px: float = 1.5,
    ) -> Lines:
        """Make lines from columns and from values that all share."""
        from_x, from_y, to_x, to_y = _columns(x0, y0, x1, y1)
        colors = _each("lines", "colours", color, from_x.size)
        marked = np.broadcast_to(np.asarray(dashed, dtype=bool), from_x.shape)
        return cls(from_x, from_y, to_x, to_y, colors, marked, arrows, width_px)


@dataclass(frozen=True)
class Key:
    """One entry of a legend: a box, or a piece of line where `line` is "solid" or "dashed"."""

    label: str
    fill: str
    hatched: bool = False
    edge: str = "#ffffff"
    line: str = ""


@dataclass(frozen=True)
class Drawing:
    """Marks in data units, x to the right and y DOWN (rank 0 on top), and what a reader needs to read them.

    `width` and `height` are the extent in data units from (0, 0); `size_px` is that of the area they fill. Lines lie
    on rectangles, texts on both. `rules` are vertical lines from the top down to `rules_to`, the whole height where
    that is None.
    """

    title: str
    x_label: str
    y_label: str
    width: float
    height: float
    size_px: tuple[float, float]
    rects: tuple[Rects, ...] = ()
    lines: tuple[Lines, ...] = ()
    texts: tuple[Texts, ...] = ()
    rules: tuple[float, ...] = ()
    rules_to: float | None = None
    x_ticks: tuple[tuple[float, str], ...] = ()
    y_ticks: tuple[tuple[float, str], ...] = ()
    legend: tuple[Key, ...] = ()


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
    keep = np.ones(numbers.size, dtype=bool) if wanted is None else wanted
    texts = []
    for hatched in (False, True):
        places = np.flatnonzero(keep & (rects.hatched == hatched))
        fills = [rects.fill[place] for place in places.tolist()]
        ink = [color or ink_on(fill) for fill in fills]
        x, y = rects.x[places] + rects.width[places] / 2, rects.y[places] + rects.height[places] / 2
        words = [str(number) for number in numbers[places].tolist()]
        texts.append(Texts.of(x, y, words, ink, size_px=size_px, halo=fills if hatched else ()))
    return tuple(texts)


def frame(rows: ArrayLike, length: ArrayLike, width: float, margin: float = 0.003) -> Rects:
    """Return frames around the horizontal bars of these rows and lengths, for a drawing of that width."""
    more = margin * width
    return Rects.of(-more, np.add(rows, 0.04), INK, width=np.add(length, 2 * more), height=0.92, edge=INK)


def whole_ticks(count: int, most: int = 12, offset: float = 0.5) -> tuple[tuple[float, str], ...]:
    """Return ticks at the middles of cells 0 … count-1: every 1st, 2nd, 5th, 10th, … so that there are at most `most`.

    >>> whole_ticks(4)
    ((0.5, '0'), (1.5, '1'), (2.5, '2'), (3.5, '3'))
    >>> [label for _, label in whole_ticks(64)]
    ['0', '10', '20', '30', '40', '50', '60']
    """
    step = next(s for power in range(20) for s in (10**power, 2 * 10**power, 5 * 10**power) if count <= s * most)
    return tuple((place + offset, str(place)) for place in range(0, count, step))
