"""What a machine was measured to do, size by size, beside what is predicted from its links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ..machine import Point, Profile
from ..machine.profile import NATIVE, busbw_factor
from ..machine.verdict import groups
from ..values.checks import of_type
from ..values.units import rate_unit, rate_words
from .palette import INK, Look, looks
from .size_lines import LABEL_PT, dash, dress, name_ends, note

_OTHERS = Look("#b5b5b5", False, "")


class Measured(NamedTuple):
    """An algorithm's points by size, and what is predicted for each; NaN for the backend's own."""

    points: list[Point]
    predicted_s: list[float]

    @property
    def sizes(self) -> list[int]:
        return [point.num_bytes for point in self.points]


def to_busbw(
    profile: Profile,
    collective: str = "allreduce",
    algorithms: Sequence[str] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw bus bandwidth over size: markers are medians with their quartiles, lines are predicted, dashes the link.

    `algorithms` are drawn and named, by default the backend's own and those that are the quickest at some size; all
    others are grey dots. Raises ValueError where none of them was measured.
    """
    found = measured(profile, collective)
    shown = _shown(found, algorithms)
    factor = busbw_factor(collective, profile.num_ranks)
    rates = {name: [factor * p.num_bytes / p.median_s for p in one.points] for name, one in found.items()}
    peak = max(max(values) for values in rates.values())
    top_rate, best = max((max(rates[name]), name) for name in shown)
    link = profile.best_link("inter" if profile.num_nodes > 1 else "intra").link.bytes_per_s
    scale, unit = rate_unit(max(peak, link))
    ax, top = ax or _axes(), 1.12 * max(peak, min(link, 2 * peak)) / scale
    sizes = np.array(sorted({size for one in found.values() for size in one.sizes}), dtype=float)
    ax.set(xscale="log", xlim=(sizes[0] / 1.2, sizes[-1] * 1.2), ylim=(0, top))
    ax.set_ylabel(f"bus bandwidth (busbw) [{unit}]")
    for name in (name for name in found if name not in shown):
        ax.plot(found[name].sizes, np.array(rates[name]) / scale, ".", color=_OTHERS.color, markersize=3, zorder=1)
    for name in shown:
        _draw_rates(ax, name, found[name], factor / scale)
    if link / scale < top:
        ax.axhline(link / scale, color=INK, linewidth=1, linestyle=(0, (5, 4)), label="link")
        note(ax, f"one link: {rate_words(link)}", (sizes[0], link / scale), (4, 4), va="bottom")
    _explain(ax, others=len(found) > len(shown))
    dress(ax, sizes, title or f"{best} gets {top_rate / link:.0%} of a link's bandwidth")
    name_ends(ax, {name: (rates[name][-1] / scale, looks([name])[name]) for name in shown})
    return ax


def _draw_rates(ax: Axes, name: str, one: Measured, factor: float) -> None:
    look, sizes = looks([name])[name], np.array(one.sizes)
    low, middle, high = (factor * sizes / [p.percentile_s(percent) for p in one.points] for percent in (75, 50, 25))
    style: dict[str, Any] = {"color": look.color, "marker": look.marker, "linestyle": "none", "zorder": 3}
    spread = np.stack([middle - low, high - middle])
    ax.errorbar(sizes, middle, spread, label=f"{name}, measured", markersize=6, elinewidth=1, clip_on=False, **style)
    if name != NATIVE:
        style = {"color": look.color, "linestyle": dash(look), "linewidth": 1.5}
        ax.plot(sizes, factor * sizes / np.array(one.predicted_s), label=f"{name}, predicted", **style)


