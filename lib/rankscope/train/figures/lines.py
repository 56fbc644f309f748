"""Figures on matplotlib Axes: a step over bucket caps, and the memory of a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ...common.checks import number, of_type, optional, several
from ...common.units import percent_words, time_unit
from ...figures.charts import LABEL_PT, Floats, chart, note
from ...figures.palette import INK, PAPER
from ..ddp.recommend import CapCandidate, Recommendation
from .ddp import PARTS, until_alike

_DEFAULT_CAP_MB = 25.0  # the x of DDP's default
_EXPLAINED_ELSEWHERE = ("step, predicted", "recommended")  # by the axis and by a note, so not in the legend
_HOLLOW: dict[str, Any] = {"linestyle": "none", "color": INK, "markerfacecolor": PAPER, "zorder": 4}
_SOLID: dict[str, Any] = {"color": INK, "markersize": 5, "zorder": 5, "elinewidth": 1, "clip_on": False}


def bucket_caps(
    recommendation: Recommendation,
    measured: Mapping[float | None, Sequence[float]] | None = None,
    *,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the predicted step by cap, divided into computing, slowdown by allreduces, and waiting for allreduces.

    The sweep ends where larger caps change nothing, but not before the largest measured cap. A ring marks the
    recommended cap; a diamond at 25 MiB marks DDP's default, whose first bucket is smaller. `measured` maps caps (None
    is the default) to the times of steps in seconds, which are drawn as markers at the median with the quartiles.

    Raises ValueError if there are fewer than two caps, a cap is 0 or less, or a cap in `measured` has no step.
    """
    of_type("recommendation", recommendation, Recommendation)
    caps_mb = _caps_mb(recommendation.candidates)
    if caps_mb.size < 2 or not (caps_mb > 0).all():  # a line has two points, and the axis is logarithmic
        raise ValueError(f"recommendation must have at least two caps above 0 to be drawn, got {caps_mb.tolist()}")
    quartiles_s = _quartiles_s(measured or {})
    candidates = _swept(recommendation, quartiles_s)
    drawn_s = [recommendation.default.step_s]
    drawn_s += [candidate.step_s for candidate in candidates]
    drawn_s += [third_quartile_s for _, _, third_quartile_s in quartiles_s.values()]
    top_s = max(drawn_s)
    scale, unit = time_unit(top_s)
    ax = chart(
        ax,
        title or _caps_finding(recommendation),
        "bucket_cap_mb [MiB]",
        f"step [{unit}]",
        inches=4.2,
        x=np.union1d(_caps_mb(candidates), sorted(_marked_mb(quartiles_s))),
        x_margin=1.3,
        x_words="{:g}".format,
        y_limits=(0, 1.12 * top_s / scale),  # with room above the highest marker
        most_ticks=64,
    )
    _draw_sweep(ax, candidates, recommendation.alone_s, scale)
    _mark_caps(ax, recommendation, scale)
    _mark_measured(ax, quartiles_s, scale)
    keys = {}
    handles, names = ax.get_legend_handles_labels()
    for handle, name in zip(handles, names, strict=True):
        if name not in _EXPLAINED_ELSEWHERE:
            keys[name] = handle
    if not ax.figure.legends:
        place: dict[str, Any] = {"loc": "outside lower right", "ncols": 3, "frameon": False}
        ax.figure.legend(keys.values(), keys, fontsize=LABEL_PT, **place)
    return ax


def _caps_mb(candidates: Sequence[CapCandidate]) -> Floats:
    return np.array([candidate.bucket_cap_mb for candidate in candidates], dtype=float)


def _quartiles_s(measured: Mapping[float | None, Sequence[float]]) -> dict[float | None, Floats]:
    """The first quartile, the median and the third quartile of the steps at each cap, after checking them."""
    quartiles_s: dict[float | None, Floats] = {}
    for cap, steps in of_type("measured", measured, dict).items():
        checked_cap = optional("a cap of measured", cap, number, above=0)
        listed = several("measured", steps, "seconds of steps for each cap")
        steps_s = [number("measured", step_s, 0) for step_s in listed]
        if not steps_s:
            raise ValueError(f"measured must have at least one step for each cap, got none for {checked_cap}")
        quartiles_s[checked_cap] = np.percentile(steps_s, (25, 50, 75))
    return quartiles_s


