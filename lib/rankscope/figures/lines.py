"""Prediction against execution: a line and markers of the same hue, per curve."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from ..values.checks import whole
from .palette import CATEGORIES

_DASHES, _MARKERS = ("-", "--", "-.", ":"), ("o", "s", "^", "D")


def to_curves(
    x: ArrayLike,
    curves: Mapping[str, tuple[ArrayLike | None, ArrayLike | None]],
    title: str,
    x_label: str,
    y_label: str,
    ax: Axes | None = None,
    discrete: bool = False,
) -> Axes:
    """Draw ``curves[name] = (predicted, executed)`` over `x`, either of them None where there is none.

    Hue, dash and marker tell the curves apart. With `discrete`, a prediction is a short dash at each x, for quantities
    that do not exist in between. Raises ValueError for more curves than there are hues, for one without either, and for
    lengths that differ from that of `x`.
    """
    _check_pairs("curves", curves)
    if empty := [name for name, pair in curves.items() if pair[0] is None and pair[1] is None]:
        raise ValueError(f"curves must have a prediction or an execution each, got neither for {empty[0]!r}")
    places = np.asarray(x)
    if ax is None:
        _, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
    looks = zip(CATEGORIES, cycle(_DASHES), cycle(_MARKERS), strict=False)
    for (name, (predicted, executed)), (color, dash, marker) in zip(curves.items(), looks, strict=False):
        for values, kind in ((predicted, "predicted"), (executed, "executed")):
            if values is None:
                continue
            if np.shape(values) != places.shape:
                raise ValueError(f"{name}, {kind}: {np.shape(values)} values over x of shape {places.shape}")
            if kind == "predicted":
                look: dict[str, Any] = {"linestyle": dash, "linewidth": 1.6}
                if discrete:
                    look = {"linestyle": "none", "marker": "_", "markersize": 18, "markeredgewidth": 1.8}
            else:
                look = {"linestyle": "none", "marker": marker, "markersize": 4, "zorder": 3}
            ax.plot(places, values, color=color, label=f"{name}, {kind}", **look)
    return _dressed(ax, title, x_label, y_label)


def to_fills(
    fills: Mapping[str, tuple[ArrayLike, ArrayLike]], title: str, capacity: int | None = None, ax: Axes | None = None
) -> Axes:
    """Draw how many items wait over time, ``fills[name] = (times_s, number)`` as `queue_fill` gives them, in steps.

    `capacity` is drawn as a line. Raises ValueError for more curves than there are hues, for lengths that differ, and
    for a capacity below 0.
    """
    _check_pairs("fills", fills)
    for name, (times_s, number) in fills.items():
        if np.shape(times_s) != np.shape(number):
            raise ValueError(f"{name}: {np.shape(number)} numbers over times of shape {np.shape(times_s)}")
    if ax is None:
        _, ax = plt.subplots(figsize=(8, 2.6), layout="constrained")
    for (name, (times_s, number)), color, dash in zip(fills.items(), CATEGORIES, cycle(_DASHES), strict=False):
        ax.step(np.asarray(times_s), np.asarray(number), dash, where="post", color=color, label=name, linewidth=1.4)
    if capacity is not None:
        ax.axhline(whole("capacity", capacity, 0), color="#8a8a8a", linewidth=0.8)
        ax.annotate("capacity", (1, capacity), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylim(bottom=0)
    return _dressed(ax, title, "time [s]", "items in the queue")


def _check_pairs(name: str, pairs: Mapping[str, Any]) -> None:
    if not isinstance(pairs, Mapping) or not 0 < len(pairs) <= len(CATEGORIES):
        got = len(pairs) if isinstance(pairs, Mapping) else repr(pairs)
        raise ValueError(f"{name} must number from 1 to {len(CATEGORIES)}, by name, got {got}")
    for one, pair in pairs.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"{name}[{one!r}] must be a pair of columns, got {pair!r}")


def _dressed(ax: Axes, title: str, x_label: str, y_label: str) -> Axes:
    ax.set(xlabel=x_label, ylabel=y_label)
    ax.set_title(title, loc="left", fontsize=11, fontweight="bold")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    ax.legend(frameon=False, fontsize=8)
    return ax
