"""Paint a drawing on matplotlib Axes, for papers and for pictures that must be PNG."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import FancyBboxPatch

from ..common.words import printable
from .marks import SIZES_PX, WIDTH_PX, Box, Drawing, Line, Mark, Text, page
from .palette import INK, PAPER, TONES
from .svg import HATCH_OPACITY, OPACITY, hatching, text_of

_PX_PER_INCH = 100.0
_FONTS = ["Inter", "Liberation Sans", "Arial", "DejaVu Sans"]
_ALIGN = {"start": "left", "middle": "center", "end": "right"}


def to_axes(drawing: Drawing, ax: Axes | None = None) -> Axes:
    """Draw on the given Axes, or on those of a new figure of the drawing's size, in pixels, y down; return them."""
    head, top, height = page(drawing)
    if ax is None:
        figure = plt.figure(figsize=(WIDTH_PX / _PX_PER_INCH, height / _PX_PER_INCH))
        ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, WIDTH_PX), ylim=(height, 0))
    ax.set_axis_off()
    points_per_px = ax.bbox.width / ax.figure.dpi * 72 / WIDTH_PX
    for text in head:
        _paint(text, ax, 0.0, points_per_px)
    for mark in drawing.marks:
        _paint(mark, ax, top, points_per_px)
    return ax


def _paint(mark: Mark, ax: Axes, top: float, points_per_px: float) -> None:
    if isinstance(mark, Box):
        _box(mark, ax, top, points_per_px)
    elif isinstance(mark, Text):
        _text(mark, ax, top, points_per_px, "bold" if mark.size == "title" else "normal")
    elif mark.key is None:  # the others show only under a pointer
        _line(mark, ax, top, points_per_px)


def _box(box: Box, ax: Axes, top: float, points_per_px: float) -> None:
    edge = TONES.get(box.edge, box.edge) or "none"
    color = TONES.get(box.fill, box.fill)
    width, height = max(box.width, 0.1), max(box.height, 0.1)
    rounded = f"round,pad=0,rounding_size={min(2, width / 4, height / 4)}"
    at = (box.x, box.y + top)
    style: dict[str, Any] = {"boxstyle": rounded, "mutation_aspect": 1}
    ax.add_patch(FancyBboxPatch(at, width, height, facecolor=color, alpha=OPACITY[box.look], linewidth=0, **style))
    if box.edge:
        line = 1.5 * points_per_px
        ax.add_patch(FancyBboxPatch(at, width, height, facecolor="none", edgecolor=edge, linewidth=line, **style))
    if box.look == "work":
        ax.plot([box.x + 1] * 2, [box.y + top, box.y + top + height], color=color, linewidth=2 * points_per_px)
    if box.hatched:
        lines = [((x0, y0), (x1, y1)) for x0, y0, x1, y1 in hatching(*at, width, height)]
        ax.add_collection(LineCollection(lines, colors=INK, alpha=HATCH_OPACITY, linewidths=points_per_px))
    if box.text:
        _text(text_of(box), ax, top, points_per_px, "bold" if box.edge else "normal")


def _text(text: Text, ax: Axes, top: float, points_per_px: float, weight: str) -> None:
    ground: Any = {"facecolor": PAPER, "edgecolor": "none", "pad": 1} if text.halo else None
    style: dict[str, Any] = {"fontsize": SIZES_PX[text.size] * points_per_px, "family": _FONTS, "weight": weight}
    style |= {"color": TONES.get(text.tone, text.tone), "ha": _ALIGN[text.anchor], "va": "baseline"}
    ax.text(text.x, text.y + top, printable(text.text.replace("*", "")), parse_math=False, bbox=ground, **style)


def _line(line: Line, ax: Axes, top: float, points_per_px: float) -> None:
    x, y = zip(*[(x, y + top) for x, y in line.points], strict=True)
    dashes: Any = "-"
    if line.dash:
        dashes = (0, [float(length) for length in line.dash.split()])
    style: dict[str, Any] = {"color": TONES.get(line.tone, line.tone), "linewidth": line.width * points_per_px}
    ax.plot(x, y, linestyle=dashes, **style)
    if line.arrow:
        head = {"arrowstyle": "->", "shrinkA": 0, "shrinkB": 0, **style}
        ax.annotate("", xy=(x[-1], y[-1]), xytext=(x[-2], y[-2]), arrowprops=head)
