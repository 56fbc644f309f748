"""What a machine was measured to do by size, how far its predictions are off, and the rates of its copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ...common.checks import of_type, one_of, optional
from ...common.units import bytes_words, rate_words
from ...figures.charts import chart, dash, explain, markers, name_ends, note
from ...figures.palette import INK, Look, looks
from .. import Profile
from ..link_facts import LinkFacts, transfers_of
from ..profile import Point
from ..sentences import groups
from .boxes import UNITS, draw_boxes

_GREY = Look("#b5b5b5", dashed=False, marker="")  # of algorithms that are not named
_MOST_NAMED = 5  # of the worst predicted


def profile(
    profile: Profile | Mapping[str, Profile],
    view: str = "busbw",
    collective: str = "allreduce",
    algorithms: Sequence[str] | None = None,
    *,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the measured performance of one or several machines by size, or the errors of a machine's predictions.

    The views "busbw" and "time" show the backends' own collectives, one line each. `profile` is a profile, or maps
    names to several.

    The view "residuals" shows how far the predictions from a profile's links are above or below the measured medians,
    in percent. `algorithms` are by default the five with the worst predictions, over all others as grey lines; if they
    are chosen, no others are drawn.

    Raises ValueError if the view is unknown or nothing that it shows was measured.
    """
    one_of("view", view, (*UNITS, "residuals"))
    if isinstance(profile, Mapping):
        return draw_boxes(profile, collective, view, title=title, ax=ax)
    of_type("profile", profile, Profile)
    if view != "residuals":
        return draw_boxes({profile.provenance["name"]: profile}, collective, view, title=title, ax=ax)
    errors = _errors(profile, collective)
    worst_first = sorted(errors, key=lambda name: -max(map(abs, errors[name].values())))
    named = worst_first[:_MOST_NAMED] if algorithms is None else list(algorithms)
    if not named or not set(named) <= errors.keys():
        known = ", ".join(errors) or "none"
        raise ValueError(f"algorithms of {collective} must be some that can be predicted ({known}), got {algorithms}")
    shown = {name: errors[name] for name in (worst_first if algorithms is None else named)}
    return _draw_residuals(shown, looks(named), ax, title)


def _errors(profile: Profile, collective: str) -> dict[str, dict[int, float]]:
    """Return by how many percent each prediction is above the median, by algorithm and size."""
    errors: dict[str, dict[int, float]] = {}
    for size, points in groups(profile).get(collective, {}).items():
        for name, point in points.items():
            predicted_s = profile.point_s(point)
            if predicted_s is not None and size:  # 0 bytes have no place on a logarithmic axis
                errors.setdefault(name, {})[size] = 100 * (predicted_s / point.median_s - 1)
    return errors


def _draw_residuals(
    errors: Mapping[str, Mapping[int, float]], look_of: Mapping[str, Look], ax: Axes | None, title: str | None
) -> Axes:
    """Draw errors as lines around 0, those without a look in grey; by default, the title says how large they are."""
    off = np.abs([error for by_size in errors.values() for error in by_size.values()])
    if not title:
        median, p90 = np.percentile(off, [50, 90])
        title = f"Predictions against measurements: half within {median:.1f}%, nine in ten within {p90:.1f}%"
    reach = max(5.0, 1.15 * float(off.max()))
    limits = (-min(reach, 100), reach)  # no prediction is more than 100 % too short
    sizes = sorted({size for by_size in errors.values() for size in by_size})
    y_label = "predicted − measured [% of measured]"
    ax = chart(ax, title, "size of each rank's buffer", y_label, inches=4.6, x=sizes, x_margin=1.2, y_limits=limits)
    ax.axhline(0, color=INK, linewidth=1)
    for name, by_size in errors.items():
        look = look_of.get(name, _GREY)
        style: dict[str, Any] = {"linestyle": dash(look), "marker": look.marker, "markersize": 5, "label": name}
        ax.plot(list(by_size), list(by_size.values()), color=look.color, zorder=2 + (name in look_of), **style)
    if len(errors) > len(look_of):
        explain(ax, {"other algorithms": {"color": _GREY.color}})
    name_ends(ax, {name: (list(errors[name].values())[-1], look) for name, look in look_of.items()})
    return ax


