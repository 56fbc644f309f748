"""Paints a Drawing on matplotlib Axes, with collections rather than an artist a mark."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from .marks import Drawing, Rects, Texts
from .palette import FAINT, INK, PAPER

_PX_PER_INCH = 96.0
_POINTS_PER_PX = 72.0 / _PX_PER_INCH


def to_axes(drawing: Drawing, ax: Axes | None = None) -> Axes:
    """Draw on `ax`, or on a new figure of the drawing's own size, and return the Axes. Never shows."""
    if ax is None:
        wide, high = (px / _PX_PER_INCH for px in drawing.size_px)
        _, ax = plt.subplots(figsize=(wide + 1.0, high + 1.3), layout="constrained")
    for rects in drawing.rects:
        _paint_rects(rects, drawing, ax)
    rules = [[(x, 0.0), (x, drawing.height)] for x in drawing.rules]
    ax.add_collection(LineCollection(rules, colors=INK, linewidths=0.8, gid="rules"))
    for texts in drawing.texts:
        _paint_texts(texts, ax)
    _label(drawing, ax)
    return ax


def _paint_rects(rects: Rects, drawing: Drawing, ax: Axes) -> None:
    x, y, w, h = rects.x, rects.y, rects.width, rects.height
    outline = np.stack([np.stack(c, axis=-1) for c in ((x, y), (x + w, y), (x + w, y + h), (x, y + h))], axis=1)
    corners = list(outline)
    narrow = not w.size or float(w.min()) / drawing.width * drawing.size_px[0] < 4
    width = 0.0 if narrow else 0.6
    # several faces with a hatch each would take a collection each: hatches go on top, see-through
    plain = PolyCollection(corners, facecolors=rects.fill, edgecolors=rects.edge, linewidths=width, gid="rects")
    ax.add_collection(plain).set_clip_on(False)
    marked = list(outline[rects.hatched])
    if marked:
        hatch = PolyCollection(marked, facecolors="none", edgecolors=INK, hatch="////", linewidths=0.6, gid="hatched")
        ax.add_collection(hatch).set_clip_on(False)


def _paint_texts(texts: Texts, ax: Axes) -> None:
    align = {"middle": "center", "start": "left", "end": "right"}[texts.anchor]
    effects = [withStroke(linewidth=2, foreground=PAPER)] if texts.halo else None
    size = texts.size_px * _POINTS_PER_PX
    for x, y, text, color in zip(texts.x.tolist(), texts.y.tolist(), texts.text, texts.color, strict=True):
        ax.text(x, y, text, color=color, size=size, ha=align, va="center_baseline", path_effects=effects)


def _label(drawing: Drawing, ax: Axes) -> None:
    ax.set(xlim=(0, drawing.width), ylim=(drawing.height, 0), xlabel=drawing.x_label, ylabel=drawing.y_label)
    ax.set_title(drawing.title, loc="left", fontsize=11, fontweight="bold")
    ax.set_xticks([x for x, _ in drawing.x_ticks], [label for _, label in drawing.x_ticks], fontsize=8)
    ax.set_yticks([y for y, _ in drawing.y_ticks], [label for _, label in drawing.y_ticks], fontsize=8)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    if drawing.legend:
        handles = [
            Patch(
                facecolor=key.fill,
                edgecolor=INK if key.hatched else key.edge if key.edge != "#ffffff" else FAINT,
                hatch="////" if key.hatched else None,
                label=key.label,
            )
            for key in drawing.legend
        ]
        needed = [40 + 6.0 * len(key.label) for key in drawing.legend]
        fits = sum(needed) <= drawing.size_px[0]
        columns = len(handles) if fits else max(1, int(drawing.size_px[0] // max(needed)))
        ax.figure.legend(handles=handles, loc="outside lower left", ncols=columns, fontsize=8, frameon=False)
