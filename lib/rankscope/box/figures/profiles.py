"""What a machine was measured to do by size, how far its predictions are off, and the rates of its copies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from ...common.checks import of_type, one_of, optional
from ...common.units import bytes_words, rate_words
from ...figures.axes import to_axes
from ...figures.charts import Floats, chart, dash, explain, markers, name_ends, note
from ...figures.marks import Drawing
from ...figures.palette import INK, Look, looks
from .. import Profile
from ..link_facts import LinkFacts, transfers_of
from ..profile import Point
from ..sentences import groups
from .boxes import UNITS, draw_boxes

_DASHES = (0, (5, 4))  # of what the link itself would give
_GREY = "#b5b5b5"  # of algorithms that are not named
_MOST_NAMED = 5  # of the worst predicted
_LEAST_REACH = 5.0  # percent that the axis of residuals shows at least
_HEADROOM = 1.12  # the top of an axis, as a multiple of the largest height


# ---- collectives


class MeasuredAlgorithm(NamedTuple):
    """An algorithm's points by size, and what is predicted for each; NaN for the backend's own."""

    points: list[Point]
    predicted_s: list[float]

    @property
    def sizes(self) -> list[int]:
        return [point.num_bytes for point in self.points]

    @property
    def errors_percent(self) -> list[float]:
        """By how much each prediction is above the median."""
        pairs = zip(self.points, self.predicted_s, strict=True)
        return [100 * (predicted_s / point.median_s - 1) for point, predicted_s in pairs]

    @property
    def is_clean(self) -> NDArray[np.bool_]:
        """Which points have enough iterations in which the host took no time; a point without enough uses all."""
        are_clean = []
        for point in self.points:
            uses_only_clean = point.used_s != point.seconds or all(point.clean)
            are_clean.append(uses_only_clean)
        return np.array(are_clean)


def profile(
    profile: Profile | Mapping[str, Profile],
    view: str = "log",
    collective: str = "allreduce",
    algorithms: Sequence[str] | None = None,
    *,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes | Drawing:
    """Draw the measured performance of one or several machines by size, or the errors of a machine's predictions.

    The views "busbw", "log" (the same on a logarithmic axis) and "time" show the backends' own collectives, one line
    each. `profile` is a profile, or maps names to several.

    The view "residuals" shows how far the predictions from a profile's links are above or below the measured medians,
    in percent. `algorithms` are by default the five with the worst predictions, over all others as grey lines; if they
    are chosen, no others are drawn. Hollow markers are points with few iterations without interference from the host.

    Raises ValueError if the view is unknown or nothing that it shows was measured.
    """
    if isinstance(profile, Mapping):
        return _shown_on(ax, draw_boxes(profile, collective, view, title=title))
    one_of("view", view, (*UNITS, "residuals"))
    of_type("profile", profile, Profile)
    if view != "residuals":
        return _shown_on(ax, draw_boxes({profile.provenance["name"]: profile}, collective, view, title=title))
    return _residuals(profile, collective, algorithms, ax, title)


def _shown_on(ax: Axes | None, drawing: Drawing) -> Axes | Drawing:
    return drawing if ax is None else to_axes(drawing, ax)


def _residuals(
    profile: Profile, collective: str, algorithms: Sequence[str] | None, ax: Axes | None, title: str | None
) -> Axes:
    """Draw the errors of predictions in percent: those of the shown algorithms with names, the others in grey."""
    predicted = _predicted(profile, collective)
    errors = {name: algorithm.errors_percent for name, algorithm in predicted.items()}
    if algorithms is None:
        worst_first = sorted(predicted, key=lambda name: -max(map(abs, errors[name])))
        shown = worst_first[:_MOST_NAMED]
        others = worst_first[_MOST_NAMED:]
    else:
        shown = _shown(predicted, algorithms)
        others = []
    ax = _residual_axes({name: predicted[name] for name in (*shown, *others)}, ax, title)
    kinds: dict[str, dict[str, Any]] = {}  # the legend: what marks and lines mean, by its label
    if others:
        kinds["other algorithms"] = {"color": _GREY, "linewidth": 0.8}
    for name in others:
        # The label identifies the line in `ax`. No legend shows it, because `explain` makes its own samples.
        ax.plot(predicted[name].sizes, errors[name], color=_GREY, linewidth=0.8, zorder=1, label=f"{name}, other")
    ends = {}
    look_of = looks(shown)
    for name in shown:
        algorithm = predicted[name]
        look = look_of[name]
        error = np.array(errors[name])
        ax.plot(algorithm.sizes, error, color=look.color, linestyle=dash(look), linewidth=1.2, label=name)
        is_clean = algorithm.is_clean
        _residual_markers(ax, algorithm, is_clean, error, look, filled=True)
        _residual_markers(ax, algorithm, ~is_clean, error, look, filled=False)
        if not is_clean.all():
            kinds["few iterations without interference from the host"] = {
                "marker": "o",
                "linestyle": "none",
                "mfc": "none",
            }
        ends[name] = (errors[name][-1], look)
    if kinds:
        explain(ax, kinds)
    name_ends(ax, ends)
    return ax


def _predicted(profile: Profile, collective: str) -> dict[str, MeasuredAlgorithm]:
    """Return the measured algorithms that can be predicted at all sizes. Raises ValueError if there are none."""
    predicted: dict[str, MeasuredAlgorithm] = {}
    for name, algorithm in _measured(profile, collective).items():
        if not any(math.isnan(seconds) for seconds in algorithm.predicted_s):
            predicted[name] = algorithm
    if not predicted:
        raise ValueError(f"profile must have points of {collective} that can be predicted")
    return predicted


def _residual_axes(algorithms: Mapping[str, MeasuredAlgorithm], ax: Axes | None, title: str | None) -> Axes:
    """Return axes that all errors fit on, with a line at 0; by default, the title says how large errors are."""
    off = np.abs(np.concatenate([algorithm.errors_percent for algorithm in algorithms.values()]))
    if not title:
        median, p90 = np.percentile(off, [50, 90])
        title = f"Predictions against measurements: half within {median:.1f}%, nine in ten within {p90:.1f}%"
    reach = max(_LEAST_REACH, 1.15 * float(off.max()))  # with a margin
    y_limits = (-min(reach, 100), reach)  # no prediction is more than 100 % too short
    y_label = "predicted − measured [% of measured]"
    sizes = sorted({size for algorithm in algorithms.values() for size in algorithm.sizes})
    label = "size of each rank's buffer"
    ax = chart(ax, title, label, y_label, inches=4.6, x=sizes, x_margin=1.2, y_limits=y_limits)
    ax.axhline(0, color=INK, linewidth=1)
    return ax


def _residual_markers(
    ax: Axes, algorithm: MeasuredAlgorithm, chosen: NDArray[np.bool_], error: Floats, look: Look, filled: bool
) -> None:
    """Draw a marker at each of the chosen points, if there are any."""
    if not chosen.any():
        return
    ax.plot(
        np.array(algorithm.sizes, dtype=float)[chosen],
        error[chosen],
        color=look.color,
        marker=look.marker,
        linestyle="none",
        clip_on=False,  # a marker at the edge of the axes is drawn whole
        markerfacecolor=look.color if filled else "none",
        markersize=6,
        zorder=3,
    )


def _measured(profile: Profile, collective: str) -> dict[str, MeasuredAlgorithm]:
    """Return the measurements of a collective by algorithm, in ascending order of size.

    Those of 0 bytes are left out, because 0 has no place on a logarithmic axis. Raises ValueError if there are none.
    """
    group = next((group for group in groups(profile) if group.collective == collective), None)
    if group is None:
        raise ValueError(f"collective must be one that this profile has points of, got {collective!r}")
    measured: dict[str, MeasuredAlgorithm] = {}
    for num_bytes, points in group.by_size.items():
        if num_bytes == 0:
            continue
        for name, point in points.items():
            algorithm = measured.setdefault(name, MeasuredAlgorithm([], []))
            algorithm.points.append(point)
            algorithm.predicted_s.append(profile.point_s(point) or math.nan)
    if not measured:
        raise ValueError(f"profile must have points of {collective} above 0 bytes, got none")
    return measured


def _shown(measured: Mapping[str, MeasuredAlgorithm], algorithms: Sequence[str]) -> list[str]:
    """Return the algorithms that were asked for. Raises ValueError if there are none, or one that was not measured."""
    if not algorithms or not set(algorithms) <= set(measured):
        raise ValueError(f"algorithms must be some of {', '.join(measured)}, got {', '.join(algorithms) or 'none'}")
    return list(algorithms)


# ---- copies


_METHODS = ("pinned_non_blocking", "pageable", "pin_on_the_fly")
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
    `profile`. Dashes mark the link itself. Either argument may be None. `direction` is "h2d" or "d2h".

    Raises ValueError if there is nothing to draw or if the direction is unknown.
    """
    one_of("direction", direction, tuple(_WORDS))
    optional("facts", facts, of_type, LinkFacts)
    optional("profile", profile, of_type, Profile)
    if facts is None and profile is None:
        raise ValueError("facts or profile must be given, got None for both")
    plot = _CopiesPlot(direction, facts, profile)
    if facts is None and not plot.points:
        raise ValueError(f"profile must have copies by {', '.join(plot.looks)}, as no facts are given, got none")
    plot.make_axes(ax, title or _finding(direction, facts, plot.points))
    plot.draw_link()
    plot.draw_predictions()
    plot.draw_points()
    plot.mark_half_bandwidth()
    plot.explain()
    return plot.ax