def _marked_mb(quartiles_s: Mapping[float | None, Floats]) -> set[float]:
    """The caps at which there is a marker: the default's, and those that were measured."""
    measured_mb = {cap for cap in quartiles_s if cap is not None}
    return {_DEFAULT_CAP_MB, *measured_mb}


def _swept(recommendation: Recommendation, quartiles_s: Mapping[float | None, Floats]) -> tuple[CapCandidate, ...]:
    """The candidates up to the largest cap that changes something, and the next one, which shows that it does not."""
    measured_mb = [cap for cap in quartiles_s if cap is not None]
    num_different = len(until_alike(recommendation, max(measured_mb, default=0.0)))
    return recommendation.candidates[: num_different + 1]


def _caps_finding(recommendation: Recommendation) -> str:
    cap_mb = recommendation.bucket_cap_mb
    if cap_mb is None:
        return "No cap is predicted to save enough to replace the default"
    gain = percent_words(recommendation.gain, 1)
    return f"With {cap_mb:g} MiB a step is predicted to take {gain} less than with the default"


def _draw_sweep(ax: Axes, candidates: Sequence[CapCandidate], alone_s: float, scale: float) -> None:
    """Fill the area of each of `PARTS`, and draw the step as a line over them."""
    caps_mb = _caps_mb(candidates)
    steps_s = np.array([candidate.step_s for candidate in candidates])
    waits_s = np.array([candidate.wait_s for candidate in candidates])
    # the boundaries of the parts from below, each with an entry for each cap
    edges_s = [np.zeros(caps_mb.size), np.full(caps_mb.size, alone_s), steps_s - waits_s, steps_s]
    for low_s, high_s, (name, (color, hatched)) in zip(edges_s[:-1], edges_s[1:], PARTS.items(), strict=True):
        style: dict[str, Any] = {"facecolor": color, "alpha": 0.6, "linewidth": 0, "label": name}
        if hatched:
            style |= {"hatch": "///", "edgecolor": INK}
        ax.fill_between(caps_mb, low_s / scale, high_s / scale, **style)
    ax.plot(caps_mb, steps_s / scale, color=INK, linewidth=1.8, label="step, predicted")


def _mark_caps(ax: Axes, recommendation: Recommendation, scale: float) -> None:
    """Mark DDP's default and the recommended cap."""
    default_s = recommendation.default.step_s
    ax.plot([_DEFAULT_CAP_MB], [default_s / scale], "D", label="DDP's default, predicted", **_HOLLOW)
    cap_mb = recommendation.bucket_cap_mb
    if cap_mb is not None:
        point = (cap_mb, recommendation.chosen.step_s / scale)
        ax.plot(*point, "o", markersize=11, label="recommended", **_HOLLOW)
        alignment = "center"
        if cap_mb == recommendation.candidates[0].bucket_cap_mb:  # at the left end, where it would cover the axis
            alignment = "left"
        below_ring_pt = (0, -16)
        note(ax, f"recommended: {cap_mb:g} MiB", point, below_ring_pt, ha=alignment, va="top")


def _mark_measured(ax: Axes, quartiles_s: Mapping[float | None, Floats], scale: float) -> None:
    """Draw a marker at each median and a bar between the quartiles; the default stands at its 25 MiB."""
    with_cap = {cap: quartiles for cap, quartiles in quartiles_s.items() if cap is not None}
    if with_cap:
        _mark_quartiles(ax, with_cap, scale, "s", "measured: median and quartiles")
    if None in quartiles_s:
        _mark_quartiles(ax, {_DEFAULT_CAP_MB: quartiles_s[None]}, scale, "D", "DDP's default, measured")


def _mark_quartiles(ax: Axes, quartiles_s: Mapping[float, Floats], scale: float, marker: str, label: str) -> None:
    """Draw the quartiles at each cap; error bars have their lengths below and above the median."""
    low, middle, high = np.array(list(quartiles_s.values())).T / scale
    ax.errorbar(list(quartiles_s), middle, [middle - low, high - middle], fmt=marker, label=label, **_SOLID)
