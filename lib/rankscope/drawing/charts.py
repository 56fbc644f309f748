"""Charts with numeric axes, on matplotlib: one `chart`, and curves over any quantity."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from textwrap import wrap
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib import figure
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import ArrayLike

from ..common.checks import one_of
from ..common.words import printable
from .palette import INK, LINES, TONES
from .svg import FONT, STYLE

LABEL_PT = 11.5  # 8.5 px on a phone, where a figure is 358 px wide
TITLE_PT = 13.5
WIDE_INCHES = 6.6  # as wide as a drawing
_MARKERS = ("o", "s", "^", "D")


class Figure(figure.Figure):
    """A figure that notebooks show as an SVG in the reader's theme."""

    def _repr_svg_(self) -> str:
        file = io.StringIO()
        with plt.rc_context({"svg.fonttype": "none"}):
            self.savefig(file, format="svg", bbox_inches="tight")
        return themed(file.getvalue())


def themed(svg: str) -> str:
    """Return an SVG of matplotlib in the typeface and the tones of drawings, which follow the reader's theme."""
    svg = re.sub("'DejaVu Sans',[^;\"]*", FONT, svg)
    for tone, color in TONES.items():
        svg = svg.replace(color, f"var(--{tone},{color})")
    return svg.replace("<metadata>", f"<style>{STYLE}.rs{{fill:var(--ink)}}</style><metadata>").replace(
        "<svg", '<svg class="rs"'
    )


def chart(
    ax: Axes | None,
    title: str,
    x_label: str,
    y_label: str,
    *,
    inches: float = 3.6,
) -> Axes:
    """Return `ax`, or the Axes of a new figure so high, with title, labels, ticks and grid."""
    if ax is None:
        _, ax = plt.subplots(FigureClass=Figure, figsize=(WIDE_INCHES, inches), layout="constrained")
    lines = wrap(title.replace("*", ""), round(10 * ax.bbox.width / ax.figure.dpi))  # ten letters an inch
    label: dict[str, Any] = {"color": TONES["mute"], "fontsize": LABEL_PT, "parse_math": False}
    ax.set_title("\n".join(lines), loc="left", fontsize=TITLE_PT, fontweight="bold", color=INK, pad=8, parse_math=False)
    ax.set_xlabel(x_label, **label)
    ax.set_ylabel(y_label, **label)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.spines["bottom"].set_color(TONES["rule"])
    ax.tick_params(which="both", length=0, labelcolor=TONES["mute"], labelsize=LABEL_PT)
    ax.tick_params(axis="x", pad=7)
    ax.grid(visible=False, which="both")  # the user's style of matplotlib may have one
    ax.grid(axis="y", color=TONES["rule"], linewidth=0.6)
    ax.set_axisbelow(True)
    return ax


def plain_ticks(axis: Axis, limits: tuple[float, float]) -> None:
    """Label a logarithmic axis with numbers: powers of ten, and 2 and 5 times these if it spans less than 100."""
    is_short = limits[1] < 100 * limits[0]
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if is_short else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def name_ends(ax: Axes, ends: Mapping[str, tuple[float, str]]) -> None:
    """Write the name of each line behind its end, in its hue, with a hair to it; no name covers another.

    `ends` has the last y of each line, and its hue.
    """
    ax.autoscale_view()
    points_per_px = 72 / ax.figure.dpi
    heights = {name: ax.transData.transform((1.0, y))[1] * points_per_px for name, (y, _) in ends.items()}
    free = -1e9
    for name in sorted(ends, key=lambda name: heights[name]):
        y, color = ends[name]
        place = max(free, heights[name])
        free = place + 1.3 * LABEL_PT
        ax.annotate(
            printable(name),
            (1.0, y),
            (14, place - heights[name]),
            xycoords=ax.get_yaxis_transform(),
            textcoords="offset points",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.7, "relpos": (0, 0.5)},
            color=color,
            fontsize=LABEL_PT,
            va="center",
            parse_math=False,
        )


# ---- over any quantity


def curves(
    x: ArrayLike,
    curves: Mapping[str, tuple[ArrayLike | None, ArrayLike | None]],
    title: str,
    x_label: str,
    y_label: str,
    *,
    ax: Axes | None = None,
    discrete: bool = False,
    log: str = "",
) -> Axes:
    """Draw ``curves[name] = (predicted, measured)`` over `x`; either of them may be None.

    Predictions are lines, measurements markers of the same hue. Several curves have their names at the right end. If
    `discrete` is true, a prediction is a short dash at each x. The axes in `log` ("x", "y" or "xy") are logarithmic.
    Raises ValueError if there are more curves than hues, if a curve has neither, if a length differs from that of `x`,
    or if `log` names other axes.
    """
    one_of("log", log, ("", "x", "y", "xy"))
    x_values = np.asarray(x)
    if not 0 < len(curves) <= len(LINES):
        raise ValueError(f"curves must number from 1 to {len(LINES)}, got {len(curves)}")
    for name, pair in curves.items():
        shapes = {np.shape(values) for values in pair if values is not None}
        if shapes != {x_values.shape}:
            raise ValueError(f"{name}: must be a pair of columns of shape {x_values.shape}, got {shapes or None}")
    ax = chart(ax, title, x_label, y_label)
    ends: dict[str, tuple[float, str]] = {}
    line: dict[str, Any] = {"linewidth": 2}
    marker: dict[str, Any] = {"linestyle": "none", "markersize": 5, "zorder": 3}
    for index, (name, (predicted, measured)) in enumerate(curves.items()):
        color = LINES[index]
        if predicted is not None:
            dash = (0, (4, 2.5)) if index % 2 else "-"  # neighbours differ in grey, too
            style = {**line, "linestyle": dash}
            if discrete:
                style = {"linestyle": "none", "marker": "_", "markersize": 18, "markeredgewidth": 2}
            ax.plot(x_values, predicted, color=color, label=f"{name}, predicted", **style)
        if measured is not None:
            shape = _MARKERS[index % len(_MARKERS)]
            ax.plot(x_values, measured, shape, color=color, label=f"{name}, measured", **marker)
        values = np.asarray(measured if predicted is None else predicted, dtype=float)
        ends[name] = next((value for value in values[::-1].tolist() if np.isfinite(value)), 0.0), color
    if "x" in log:
        ax.set_xscale("log")
        plain_ticks(ax.xaxis, ax.get_xlim())
    if "y" in log:
        ax.set_yscale("log")
        plain_ticks(ax.yaxis, ax.get_ylim())
    predictions, measurements = zip(*curves.values(), strict=True)
    has_both = any(one is not None for one in predictions) and any(one is not None for one in measurements)
    if has_both and not ax.figure.legends:  # a dark sample of each, below the figure
        samples = [
            Line2D([], [], color=INK, label="predicted", **line),
            Line2D([], [], color=INK, label="measured", marker="o", **marker),
        ]
        ax.figure.legend(handles=samples, fontsize=LABEL_PT, loc="outside lower right", ncols=2, frameon=False)
    if len(curves) > 1:
        name_ends(ax, ends)
    return ax
