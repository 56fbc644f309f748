"""Paints a Drawing on matplotlib Axes, with collections rather than an artist a mark."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import compress
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch
from matplotlib.text import Text

from .marks import Drawing, Key, Lines, Rects, Texts, plain
from .palette import FAINT, INK, PAPER, hatch_on


def sharpen() -> None:
    """Have a notebook show figures at twice the size, unless its user chose a format."""
    shell = ipython.get_ipython() if (ipython := sys.modules.get("IPython")) else None
    if getattr(shell, "kernel", None):
        inline = import_module("matplotlib_inline.config").InlineBackend.instance(parent=shell)
        if inline.figure_formats == {"png"}:
            inline.figure_formats = {"retina"}


sharpen()
_PX_PER_INCH = 96.0
_POINTS_PER_PX = 72.0 / _PX_PER_INCH


def to_axes(drawing: Drawing, ax: Axes | None = None) -> Axes:
    """Draw on `ax`, or on a new figure of the drawing's own size, and return the Axes. Never shows."""
    if ax is None:
        wide, high = (px / _PX_PER_INCH for px in drawing.size_px)
        labels = [key.label for key in drawing.legend]
        rows = -(-len(labels) // _columns(labels, drawing.size_px[0]))
        _, ax = plt.subplots(figsize=(wide + 1.0, high + 1.1 + 0.18 * rows), layout="constrained")
    _paint(drawing, ax)
    _label(drawing, ax)
    return ax


def _paint(drawing: Drawing, ax: Axes) -> None:
    """The marks, without title, axes and legend."""
    for rects in drawing.rects:
        _paint_rects(rects, drawing, ax)
    bottom = drawing.height if drawing.rules_to is None else drawing.rules_to
    rules = [[(x, 0.0), (x, bottom)] for x in drawing.rules]
    for color, width in ((PAPER, 3.0), (INK, 1.5)):  # a light edge, so that they show on dark cells too
        ax.add_collection(LineCollection(rules, colors=color, linewidths=width, gid="rules"))
    for lines in drawing.lines:
        _paint_lines(lines, ax)
    for texts in drawing.texts:
        _paint_texts(texts, ax, _room(texts, drawing, ax))


def as_text(*texts: Text) -> None:
    """Have matplotlib write what the texts say as `plain` has it: what stands between two $ is no formula."""
    for text in texts:
        text.set(text=plain(text.get_text()), parse_math=False)


def ground(color: str) -> dict[str, Any]:
    """Return the box that keeps lines and hatching off a text. A stroke would have SVG draw its letters one by one."""
    return {"boxstyle": "square,pad=0.12", "facecolor": color, "edgecolor": "none"}


def _paint_rects(rects: Rects, drawing: Drawing, ax: Axes) -> None:
    x, y, w, h = rects.x, rects.y, rects.width, rects.height
    outline = np.stack([np.stack(c, axis=-1) for c in ((x, y), (x + w, y), (x + w, y + h), (x, y + h))], axis=1)
    corners = list(outline)
    width = np.where(w / drawing.width * drawing.size_px[0] < 4, 0.0, 0.6)  # an outline would hide a narrow one
    # several faces with a hatch each would take a collection each: hatches go on top, see-through
    plain = PolyCollection(corners, facecolors=rects.fill, edgecolors=rects.edge, linewidths=width, gid="rects")
    ax.add_collection(plain).set_clip_on(False)
    hatched = np.flatnonzero(rects.hatched).tolist()
    for ink in (INK, PAPER):
        marked = [corners[place] for place in hatched if hatch_on(rects.fill[place]) == ink]
        if marked:
            style: dict[str, Any] = {"facecolors": "none", "edgecolors": ink, "hatch": "///", "linewidths": 0.6}
            ax.add_collection(PolyCollection(marked, **style, gid="hatched")).set_clip_on(False)


def _paint_lines(lines: Lines, ax: Axes) -> None:
    ends = np.stack([lines.x0, lines.y0, lines.x1, lines.y1], axis=-1).reshape(-1, 2, 2)
    width = lines.width_px * _POINTS_PER_PX
    dashes = ["--" if dashed else "-" for dashed in lines.dashed.tolist()]
    if not lines.arrows:
        style: dict[str, Any] = {"colors": lines.color, "linewidths": width, "linestyles": dashes, "gid": "lines"}
        ax.add_collection(LineCollection(list(ends), **style))
        return
    style = {"arrowstyle": "-|>,head_length=4,head_width=2", "shrinkA": 0, "shrinkB": 0, "gid": "lines"}
    for ((x0, y0), (x1, y1)), color, dash in zip(ends.tolist(), lines.color, dashes, strict=True):
        ax.add_patch(FancyArrowPatch((x0, y0), (x1, y1), color=color, linestyle=dash, linewidth=width, **style))


def _room(texts: Texts, drawing: Drawing, ax: Axes) -> list[bool]:
    """Which texts with a halo have room on Axes much narrower than the drawing: those that keep clear of others."""
    wide, high = (px / ax.figure.dpi * _PX_PER_INCH for px in (ax.bbox.width, ax.bbox.height))
    if not texts.halo or wide > 0.6 * drawing.size_px[0]:
        return [True] * len(texts.text)
    places = zip((texts.x / drawing.width * wide).tolist(), (texts.y / drawing.height * high).tolist(), strict=True)
    kept: list[tuple[float, float]] = []
    room = []
    for (x, y), text in zip(places, texts.text, strict=True):
        room.append(all(abs(x - a) > texts.size_px * (0.8 * len(text) + 1.5) or abs(y - b) > 24 for a, b in kept))
        kept += [(x, y)] * room[-1]
    return room


def _paint_texts(texts: Texts, ax: Axes, room: list[bool]) -> None:
    align = {"middle": "center", "start": "left", "end": "right"}[texts.anchor]
    grounds: list[Any] = [ground(halo) for halo in texts.halo] or [None] * len(texts.text)
    style: dict[str, Any] = {"ha": align, "va": "center_baseline", "parse_math": False}
    style["size"] = texts.size_px * _POINTS_PER_PX
    rows = zip(texts.x.tolist(), texts.y.tolist(), texts.text, texts.color, grounds, strict=True)
    for x, y, text, color, box in compress(rows, room):
        ax.text(x, y, text, bbox=box, color=color, **style)


def _label(drawing: Drawing, ax: Axes) -> None:
    ax.set(xlim=(0, drawing.width), ylim=(drawing.height, 0))
    style: dict[str, Any] = {"fontsize": 8, "parse_math": False}
    ax.set_xticks([x for x, _ in drawing.x_ticks], [label for _, label in drawing.x_ticks], **style)
    ax.set_yticks([y for y, _ in drawing.y_ticks], [label for _, label in drawing.y_ticks], **style)
    as_text(ax.set_xlabel(drawing.x_label), ax.set_ylabel(drawing.y_label))
    as_text(ax.set_title(drawing.title, loc="left", fontsize=11, fontweight="bold"))
    if len(ax.get_shared_x_axes().get_siblings(ax)) > 1:
        ax.label_outer(remove_inner_ticks=True)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    if drawing.legend:
        keys_below(ax, {key.label: _handle(key) for key in drawing.legend}, drawing.size_px[0])


def keys_below(ax: Axes, keys: Mapping[str, Any], wide_px: float | None = None) -> None:
    """One legend for the whole figure, below it: what other Axes have put there stays."""
    handles: dict[str, Any] = {}
    wide = wide_px or ax.figure.bbox.width / ax.figure.dpi * _PX_PER_INCH
    for old in [legend for legend in ax.figure.legends if legend.get_gid() == "keys"]:
        handles |= {text.get_text(): handle for text, handle in zip(old.get_texts(), old.legend_handles, strict=True)}
        wide = ax.figure.bbox.width / ax.figure.dpi * _PX_PER_INCH
        old.remove()
    handles |= keys
    columns = _columns(list(handles), wide)
    place: dict[str, Any] = {"loc": "outside lower left", "ncols": columns, "fontsize": 8, "frameon": False}
    legend = ax.figure.legend(list(handles.values()), list(handles), **place)
    legend.set_gid("keys")
    as_text(*legend.get_texts())


def _columns(labels: Sequence[str], wide_px: float) -> int:
    """The most columns that a legend of that width has room for; its entries run down the columns."""

    needed = np.array([40 + 6.0 * len(label) for label in labels])
    fits = (n for n in range(needed.size, 1, -1) if sum(map(np.max, np.array_split(needed, n))) <= wide_px)
    return next(fits, 1)


def _handle(key: Key) -> Patch | Line2D:
    if key.line:
        dash: Any = {"solid": "-", "dashed": "--", "none": "none"}[key.line]
        return Line2D([], [], color=key.fill, linestyle=dash, label=key.label)
    edge = key.edge if key.edge != PAPER else hatch_on(key.fill) if key.hatched else FAINT
    return Patch(facecolor=key.fill, edgecolor=edge, hatch="///" if key.hatched else None, label=key.label)
