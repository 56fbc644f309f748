"""Axes that carry lines: scales, ticks, labels, grid, title, keys, names at the lines' ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from ..common.units import bytes_words
from .axes import as_text, ground, keys_below, title_of
from .marks import spread_out
from .palette import INK, PAPER, Look

Floats = NDArray[np.float64]

LABEL_PT = 8.5  # 11 px
_LINE_SPACING = 1.3  # of two names above each other, times the size of their letters
_SAME = 1e-9  # logarithms that differ by less are those of one number
_TICK_STEPS = (1, 2, 5, 10, 20, 50)  # a tick at each power of two, at each second one, …

# as parts of the axes' width, from their left edge: the hair from a line's end, a piece of the line, and its name
_HAIR = (1, 1.02)
_PIECE = (1.02, 1.05)
_NAME = 1.055


def line_axes(
    ax: Axes | None,
    inches: tuple[float, float],
    title: str,
    x_label: str,
    y_label: str,
    *,
    x: Sequence[float] | Floats | None = None,
    x_margin: float = 1.0,
    x_words: Callable[[float], str] = bytes_words,
    most_ticks: int = 64,
    y_limits: tuple[float, float] | None = None,
    log_y: bool = False,
    grid: str = "y",
    grid_color: str = "#e6e6e6",
) -> Axes:
    """Return `ax`, or the Axes of a new figure of that size, with title, labels, scales, ticks and grid for lines.

    With `x`, values that rise, their axis is logarithmic, reaches past them by a factor of `x_margin`, and has ticks at
    powers of two, named by `x_words`, `most_ticks` of them at most: by default, as many as there can be up to 2⁶³. The
    `grid` is that of axis "x" or "y", of "both", or of none ("").
    """
    if ax is None:
        _, ax = plt.subplots(figsize=inches, layout="constrained")
    as_text(ax.set_xlabel(x_label), ax.set_ylabel(y_label))
    title_of(ax, title)
    if x is not None:
        ax.set(xscale="log", xlim=(x[0] / x_margin, x[-1] * x_margin))
        _power_ticks(ax, x, x_words, most_ticks)
    if log_y:
        ax.set_yscale("log")
        plain_ticks(ax.yaxis, y_limits)
    if y_limits is not None:
        ax.set_ylim(y_limits)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(visible=False, which="both")  # the user's style of matplotlib may have one, also of minor ticks
    if grid:
        ax.grid(axis=grid, color=grid_color, linewidth=0.7)  # type: ignore[arg-type]
    if grid == "both":
        # Lower bounds have a low zorder, and the grid would lie on them. A grid of one axis crosses no such line.
        ax.set_axisbelow(True)
    return ax


def size_axes(
    ax: Axes | None,
    inches: tuple[float, float],
    title: str,
    y_label: str,
    sizes: Sequence[float] | Floats,
    x_label: str = "size of each rank's buffer",
    **options: Any,
) -> Axes:
    """Return `line_axes` over the size of a message in bytes, with other `options` of that function."""
    return line_axes(ax, inches, title, x_label, y_label, x=sizes, most_ticks=8, grid="both", **options)


def plain_ticks(axis: Axis, limits: tuple[float, float] | None) -> None:
    """Label the powers of ten of a logarithmic axis with numbers, because exponents are too small to be read.

    If `limits` are less than a factor of 100 apart, 2 and 5 times these powers have ticks, too.
    """
    digits: tuple[float, ...] = (1.0,)
    if limits is not None and limits[1] < 100 * limits[0]:
        digits = (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=digits))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _plain_number(value)))
    axis.set_minor_formatter(NullFormatter())


def _plain_number(value: float) -> str:
    """A number with six digits and no exponent.

    >>> _plain_number(1e-05), _plain_number(1e6), _plain_number(0.25)
    ('0.00001', '1,000,000', '0.25')
    """
    if 0 < value < 1:
        return np.format_float_positional(value, precision=6, fractional=False, trim="-")
    if value < 1e6:
        return f"{value:,.6g}"
    return f"{value:,.0f}"  # .6g would write an exponent


def _power_ticks(ax: Axes, x: Sequence[float] | Floats, words: Callable[[float], str], most: int) -> None:
    """Put ticks at powers of two between the first and the last x: at each, at each second, …, at most so many."""
    first_power = np.ceil(np.log2(x[0]) - _SAME)
    last_power = np.floor(np.log2(x[-1]) + _SAME)
    powers = np.arange(first_power, last_power + 1)
    every = next(step for step in _TICK_STEPS if powers.size <= most * step)
    shown = 2.0 ** powers[powers % every == 0]
    ax.set_xticks(shown, [words(size) for size in shown.tolist()])
    ax.set_xticks([], minor=True)


def dash(look: Look) -> Any:
    """Return the linestyle of a look, for matplotlib."""
    return (0, (4, 2.5)) if look.dashed else "-"


def markers(ax: Axes, name: str, look: Look, x: Any, low: Floats, middle: Floats, high: Floats) -> Any:
    """Draw a marker for each measurement, with a bar from low to high, and return them."""
    return ax.errorbar(
        x,
        middle,
        np.stack([middle - low, high - middle]),
        color=look.color,
        marker=look.marker,
        linestyle="none",
        zorder=3,
        label=f"{name}, measured",
        markersize=6,
        elinewidth=1,
        clip_on=False,  # a marker at the edge of the axes is drawn whole
    )


def explain(ax: Axes, kinds: Mapping[str, Mapping[str, Any]]) -> None:
    """Explain below the figure what lines and markers are, by a dark sample of each."""
    samples: dict[str, Any] = {}
    for label, style in kinds.items():
        samples[label] = Line2D([], [], **{"color": INK, **style})
    keys_below(ax, samples)


def note(ax: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **style: Any) -> None:
    """Write a text at a point of the data, moved by an offset in points, on a ground that covers lines."""
    options: dict[str, Any] = {"textcoords": "offset points", "fontsize": LABEL_PT, "bbox": ground(PAPER)}
    ax.annotate(text, at, xytext=offset, **options, **style)


class _Placer(Artist):
    """Draws nothing, but calls `place`, which places other artists by the current limits of the axes.

    It is drawn before all others, and also calls it when the layout asks for its size, of which it has none.
    """

    def __init__(self, place: Callable[[], None]) -> None:
        super().__init__()
        self._place = place
        self.set_zorder(-100)

    def draw(self, renderer: Any) -> None:
        self._place()

    def get_tightbbox(self, renderer: Any = None) -> None:
        self._place()


def name_ends(ax: Axes, ends: Mapping[str, tuple[float, Look]]) -> None:
    """Put a piece of each line with its name next to the line's end, and a hair to it; no name covers another.

    `ends` has the last y of each line, at which its hair begins at the right edge of the axes, and its look.
    They keep their places when the limits or scales of the axes change later.
    """
    # All are outside the axes, to the right, and have no height until `place` sets it.
    style: dict[str, Any] = {"transform": ax.transAxes, "clip_on": False}
    hairs: dict[str, Line2D] = {}
    pieces: dict[str, Line2D] = {}
    words: dict[str, Text] = {}
    for name, (_, look) in ends.items():
        (hairs[name],) = ax.plot([], [], color=look.color, linewidth=0.7, **style)
        dashes: Any = (0, (2, 1)) if look.dashed else "-"  # closer than those of `dash`, because a piece is short
        (pieces[name],) = ax.plot([], [], color=look.color, linestyle=dashes, linewidth=1.8, **style)
        words[name] = ax.text(_NAME, 0, name, transform=ax.transAxes, va="center", fontsize=LABEL_PT, color=INK)
        as_text(words[name])

    def place() -> None:
        to_axes = ax.transData + ax.transAxes.inverted()  # from data to shares of the axes' width and height
        _, right = ax.get_xlim()
        end_of = {name: float(to_axes.transform((right, y))[1]) for name, (y, _) in ends.items()}  # 0 bottom … 1 top
        upwards = sorted(end_of, key=lambda name: end_of[name])
        axes_height_pt = ax.bbox.height / ax.figure.dpi * 72  # a point is 1/72 inch
        line_height = _LINE_SPACING * LABEL_PT / axes_height_pt  # of a name, as a share of the axes' height
        name_places = spread_out([end_of[name] for name in upwards], line_height)
        for name, y in zip(upwards, name_places, strict=True):
            hairs[name].set_data(_HAIR, (end_of[name], y))
            pieces[name].set_data(_PIECE, (y, y))
            words[name].set_y(y)

    ax.add_artist(_Placer(place))
    place()  # because the layout measures artists in their order: the names before the `_Placer`