class _CopiesPlot:
    """The figure of `copies`, drawn in steps. Heights are GB/s."""

    ax: Axes
    _top: float  # of the vertical axis

    def __init__(self, direction: str, facts: LinkFacts | None, profile: Profile | None) -> None:
        self.facts = facts
        self.direction = direction
        self.looks = looks((_pinned_method(profile), *_METHODS[1:]))  # by method
        least_bytes = _SIZES[0]  # smaller copies take as long as this one, because nearly all of it is their start
        self.points: dict[str, list[Point]] = {}  # by method, of those that were measured
        if profile is not None:
            for method in self.looks:
                points = transfers_of(profile, direction, method)
                points = [point for point in points if point.num_bytes >= least_bytes]
                if points:
                    self.points[method] = points
        sizes = {point.num_bytes for points in self.points.values() for point in points}
        self.sizes = np.array(sorted(sizes or _SIZES), dtype=float)
        self.predictions: dict[str, Floats] = {}  # heights by method, at each of the sizes
        self.link_rate = 0.0  # GB/s of the link alone; 0 without facts
        if facts is not None:
            for method in self.looks:
                seconds = [facts.seconds(size, direction, method) for size in self.sizes.tolist()]
                self.predictions[method] = self.sizes / np.array(seconds) / 1e9
            self.link_rate = facts.bytes_per_s(direction) / 1e9
        self.medians = {method: _percentile_rates(points, 50) for method, points in self.points.items()}

    def make_axes(self, ax: Axes | None, title: str) -> None:
        heights = np.concatenate([*self.predictions.values(), *self.medians.values()])
        self._top = _HEADROOM * max(float(heights.max()), self.link_rate)
        self.ax = chart(
            ax,
            title,
            "size of the copy",
            "bandwidth, one way [GB/s]",
            inches=4.4,
            x=self.sizes,
            x_margin=1.2,
            y_limits=(0.0, self._top),
        )

    def draw_link(self) -> None:
        if self.link_rate:
            rates = np.full(len(self.sizes), self.link_rate)
            self.ax.plot(self.sizes, rates, color=INK, linewidth=1, linestyle=_DASHES, label="the link alone")

    def draw_predictions(self) -> None:
        for method, heights in self.predictions.items():
            look = self.looks[method]
            style: dict[str, Any] = {"color": look.color, "linestyle": dash(look), "linewidth": 1.6}
            self.ax.plot(self.sizes, heights, label=f"{method}, predicted", **style)

    def draw_points(self) -> None:
        for method, points in self.points.items():
            low = _percentile_rates(points, 75)  # the third quartile of the time is the lower one of the rate
            high = _percentile_rates(points, 25)
            sizes = [point.num_bytes for point in points]
            markers(self.ax, method, self.looks[method], sizes, low, self.medians[method], high)

    def mark_half_bandwidth(self) -> None:
        """Mark the size at which a copy reaches half of the link's bandwidth."""
        if self.facts is None:
            return
        half_bytes = self.facts.start_s * self.facts.bytes_per_s(self.direction)  # that take as long as the start
        self.ax.axvline(half_bytes, color=INK, linewidth=0.8, linestyle=":", label="n½")
        note(self.ax, f"n½ = {bytes_words(half_bytes)}", (half_bytes, self._top), (4, -2), va="top")

    def explain(self) -> None:
        """Say what lines and markers are, and name each line at its end."""
        if self.predictions:
            explain(self.ax, {"predicted from facts: at best": {"linewidth": 1.6}})
        if self.points:
            explain(self.ax, {"measured: median and quartiles": {"marker": "o", "linestyle": "none"}})
        ends: dict[str, tuple[float, Look]] = {}
        for method, look in self.looks.items():
            # The name stands at the end of the line or, without facts, at the last marker.
            heights = self.predictions.get(method, self.medians.get(method))
            if heights is not None:
                ends[method] = (float(heights[-1]), look)
        if self.link_rate:
            ends["the link alone"] = (self.link_rate, Look(INK, dashed=True, marker=""))
        name_ends(self.ax, ends)


