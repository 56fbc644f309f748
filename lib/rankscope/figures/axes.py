"""Paints a Drawing on matplotlib Axes, with a few collections rather than an artist for each mark."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch
from matplotlib.text import Text

from .marks import NARROW_PX, Drawing, Key, Lines, Rects, Texts, plain
from .palette import FAINT, INK, PAPER, hatch_on

_PX_PER_INCH = 96.0
_POINTS_PER_PX = 72.0 / _PX_PER_INCH
_DIGIT_WIDTH = 0.64  # of its size
_LETTER_WIDTH = 0.8  # of its size, of the widest letters
_LINE_PX = 24  # between two texts above each other, at least, if Axes are small
_LEGEND = "keys"  # the id of the legend that `keys_below` makes, by which it finds the one to replace
_SMALL = 0.6  # of the drawing's width: on smaller Axes, texts are left out that would cover others


def sharpen() -> None:
    """Have a notebook show figures at twice the resolution, unless its user chose a format."""
    ipython = sys.modules.get("IPython")  # without an import: a notebook has IPython loaded, and others do not need it
    shell = ipython.get_ipython() if ipython else None
    if not getattr(shell, "kernel", None):  # only the shell of a notebook has one
        return
    # `instance` makes the object if there is none yet; it takes the user's configuration from `parent`.
    inline = import_module("matplotlib_inline.config").InlineBackend.instance(parent=shell)
    if inline.figure_formats == {"png"}:  # the default
        inline.figure_formats = {"retina"}


sharpen()  # here, because every figure imports this module


def to_axes(drawing: Drawing, ax: Axes | None = None) -> Axes:
    """Draw on `ax`, or on a new figure of the drawing's own size, and return the Axes. Never shows."""
    if ax is None:
        width_px, height_px = drawing.size_px
        labels = [key.label for key in drawing.legend]
        legend_rows = math.ceil(len(labels) / _columns(labels, width_px))
        # with room for the labels and ticks of the axes, the title, and the rows of the legend
        inches = (width_px / _PX_PER_INCH + 1.0, height_px / _PX_PER_INCH + 1.1 + 0.18 * legend_rows)
        _, ax = plt.subplots(figsize=inches, layout="constrained")
    _paint(drawing, ax)
    _label(drawing, ax)
    return ax


def _paint(drawing: Drawing, ax: Axes) -> None:
    """Paint the marks, without title, axes and legend."""
    for rects in drawing.rects:
        _paint_rects(rects, drawing, ax)
    bottom = drawing.height if drawing.rules_to is None else drawing.rules_to
    rules = [[(x, 0.0), (x, bottom)] for x in drawing.rules]
    for color, width in ((PAPER, 3.0), (INK, 1.5)):  # a light edge, so that they show on dark cells too
        ax.add_collection(LineCollection(rules, colors=color, linewidths=width, gid="rules"))
    for lines in drawing.lines:
        _paint_lines(lines, ax)
    painted: list[Text] = []
    for texts in drawing.texts:
        painted += _paint_texts(texts, ax, _texts_with_room(texts, drawing, ax))
    # Axes that share their x axis, for example, can later show more than this drawing.
    ax.callbacks.connect("xlim_changed", lambda axes: _hide_crowded(painted, axes, drawing))


def as_text(*texts: Text) -> None:
    """Have matplotlib write texts as `plain` returns them: the part between two $ is not a formula."""
    for text in texts:
        text.set(text=plain(text.get_text()), parse_math=False)


def title_of(ax: Axes, title: str) -> None:
    """Put the title above the axes, to the left."""
    may_wrap = "$" not in title  # when matplotlib wraps a text, it reads the part between two $ as a formula
    as_text(ax.set_title(title, loc="left", fontsize=11, fontweight="bold", wrap=may_wrap))


def ground(color: str) -> dict[str, Any]:
    """Return the box that keeps lines and hatching off a text. A stroke would have SVG draw its letters one by one."""
    return {"boxstyle": "square,pad=0.12", "facecolor": color, "edgecolor": "none"}


