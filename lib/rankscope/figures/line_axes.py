"""Axes that carry lines: scales, ticks, labels, grid, title, keys, names at the lines' ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from ..common.units import bytes_words
from .axes import as_text, ground, keys_below
from .marks import spread_out
from .palette import INK, PAPER, Look

Floats = NDArray[np.float64]

LABEL_PT = 8.0
GREY = "#8a8a8a"
_TICK_STEPS = (1, 2, 5, 10, 20, 50)


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
    """Return the Axes given, or those of a new figure of that size, dressed for lines.

    With `x`, values that rise, their axis is logarithmic, reaches past them by a factor of `x_margin`, and has ticks at
    powers of two, named by `x_words`. The `grid` is that of axis "x" or "y", of "both", or of none ("").
    """
    if ax is None:
        ax = plt.subplots(figsize=inches, layout="constrained")[1]
    as_text(ax.set_xlabel(x_label), ax.set_ylabel(y_label))
    as_text(ax.set_title(title, loc="left", fontsize=11, fontweight="bold"))
    if x is not None:
        ax.set(xscale="log", xlim=(x[0] / x_margin, x[-1] * x_margin))
        _power_ticks(ax, x, x_words, most_ticks)
    if log_y:
        ax.set_yscale("log")
    if y_limits is not None:
        ax.set_ylim(y_limits)
    ax.spines[["top", "right"]].set_visible(False)
    if grid:
        ax.grid(axis=grid, color=grid_color, linewidth=0.7)  # type: ignore[arg-type]
    else:
        ax.grid(visible=False)
    if grid == "both":
        ax.set_axisbelow(True)
    return ax


def size_axes(
    ax: Axes | None,
    inches: tuple[float, float],
    title: str,
    y_label: str,
    sizes: Sequence[float] | Floats,
    x_label: str = "size of each rank's buffer",
    **more: Any,
) -> Axes:
    """Return `line_axes` over the size of a message in bytes; `more` is what that takes."""
    return line_axes(ax, inches, title, x_label, y_label, x=sizes, most_ticks=8, grid="both", **more)


def _power_ticks(ax: Axes, x: Sequence[float] | Floats, words: Callable[[float], str], most: int) -> None:
    """Put ticks at powers of two between the first and the last x: every 1st, 2nd, 5th, …, for at most so many."""
    powers = np.arange(np.ceil(np.log2(x[0]) - 1e-9), np.floor(np.log2(x[-1]) + 1e-9) + 1)
    every = next(step for step in _TICK_STEPS if powers.size <= most * step)
    shown = 2.0 ** powers[powers % every == 0]
    ax.set_xticks(shown, [words(one) for one in shown.tolist()])
    ax.set_xticks([], minor=True)


def dash(look: Look) -> Any:
    return (0, (4, 2.5)) if look.dashed else "-"


def markers(ax: Axes, name: str, look: Look, x: Any, low: Floats, middle: Floats, high: Floats) -> Any:
    """A marker for each thing measured, with a bar from low to high; returns them."""
    style: dict[str, Any] = {"color": look.color, "marker": look.marker, "linestyle": "none", "zorder": 3}
    spread = np.stack([middle - low, high - middle])
    style |= {"label": f"{name}, measured", "markersize": 6, "elinewidth": 1, "clip_on": False}
    return ax.errorbar(x, middle, spread, **style)


def explain(ax: Axes, kinds: Mapping[str, Mapping[str, Any]]) -> None:
    """Say below the figure what lines and markers are, by a dark sample of each."""
    keys_below(ax, {label: Line2D([], [], **{"color": INK, **style}) for label, style in kinds.items()})


def note(ax: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **style: Any) -> None:
    options: dict[str, Any] = {"textcoords": "offset points", "fontsize": LABEL_PT, "bbox": ground(PAPER)}
    ax.annotate(text, at, xytext=offset, **options, **style)


class _Placer(Artist):
    """Draws nothing, and is the first to be drawn and measured: places what depends on the limits of the axes."""

    def __init__(self, place: Callable[[], None]) -> None:
        super().__init__()
        self._place = place
        self.set_zorder(-100)

    def draw(self, renderer: Any) -> None:
        self._place()

    def get_tightbbox(self, renderer: Any = None) -> None:
        self._place()


def name_ends(ax: Axes, ends: Mapping[str, tuple[float, Look]]) -> None:
    """A piece of each line with its name next to the line's end, and a hair to it; no name covers another.

    They keep their places when the limits or scales of the axes change later.
    """
    style: dict[str, Any] = {"transform": ax.transAxes, "clip_on": False}
    hairs = {name: ax.plot([], [], color=look.color, linewidth=0.7, **style)[0] for name, (_, look) in ends.items()}
    for name, (_, look) in ends.items():
        ax.plot([], [], color=look.color, linestyle=(0, (2, 1)) if look.dashed else "-", linewidth=1.8, **style)
        as_text(ax.text(1.055, 0, name, transform=ax.transAxes, va="center", fontsize=LABEL_PT, color=INK))
    pieces, words = ax.lines[-len(ends) :], ax.texts[-len(ends) :]

    def place() -> None:
        into, x = ax.transData + ax.transAxes.inverted(), ax.get_xlim()[1]
        at = {name: float(into.transform((x, y))[1]) for name, (y, _) in ends.items()}  # 0 bottom … 1 top of the axes
        names = sorted(at, key=lambda name: at[name])
        tall = 1.3 * LABEL_PT / (ax.bbox.height / ax.figure.dpi * 72)
        to = dict(zip(names, spread_out([at[name] for name in names], tall), strict=True))
        for name, piece, word in zip(ends, pieces, words, strict=True):
            hairs[name].set_data([1, 1.02], [at[name], to[name]])
            piece.set_data([1.02, 1.05], [to[name]] * 2)
            word.set_y(to[name])

    ax.add_artist(_Placer(place))
    place()
