"""What a step takes by bucket cap: the prediction, what it is made of, and what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from ..ddp.recommend import Recommendation
from ..values.checks import number, of_type
from ..values.units import time_unit
from .palette import CATEGORIES, INK
from .size_lines import LABEL_PT, note

_DEFAULT_MB = 25.0  # where DDP's default stands
_LINE, _ALONE, _HELD, _WAIT, _HATCH = CATEGORIES[0], "#ededed", "#f7d9a8", "#b9d6ea", "#b07a10"


def to_bucket_caps(
    recommendation: Recommendation,
    measured: Mapping[float | None, Sequence[float]] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the predicted step over the cap: computing alone, what allreduces hold it up, and waiting for them.

    A ring marks the recommended cap; DDP's default, whose first bucket is smaller, is a diamond at 25 MiB. `measured`
    has the seconds of steps for some caps (None is the default): markers at the median with the quartiles.

    Raises ValueError for fewer than two caps, for a cap that is not above 0, and for one measured without a step.
    """
    found = of_type("recommendation", recommendation, Recommendation)
    caps = np.array([one.bucket_cap_mb for one in found.candidates], dtype=float)
    if caps.size < 2 or not (caps > 0).all():
        raise ValueError(f"recommendation must have at least two caps above 0 to be drawn, got {caps.tolist()}")
    for cap in measured or ():
        if cap is not None:
            number("a cap of measured", cap, above=0)
    seen = {cap: np.array([number("measured", s, 0) for s in steps]) for cap, steps in (measured or {}).items()}
    if empty := [cap for cap, steps in seen.items() if not steps.size]:
        raise ValueError(f"measured must have at least one step for each cap, got none for {empty[0]}")
    steps_s = np.array([one.step_s for one in found.candidates])
    waits_s = np.array([one.wait_s for one in found.candidates])
    top_s = max([float(steps_s.max()), found.default.step_s, *(np.percentile(s, 75) for s in seen.values())])
    scale, unit = time_unit(top_s)
    if ax is None:
        _, ax = plt.subplots(figsize=(9, 4.2), layout="constrained")
    edges = [np.zeros(caps.size), np.full(caps.size, found.alone_s), steps_s - waits_s, steps_s]
    names = ("computing alone", "held up by allreduces", "waiting for allreduces")
    for low, high, color, name in zip(edges, edges[1:], (_ALONE, _HELD, _WAIT), names, strict=False):
        style: dict[str, Any] = {"hatch": "///", "edgecolor": _HATCH} if color == _HELD else {}
        ax.fill_between(caps, low / scale, high / scale, facecolor=color, linewidth=0, label=name, **style)
    ax.plot(caps, steps_s / scale, color=_LINE, linewidth=1.8, label="step, predicted")
    _mark(ax, found, scale)
    _draw_measured(ax, seen, scale)
    ax.set(xscale="log", xlim=(caps[0] / 1.3, caps[-1] * 1.3), ylim=(0, 1.12 * top_s / scale), ylabel=f"step [{unit}]")
    _dress(ax, caps, title or _title(found))
    return ax


def _mark(ax: Axes, found: Recommendation, scale: float) -> None:
    style: dict[str, Any] = {"linestyle": "none", "color": _LINE, "markerfacecolor": "none", "zorder": 4}
    ax.plot([_DEFAULT_MB], [found.default.step_s / scale], "D", label="DDP's default, predicted", **style)
    if found.bucket_cap_mb is not None:
        place = found.bucket_cap_mb, found.chosen.step_s / scale
        ax.plot(*place, "o", markersize=11, label="recommended", **style)
        note(ax, f"{found.bucket_cap_mb:g} MiB", place, (0, -16), ha="center", va="top")


def _draw_measured(ax: Axes, seen: Mapping[float | None, Any], scale: float) -> None:
    for is_default in (False, True):
        caps = [cap for cap in seen if (cap is None) is is_default]
        if not caps:
            continue
        low, middle, high = np.array([np.percentile(seen[cap], (25, 50, 75)) for cap in caps]).T / scale
        places = [_DEFAULT_MB if cap is None else cap for cap in caps]
        label = "DDP's default, measured" if is_default else "measured: median and quartiles"
        style: dict[str, Any] = {"fmt": "D" if is_default else "s", "color": INK, "markersize": 5, "zorder": 5}
        ax.errorbar(places, middle, [middle - low, high - middle], label=label, elinewidth=1, clip_on=False, **style)


def _dress(ax: Axes, caps: Any, title: str) -> None:
    powers = 2.0 ** np.arange(np.ceil(np.log2(caps[0])), np.floor(np.log2(caps[-1])) + 1)
    ax.set_xticks(powers, [f"{power:g}" for power in powers.tolist()])
    ax.set_xticks([], minor=True)
    ax.set_xlabel("bucket_cap_mb [MiB]")
    ax.set_title(title, loc="left", fontsize=11, fontweight="bold")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#e0e0e0", linewidth=0.7)
    ax.legend(frameon=False, fontsize=LABEL_PT, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _title(found: Recommendation) -> str:
    if found.bucket_cap_mb is None:
        return "No cap is predicted to be worth leaving the default for"
    return f"With {found.bucket_cap_mb:g} MiB a step is predicted to take {found.gain:.1%} less than by default"