def to_residuals(
    profile: Profile,
    collective: str = "allreduce",
    algorithms: Sequence[str] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw by how much the prediction is over or under the measured median, in percent, a line an algorithm.

    `algorithms` are named, by default all that were predicted. Hollow markers have few iterations in which the host
    took no time. Raises ValueError where nothing was measured that can be predicted.
    """
    everything = measured(profile, collective).items()
    found = {name: one for name, one in everything if not any(map(math.isnan, one.predicted_s))}
    if not found:
        raise ValueError(f"profile must have points of {collective} that can be predicted")
    shown = _shown(found, list(found) if algorithms is None else algorithms)
    errors = {n: [100 * (s / p.median_s - 1) for p, s in zip(*found[n], strict=True)] for n in shown}
    off = np.abs(np.concatenate(list(errors.values())))
    reach = max(5.0, 1.15 * float(off.max()))
    sizes = sorted({size for name in shown for size in found[name].sizes})
    ax = ax or _axes()
    ax.set(xscale="log", xlim=(sizes[0] / 1.2, sizes[-1] * 1.2), ylim=(-min(reach, 100), reach),
           ylabel="predicted − measured [% of measured]")  # fmt: skip
    ax.axhline(0, color=INK, linewidth=1)
    ends = {}
    for name, percent in errors.items():
        look, one = looks(shown)[name], found[name]
        ax.plot(one.sizes, percent, color=look.color, linestyle=dash(look), linewidth=1.2, label=name)
        for size, y, point in zip(one.sizes, percent, one.points, strict=True):
            fill = look.color if point.used_s != point.seconds or all(point.clean) else "none"
            ax.plot(size, y, marker=look.marker, markersize=6, color=look.color, markerfacecolor=fill, clip_on=False)
        ends[name] = percent[-1], look
    median, p90 = np.percentile(off, [50, 90])
    words = f"Prediction against measurement: half within {median:.1f} %, nine in ten within {p90:.1f} %"
    dress(ax, np.array(sizes, dtype=float), title or words)
    name_ends(ax, ends)
    return ax


def measured(profile: Profile, collective: str) -> dict[str, Measured]:
    """What was measured of a collective, by algorithm, sizes rising; ValueError where nothing was."""
    group = next((one for one in groups(of_type("profile", profile, Profile)) if one.collective == collective), None)
    if group is None:
        raise ValueError(f"collective must be one that this profile has points of, got {collective!r}")
    seconds, found = profile.predicted_s, dict[str, Measured]()
    for point in (point for points in group.by_size.values() for point in points.values()):
        one = found.setdefault(str(point.options["algorithm"]), Measured([], []))
        one.points.append(point)
        one.predicted_s.append(seconds.get(point.key, math.nan))
    return found


def _shown(found: dict[str, Measured], algorithms: Sequence[str] | None) -> list[str]:
    if algorithms is not None:
        if not algorithms:
            raise ValueError(f"algorithms must be some of {', '.join(found)}, got none")
        for name in algorithms:
            if name not in found:
                raise ValueError(f"algorithms must be some of {', '.join(found)}, got {name!r}")
        return list(algorithms)
    quickest: dict[int, tuple[float, str]] = {}
    for name, one in found.items():
        for point in one.points:
            quickest[point.num_bytes] = min(quickest.get(point.num_bytes, (np.inf, "")), (point.median_s, name))
    return [name for name in found if name == NATIVE or name in {best for _, best in quickest.values()}]


def _explain(ax: Axes, others: bool) -> None:
    """Say what markers and lines are."""
    kinds = {"measured: median and quartiles": {"marker": "D", "linestyle": "none"}, "predicted": {"linewidth": 1.5}}
    handles = [Line2D([], [], color=INK, label=label, **style) for label, style in kinds.items()]  # type: ignore[arg-type]
    if others:
        dots: dict[str, Any] = {"marker": ".", "markersize": 3, "linestyle": "none"}
        handles.append(Line2D([], [], color=_OTHERS.color, label="other algorithms, measured", **dots))
    ax.legend(handles=handles, loc="center left", frameon=False, fontsize=LABEL_PT)


def _axes() -> Axes:
    _, ax = plt.subplots(figsize=(9, 4.6), layout="constrained")
    return ax
