"""What figures over the size of a buffer have in common: the axis, and lines that are named where they end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from ..values.units import bytes_words
from .crossings import Floats
from .palette import INK, PAPER, Look

LABEL_PT = 8.0


def dash(look: Look) -> Any:
    return (0, (4, 2.5)) if look.dashed else "-"


def name_ends(ax: Axes, ends: Mapping[str, tuple[float, Look]]) -> None:
    """A piece of each line with its name beside the line's end, and a hair to it; no name covers another."""
    x = ax.get_xlim()[1]
    wanted = {name: _in_frame(ax, x, y) for name, (y, _) in ends.items()}
    names = sorted(wanted, key=lambda name: wanted[name])
    tall = 1.3 * LABEL_PT / (ax.bbox.height / ax.figure.dpi * 72)
    for name, to in zip(names, _apart([wanted[name] for name in names], tall), strict=True):
        look = ends[name][1]
        style: dict[str, Any] = {"color": look.color, "transform": ax.transAxes, "clip_on": False}
        ax.plot([1, 1.02], [wanted[name], to], linewidth=0.7, **style)
        ax.plot([1.02, 1.05], [to, to], linestyle=dash(look), linewidth=1.8, **style)
        ax.text(1.055, to, name, transform=ax.transAxes, va="center", fontsize=LABEL_PT, color=INK)


def _in_frame(ax: Axes, x: float, y: float) -> float:
    """How high a value stands, from 0 at the bottom of the axes to 1 at the top."""
    return float(ax.transAxes.inverted().transform(ax.transData.transform((x, y)))[1])


def _apart(places: Sequence[float], least: float) -> list[float]:
    """Rising places moved as little as it takes to stand at least so far apart, groups about their middle, up to 1.

    >>> [round(place, 3) for place in _apart([0.0, 0.0, 1.0], 0.1)]
    [-0.05, 0.05, 1.0]
    """
    groups: list[list[float]] = []
    for place in places:
        groups.append([place])
        while len(groups) > 1 and _middle(groups[-1]) - _middle(groups[-2]) < least / 2 * sum(map(len, groups[-2:])):
            groups[-2:] = [groups[-2] + groups[-1]]
    moved = [_middle(g) + (place - (len(g) - 1) / 2) * least for g in groups for place in range(len(g))]
    top = [1 - least * place for place in reversed(range(len(moved)))]
    return [min(pair) for pair in zip(moved, top, strict=True)]


def _middle(group: list[float]) -> float:
    return sum(group) / len(group)


def note(ax: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **style: Any) -> None:
    halo = [withStroke(linewidth=3, foreground=PAPER)]
    ax.annotate(text, at, xytext=offset, textcoords="offset points", fontsize=LABEL_PT, path_effects=halo, **style)


def dress(ax: Axes, sizes: Floats, title: str) -> None:
    powers = np.arange(np.ceil(np.log2(sizes[0]) - 1e-9), np.floor(np.log2(sizes[-1]) + 1e-9) + 1)
    every = next(step for step in (1, 2, 5, 10, 20, 50) if powers.size <= 8 * step)
    shown = 2.0 ** powers[powers % every == 0]
    ax.set_xticks(shown, [bytes_words(size) for size in shown.tolist()])
    ax.set_xticks([], minor=True)
    ax.set_xlabel("size of each rank's buffer")
    ax.set_title(title, loc="left", fontsize=11, fontweight="bold")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color="#e6e6e6", linewidth=0.7)
    ax.set_axisbelow(True)