# ---- copies

_METHODS = ("pinned_non_blocking", "pinned", "pageable", "pin_on_the_fly")
_SIZES = tuple(2**power for power in range(10, 31))  # of predictions without measurements
_WORDS = {"h2d": "to the GPU", "d2h": "to the host"}


def copies(
    facts: LinkFacts | None,
    profile: Profile | None = None,
    direction: str = "h2d",
    *,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the rate of copies to or from a GPU by size: from pinned, pageable, and for the copy pinned memory.

    Lines show the limit that follows from the `facts` of the link; markers are the medians and quartiles measured in
    `profile`. Either argument may be None. `direction` is "h2d" or "d2h".

    Raises ValueError if there is nothing to draw or if the direction is unknown.
    """
    one_of("direction", direction, tuple(_WORDS))
    optional("facts", facts, of_type, LinkFacts)
    optional("profile", profile, of_type, Profile)
    measured: dict[str, list[Point]] = {}
    if profile is not None:
        for method in _METHODS:
            points = [point for point in transfers_of(profile, direction, method) if point.num_bytes >= _SIZES[0]]
            if points and method.removesuffix("_non_blocking") not in measured:
                measured[method.removesuffix("_non_blocking")] = points
    if facts is None and not measured:
        raise ValueError("facts or a profile with copies must be given")
    sizes = sorted({point.num_bytes for points in measured.values() for point in points}) or _SIZES
    look_of = looks(("pinned", "pageable", "pin_on_the_fly"))
    rates = {}  # GB/s at each size
    if facts is not None:
        for method in look_of:
            rates[method] = [size / facts.seconds(size, direction, method) / 1e9 for size in sizes]
    ax = chart(
        ax,
        title or _finding(direction, facts, measured),
        "size of the copy",
        "bandwidth, one way [GB/s]",
        inches=4.4,
        x=sizes,
        x_margin=1.2,
    )
    ends = {}
    for method, points in measured.items():
        low, middle, high = (_percentile_rates(points, percent) for percent in (75, 50, 25))
        markers(ax, method, look_of[method], [point.num_bytes for point in points], low, middle, high)
        ends[method] = float(middle[-1]), look_of[method]
    for method, heights in rates.items():
        look = look_of[method]
        ax.plot(sizes, heights, color=look.color, linestyle=dash(look), label=f"{method}, predicted")
        ends[method] = heights[-1], look
    kinds: dict[str, dict[str, Any]] = {"predicted from facts: at best": {}} if rates else {}
    if measured:
        kinds["measured: median and quartiles"] = {"marker": "o", "linestyle": "none"}
    explain(ax, kinds)
    ax.set_ylim(bottom=0)
    if facts is not None:
        half_bytes = facts.start_s * facts.bytes_per_s(direction)  # that take as long as the start
        ax.axvline(half_bytes, color=INK, linewidth=0.8, linestyle=":")
        note(ax, f"half of the link: {bytes_words(half_bytes)}", (half_bytes, ax.get_ylim()[1]), (4, -2), va="top")
    name_ends(ax, ends)
    return ax


def _percentile_rates(points: Sequence[Point], percent: float) -> Any:
    """Return the GB/s of a percentile of each point's times."""
    return np.array([point.num_bytes / point.percentile_s(percent) / 1e9 for point in points])


def _finding(direction: str, facts: LinkFacts | None, measured: Mapping[str, Sequence[Point]]) -> str:
    """Return the title: what was measured at the largest size, and what the link carries."""
    words = [f"{method} {rate_words(points[-1].algbw_bytes_per_s)}" for method, points in measured.items()]
    if facts is not None:
        words.append(f"{facts.name} carries {rate_words(facts.bytes_per_s(direction))}")
    return f"Copies {_WORDS[direction]}: {', '.join(words)}"