def _percentile_rates(points: Sequence[Point], percent: float) -> Floats:
    """Return the GB/s of a percentile of each point's times."""
    return np.array([point.num_bytes / point.percentile_s(percent) / 1e9 for point in points])


def _pinned_method(profile: Profile | None) -> str:
    """Return how copies of pinned memory are made: without blocking the host, unless only others were measured."""
    if profile is not None:
        methods = {point.options.get("method") for point in profile.points}
        if "pinned" in methods and "pinned_non_blocking" not in methods:
            return "pinned"
    return "pinned_non_blocking"


def _finding(direction: str, facts: LinkFacts | None, points: Mapping[str, Sequence[Point]]) -> str:
    """Return the title: the rates of two methods and of the link."""
    rates = {}  # bytes/s by method, at the largest size
    for name, points_by_size in points.items():
        largest = points_by_size[-1]
        rates[name] = largest.num_bytes / largest.median_s
    if facts is not None and not rates:
        num_bytes = _SIZES[-1]
        rates = {method: num_bytes / facts.seconds(num_bytes, direction, method) for method in _METHODS}
    words = [f"{name.removesuffix('_non_blocking')} {rate_words(rate)}" for name, rate in rates.items()]
    origin = "Measured" if points else "Predicted"
    title = f"{origin}, {_WORDS[direction]}: {', '.join(words[:2])}"  # of the first two, as a title is one line
    if facts is not None:
        title += f"; {facts.name} carries {rate_words(facts.bytes_per_s(direction))}"
    return title