def _paint_rects(rects: Rects, drawing: Drawing, ax: Axes) -> None:
    left = rects.x
    top = rects.y
    right = left + rects.width
    bottom = top + rects.height
    coordinates = np.stack([left, top, right, top, right, bottom, left, bottom], axis=-1)
    corners = list(coordinates.reshape(-1, 4, 2))  # rectangles by corners by x and y
    is_narrow = rects.width / drawing.width * drawing.size_px[0] < NARROW_PX
    outlines = np.where(is_narrow, 0.0, 0.6)
    # A collection has one hatch, in the colour of its edges. So all rectangles are painted without hatches, and over
    # them those with dark hatches, and those with white ones, without a fill.
    filled = PolyCollection(corners, facecolors=rects.fill, edgecolors=rects.edge, linewidths=outlines, gid="rects")
    ax.add_collection(filled).set_clip_on(False)  # a frame may begin left of the axes, see `marks.frame`
    hatched = np.flatnonzero(rects.hatched).tolist()
    for ink in (INK, PAPER):
        corners_in_ink = [corners[index] for index in hatched if hatch_on(rects.fill[index]) == ink]
        if corners_in_ink:
            style: dict[str, Any] = {"facecolors": "none", "edgecolors": ink, "hatch": "///", "linewidths": 0.6}
            ax.add_collection(PolyCollection(corners_in_ink, **style, gid="hatched")).set_clip_on(False)


def _paint_lines(lines: Lines, ax: Axes) -> None:
    ends = np.stack([lines.x0, lines.y0, lines.x1, lines.y1], axis=-1).reshape(-1, 2, 2)  # lines by ends by x and y
    width = lines.width_px * _POINTS_PER_PX
    dashes = ["--" if dashed else "-" for dashed in lines.dashed.tolist()]
    if not lines.arrows:
        ax.add_collection(
            LineCollection(list(ends), colors=lines.color, linewidths=width, linestyles=dashes, gid="lines")
        )
        return
    # The lines of a collection have no heads, so each arrow is an artist.
    style: dict[str, Any] = {"arrowstyle": "-|>,head_length=4,head_width=2", "shrinkA": 0, "shrinkB": 0, "gid": "lines"}
    for ((x0, y0), (x1, y1)), color, dash in zip(ends.tolist(), lines.color, dashes, strict=True):
        ax.add_patch(FancyArrowPatch((x0, y0), (x1, y1), color=color, linestyle=dash, linewidth=width, **style))


def _texts_with_room(texts: Texts, drawing: Drawing, ax: Axes) -> list[int]:
    """Return the indices of the texts to paint: all, except for those with a halo that would cover others.

    Texts have the same size in points on Axes of any size. Only a halo, which is a box on Axes, covers other texts.
    """
    everything = list(range(len(texts.text)))
    width_px = ax.bbox.width / ax.figure.dpi * _PX_PER_INCH
    height_px = ax.bbox.height / ax.figure.dpi * _PX_PER_INCH
    if not texts.halo or width_px > _SMALL * drawing.size_px[0]:
        return everything
    x = (texts.x / drawing.width * width_px).tolist()
    y = (texts.y / drawing.height * height_px).tolist()
    chosen: list[int] = []
    for index in everything:
        needed_letters = _LETTER_WIDTH * len(texts.text[index]) + 1.5  # with space to the next text
        needed_px = texts.size_px * needed_letters
        is_clear = True
        for other in chosen:
            if abs(x[index] - x[other]) <= needed_px and abs(y[index] - y[other]) <= _LINE_PX:
                is_clear = False
        if is_clear:
            chosen.append(index)
    return chosen


def _hide_crowded(texts: Sequence[Text], ax: Axes, drawing: Drawing) -> None:
    """Hide the texts that would lie on others where the axes show more than the drawing, so that its marks shrink.

    Only texts in the middle of their cells are hidden, or shown again.
    """
    left, right = ax.get_xlim()
    width = abs(right - left)  # an inverted axis has left > right
    # by the size of the drawing, because the layout may not have given the axes their own size yet
    px_per_unit = drawing.size_px[0] / width
    end_px: dict[float, float] = {}  # of the last text that is shown, by its height
    for text in sorted(texts, key=lambda text: text.get_position()[0]):
        x, y = text.get_position()
        width_px = _DIGIT_WIDTH * float(text.get_fontsize()) / _POINTS_PER_PX * len(text.get_text())
        align = text.get_horizontalalignment()
        share_before_x = {"left": 0.0, "center": 0.5, "right": 1.0}[align]
        start_px = x * px_per_unit - share_before_x * width_px
        if align == "center":
            text.set_visible(start_px >= end_px.get(y, -math.inf))
        if text.get_visible():
            end_px[y] = start_px + width_px


def _paint_texts(texts: Texts, ax: Axes, chosen: list[int]) -> list[Text]:
    """Paint the texts with these indices, and return the artists."""
    align = {"middle": "center", "start": "left", "end": "right"}[texts.anchor]
    style: dict[str, Any] = {"ha": align, "va": "center_baseline", "parse_math": False}
    style["size"] = texts.size_px * _POINTS_PER_PX
    x = texts.x.tolist()
    y = texts.y.tolist()
    painted = []
    for index in chosen:
        box = ground(texts.halo[index]) if texts.halo else None
        painted.append(ax.text(x[index], y[index], texts.text[index], bbox=box, color=texts.color[index], **style))
    return painted


def _label(drawing: Drawing, ax: Axes) -> None:
    """Add limits, ticks, labels, title and legend."""
    ax.set(xlim=(0, drawing.width), ylim=(drawing.height, 0))  # y goes down
    style: dict[str, Any] = {"fontsize": 8, "parse_math": False}
    ax.set_xticks([x for x, _ in drawing.x_ticks], [label for _, label in drawing.x_ticks], **style)
    ax.set_yticks([y for y, _ in drawing.y_ticks], [label for _, label in drawing.y_ticks], **style)
    as_text(ax.set_xlabel(drawing.x_label, x=drawing.x_middle / drawing.width), ax.set_ylabel(drawing.y_label))
    title_of(ax, drawing.title)
    if any(_is_below(other, ax) for other in ax.get_shared_x_axes().get_siblings(ax)):  # which has the same x labels
        ax.set_xlabel("")
        ax.tick_params(labelbottom=False)
    if any(_is_left_of(other, ax) for other in ax.get_shared_y_axes().get_siblings(ax)):
        ax.set_ylabel("")
        ax.tick_params(labelleft=False)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    if drawing.legend:
        keys_below(ax, {key.label: _handle(key) for key in drawing.legend}, width_px=drawing.size_px[0])


def _is_below(other: Axes, ax: Axes) -> bool:
    """Return whether other Axes of the same figure are below these, in the same column."""
    is_in_column = other.bbox.x0 < ax.bbox.x1 and ax.bbox.x0 < other.bbox.x1
    return other.figure is ax.figure and is_in_column and other.bbox.y1 <= ax.bbox.y0


def _is_left_of(other: Axes, ax: Axes) -> bool:
    """Return whether other Axes of the same figure are to the left of these, in the same row."""
    is_in_row = other.bbox.y0 < ax.bbox.y1 and ax.bbox.y0 < other.bbox.y1
    return other.figure is ax.figure and is_in_row and other.bbox.x1 <= ax.bbox.x0


def keys_below(ax: Axes, handles: Mapping[str, Any], width_px: float | None = None) -> None:
    """Put one legend below the whole figure, with these matplotlib artists by their labels.

    It is at most as wide as `width_px`, by default as the figure. If other Axes of the figure have entries there, these
    stay in it, and it may be as wide as the figure.
    """
    figure_px = ax.figure.bbox.width / ax.figure.dpi * _PX_PER_INCH
    if width_px is None:
        width_px = figure_px
    all_handles: dict[str, Any] = {}
    old_legends = [legend for legend in ax.figure.legends if legend.get_gid() == _LEGEND]
    for old_legend in old_legends:
        for text, handle in zip(old_legend.get_texts(), old_legend.legend_handles, strict=True):
            all_handles[text.get_text()] = handle
        width_px = figure_px
        old_legend.remove()
    all_handles |= handles
    columns = _columns(list(all_handles), width_px)
    style: dict[str, Any] = {"loc": "outside lower left", "ncols": columns, "fontsize": 8, "frameon": False}
    legend = ax.figure.legend(list(all_handles.values()), list(all_handles), **style)
    legend.set_gid(_LEGEND)
    as_text(*legend.get_texts())


def _columns(labels: Sequence[str], width_px: float) -> int:
    """Return the most columns that a legend of that width has room for; its entries run down the columns."""
    needed_px = np.array([40 + 6.0 * len(label) for label in labels])  # the mark, and 6 px for each letter
    for num_columns in range(needed_px.size, 1, -1):
        columns = np.array_split(needed_px, num_columns)  # as matplotlib divides the entries
        widest_px = [float(column.max()) for column in columns]
        if sum(widest_px) <= width_px:
            return num_columns
    return 1


def _handle(key: Key) -> Patch | Line2D:
    """Return the artist that stands for a key in a legend."""
    if key.line:
        dash: Any = {"solid": "-", "dashed": "--", "none": "none"}[key.line]
        return Line2D([], [], color=key.fill, linestyle=dash, label=key.label)
    edge = key.edge
    hatch = None
    if key.hatched:
        hatch = "///"
    if edge == PAPER:  # white on white: neither the outline nor hatches, which have the colour of the edge, would show
        edge = hatch_on(key.fill) if key.hatched else FAINT
    return Patch(facecolor=key.fill, edgecolor=edge, hatch=hatch, label=key.label)
