"""What a machine was measured to do, size by size, next to what is predicted from its links."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from ...common.checks import of_type, one_of
from ...common.frozen import optional
from ...common.units import bytes_words, percent_words, rate_unit, rate_words
from ...figures.axes import to_axes
from ...figures.line_axes import Floats, dash, explain, markers, name_ends, note, size_axes
from ...figures.marks import WIDE_INCHES, Drawing, shade_keys, shaded
from ...figures.palette import INK, Look, looks
from .. import Profile
from ..link_facts import LinkFacts, peer_rates, transfers_of
from ..measuring.plan import LEAST_PIECE_BYTES, NUM_PIECES
from ..profile import NATIVE, Point, busbw_factor
from ..sentences import groups
from .boxes import draw_boxes

_DASHES = (0, (5, 4))  # of what the link itself would give
_GREY = "#b5b5b5"  # of algorithms that are not named
_OTHER_DOTS: dict[str, Any] = {"color": _GREY, "marker": ".", "markersize": 3, "linestyle": "none"}  # their points
_MOST_NAMED = 5  # of the worst predicted
_LEAST_REACH = 5.0  # percent that the axis of residuals shows at least
_HEADROOM = 1.12  # the top of an axis, as a multiple of the largest height
_DRAWN_PER_SIZE = 16  # points of a curve for each size that was measured, so that it looks smooth


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
    view: str = "busbw",
    collective: str | Sequence[str] = "allreduce",
    algorithms: Sequence[str] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the measured performance of a machine by size, next to the predictions from its links.

    The view "busbw" shows the bus bandwidth. Markers are medians with their quartiles, lines are predictions, and
    dashes mark the link, if one was measured. The line of the backend's own algorithm is its curve, and the paler band
    contains 90 % of the measurements; see `Profile.curve`. `algorithms` are drawn with names, by default the backend's
    own and those that are the fastest at some size; all others are grey dots.

    The view "residuals" shows how far the prediction is above or below the measured median, in percent. `algorithms`
    are by default the five with the worst predictions, over all others as grey lines; if they are chosen, no others are
    drawn. Hollow markers are points with few iterations without interference from the host.

    If `profile` maps names to several profiles, the backends' own collectives are drawn in the same axes, one line
    each, in the view "busbw", "log" (the same on a logarithmic axis) or "time". `collective` may then be a sequence.

    Raises ValueError if the view is unknown or nothing that it shows was measured.
    """
    if isinstance(profile, Mapping):
        return to_axes(draw_boxes(profile, collective, view, title=title), ax)
    one_of("view", view, ("busbw", "residuals"))
    of_type("profile", profile, Profile)
    draw = _busbw if view == "busbw" else _residuals
    return draw(profile, of_type("collective", collective, str), algorithms, ax, title)


def _busbw(
    profile: Profile, collective: str, algorithms: Sequence[str] | None, ax: Axes | None, title: str | None
) -> Axes:
    """Draw the measured busbw of the shown algorithms, with what is predicted, over the others as grey dots."""
    plot = _BusbwPlot(profile, collective, algorithms)
    plot.make_axes(ax, title)
    plot.draw_others()
    for name in plot.shown:
        plot.draw_points(name)
        if name == NATIVE:
            plot.draw_curve()
        else:
            plot.draw_prediction(name)
    plot.draw_link()
    plot.explain()
    return plot.ax


class _BusbwPlot:
    """The view "busbw", drawn in steps. Heights are in the unit of the axis, which has `scale` bytes/s."""

    ax: Axes

    def __init__(self, profile: Profile, collective: str, algorithms: Sequence[str] | None) -> None:
        self.profile = profile
        self.collective = collective
        self.measured = _measured(profile, collective)
        self.shown = _shown(self.measured, algorithms)
        self.looks = looks(self.shown)
        self.has_curve = False  # until one is drawn
        self.others = [name for name in self.measured if name not in self.shown]
        self.factor = busbw_factor(collective, profile.num_ranks)
        self.rates: dict[str, list[float]] = {}  # busbw in bytes/s of each algorithm, in the order of its points
        for name, algorithm in self.measured.items():
            self.rates[name] = [self.factor * point.num_bytes / point.median_s for point in algorithm.points]
        self.peak = max(max(rates) for rates in self.rates.values())
        self.link_rate = _link_rate(profile)
        self.scale, self.unit = rate_unit(max(self.peak, self.link_rate))
        # The line of the link fits on the axis, unless it is so far above the points that it would press them together.
        highest = max(self.peak, min(self.link_rate, 2 * self.peak))
        self.top = _HEADROOM * highest / self.scale
        all_sizes = {size for algorithm in self.measured.values() for size in algorithm.sizes}
        self.sizes = np.array(sorted(all_sizes), dtype=float)

    def make_axes(self, ax: Axes | None, title: str | None) -> None:
        y_label = f"bus bandwidth (busbw) [{self.unit}]"
        y_limits = (0, self.top)
        self.ax = size_axes(
            ax, (WIDE_INCHES, 4.6), title or self._finding(), y_label, self.sizes, x_margin=1.2, y_limits=y_limits
        )

    def _finding(self) -> str:
        """Return the title: the highest busbw of the shown algorithms, as a share of a link if one was measured."""
        best_rate, best = max((max(self.rates[name]), name) for name in self.shown)
        if self.link_rate:
            return f"{best} reaches {percent_words(best_rate / self.link_rate)} of a link's bandwidth"
        return f"{best} reaches {rate_words(best_rate)}"

    def draw_others(self) -> None:
        for name in self.others:
            self.ax.plot(self.measured[name].sizes, np.array(self.rates[name]) / self.scale, zorder=1, **_OTHER_DOTS)

    def draw_points(self, name: str) -> None:
        """Draw an algorithm's medians and quartiles."""
        points = self.measured[name].points
        sizes = self.measured[name].sizes
        # The slower a measurement, the lower its busbw: the third quartile of the times is the lower end of the bar.
        low = self._heights(sizes, _percentiles_s(points, 75))
        middle = self._heights(sizes, _percentiles_s(points, 50))
        high = self._heights(sizes, _percentiles_s(points, 25))
        markers(self.ax, name, self.looks[name], sizes, low, middle, high)

    def draw_prediction(self, name: str) -> None:
        algorithm = self.measured[name]
        look = self.looks[name]
        predicted = self._heights(algorithm.sizes, np.array(algorithm.predicted_s))
        style: dict[str, Any] = {"color": look.color, "linestyle": dash(look), "linewidth": 1.5}
        self.ax.plot(algorithm.sizes, predicted, label=f"{name}, predicted", **style)

    def draw_curve(self) -> None:
        """Draw the curve through the backend's own times and its 90 % band, if there are enough sizes for a curve."""
        try:
            curve = self.profile.curve(self.collective)
        except ValueError:
            return
        self.has_curve = True
        first = max(1, min(curve.measured_s))  # `geomspace` multiplies by a factor, so it cannot begin at 0
        sizes = np.geomspace(first, max(curve.measured_s), _DRAWN_PER_SIZE * len(curve.measured_s))
        seconds = np.array([curve.seconds(size) for size in sizes.tolist()])
        intervals_s = np.array([curve.interval_s(size) for size in sizes.tolist()])  # a row per size: low, high
        color = self.looks[NATIVE].color
        self.ax.plot(sizes, self._heights(sizes, seconds), color=color, linewidth=1.0, label="native, curve")
        # The longer the time, the lower the busbw.
        low = self._heights(sizes, intervals_s[:, 1])
        high = self._heights(sizes, intervals_s[:, 0])
        self.ax.fill_between(sizes, low, high, color=color, alpha=0.2, linewidth=0)

    def draw_link(self) -> None:
        height = self.link_rate / self.scale
        if 0 < height < self.top:  # 0 if no link was measured
            self.ax.axhline(height, color=INK, linewidth=1, linestyle=_DASHES, label="link")
            words = f"one link: {rate_words(self.link_rate)}"
            note(self.ax, words, (self.sizes[0], height), (4, 4), va="bottom")

    def explain(self) -> None:
        """Say what markers and lines are, and name each algorithm at the end of its line."""
        kinds: dict[str, dict[str, Any]] = {"measured: median and quartiles": {"marker": "D", "linestyle": "none"}}
        if self.shown != [NATIVE]:  # which has no prediction
            kinds["predicted"] = {"linewidth": 1.5}
        if self.others:
            kinds["other algorithms, measured"] = _OTHER_DOTS
        if self.has_curve:
            kinds["native: the curve through it, and where 90 % lie"] = {"linewidth": 1.0, "alpha": 0.6}
        explain(self.ax, kinds)
        name_ends(self.ax, {name: (self.rates[name][-1] / self.scale, self.looks[name]) for name in self.shown})

    def _heights(self, sizes: Any, seconds: Floats) -> Floats:
        """Return the busbw at sizes, in the unit of the axis."""
        return np.asarray(self.factor * np.array(sizes) / seconds / self.scale)


def _link_rate(profile: Profile) -> float:
    """Return the bandwidth in bytes/s of the link that limits a collective; 0 if it was not measured.

    With several nodes, that is the link between them.
    """
    with suppress(ValueError):
        return profile.best_link("intra" if profile.num_nodes == 1 else "inter").link.bytes_per_s
    return 0.0


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
    ax = size_axes(ax, (WIDE_INCHES, 4.6), title, y_label, sizes, x_margin=1.2, y_limits=y_limits)
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


def _percentiles_s(points: Sequence[Point], percent: float) -> Floats:
    return np.array([point.percentile_s(percent) for point in points])


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
            algorithm.predicted_s.append(profile.model_s.get(point.key, math.nan))
    if not measured:
        raise ValueError(f"profile must have points of {collective} above 0 bytes, got none")
    return measured


def _shown(measured: Mapping[str, MeasuredAlgorithm], algorithms: Sequence[str] | None) -> list[str]:
    """Return the algorithms to name: those asked for, or the native one and those that are the fastest at some size."""
    if algorithms is None:
        fastest: dict[int, tuple[float, str]] = {}  # by size: the shortest median, and whose it is
        for name, algorithm in measured.items():
            for point in algorithm.points:
                candidate = (point.median_s, name)
                fastest[point.num_bytes] = min(fastest.get(point.num_bytes, candidate), candidate)
        fastest_names = {name for _, name in fastest.values()}
        return [name for name in measured if name == NATIVE or name in fastest_names]
    if not algorithms or not set(algorithms) <= set(measured):
        raise ValueError(f"algorithms must be some of {', '.join(measured)}, got {', '.join(algorithms) or 'none'}")
    return list(algorithms)


# ---- copies


_METHODS = ("pinned_non_blocking", "pageable", "pin_on_the_fly")  # of the view "rate"
_SIZES = tuple(2**power for power in range(10, 31))  # of predictions without measurements
_MARKERS = {"pinned": "s", "pageable": "d"}  # of the dashed line, by memory
_WORDS = {"h2d": "to the GPU", "d2h": "to the host"}


class CopyStyle(NamedTuple):
    """The look of a way to copy, and the options of its points."""

    look: Look
    options: dict[str, Any]


def copies(
    facts: LinkFacts | None,
    profile: Profile | None = None,
    view: str = "rate",
    direction: str = "h2d",
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the rate or time of copies to and from a GPU by size.

    Lines show the limit that follows from the `facts` of the link; markers are the medians and quartiles measured in
    `profile`. Dashes mark the link itself. Either argument may be None. `direction` is "h2d" or "d2h". The view is

    - "rate" [GB/s]: copies from pinned memory, pageable memory, and memory that is pinned for the copy;
    - "both_ways" [GB/s]: copies in one direction alone, and while the same amount is copied in the other direction;
    - "pieces" [µs]: the time of one copy next to the time of the same bytes in 256 equal copies;
    - "peers" [GB/s]: measured copies from each GPU to each other GPU, one at a time, at the largest size; paler is
      faster.

    Raises ValueError if there is nothing to draw or if the view or direction is unknown.
    """
    one_of("view", view, ("rate", "both_ways", "pieces", "peers"))
    one_of("direction", direction, tuple(_WORDS))
    if view == "peers":
        return to_axes(draw_peers(of_type("profile", profile, Profile), title), ax)
    optional("facts", facts, of_type, LinkFacts)
    optional("profile", profile, of_type, Profile)
    if facts is None and profile is None:
        raise ValueError("facts or profile must be given, got None for both")
    plot = _CopiesPlot(view, direction, facts, profile)
    if facts is None and not plot.points:
        raise ValueError(f"profile must have copies by {', '.join(plot.ways)}, as no facts are given, got none")
    plot.make_axes(ax, title or _finding(view, direction, facts, plot.points))
    plot.draw_link()
    plot.draw_predictions()
    plot.draw_points()
    plot.mark_half_bandwidth()
    plot.explain()
    return plot.ax


class _CopiesPlot:
    """The figure of `copies`, drawn in steps. Heights are GB/s, or µs in the view "pieces"."""

    ax: Axes
    _top: float  # of the vertical axis

    def __init__(self, view: str, direction: str, facts: LinkFacts | None, profile: Profile | None) -> None:
        self.facts = facts
        self.direction = direction
        self.has_rates = view != "pieces"
        self.ways = _ways(view, _pinned_method(profile))
        least_bytes = _SIZES[0]  # smaller copies take as long as this one, because nearly all of it is their start
        if view == "pieces":  # smaller copies are not measured in pieces
            least_bytes = NUM_PIECES * LEAST_PIECE_BYTES
        self.points: dict[str, list[Point]] = {}  # by way to copy, of those that were measured
        if profile is not None:
            for name, way in self.ways.items():
                points = transfers_of(profile, direction, **way.options)
                points = [point for point in points if point.num_bytes >= least_bytes]
                if points:
                    self.points[name] = points
        sizes = {point.num_bytes for points in self.points.values() for point in points}
        if not sizes:
            sizes = {size for size in _SIZES if size >= least_bytes}
        self.sizes = np.array(sorted(sizes), dtype=float)
        self.predictions: dict[str, Floats] = {}  # heights by way to copy, at each of the sizes
        self.link_heights: Floats = np.empty(0)  # of the link alone; empty without facts
        if facts is not None:
            for name, way in self.ways.items():
                seconds = [facts.seconds(size, direction, **way.options) for size in self.sizes.tolist()]
                self.predictions[name] = self._heights(self.sizes, np.array(seconds))
            self.link_heights = self._heights(self.sizes, self.sizes / facts.bytes_per_s(direction))
        self.medians = {name: self._percentile_heights(points, 50) for name, points in self.points.items()}

    def _heights(self, num_bytes: Floats, seconds: Floats) -> Floats:
        """Return GB/s or µs, as the view has them."""
        return num_bytes / seconds / 1e9 if self.has_rates else seconds * 1e6

    def _percentile_heights(self, points: Sequence[Point], percent: float) -> Floats:
        return self._heights(np.array([point.num_bytes for point in points]), _percentiles_s(points, percent))

    def make_axes(self, ax: Axes | None, title: str) -> None:
        heights = np.concatenate([*self.predictions.values(), *self.medians.values()])
        highest = max([float(heights.max()), *self.link_heights.tolist()])
        if self.has_rates:
            y_label = "bandwidth, one way [GB/s]"
            y_limits = (0.0, _HEADROOM * highest)
        else:
            y_label = "time [µs]"
            # With margins, on a logarithmic axis. The link alone may take less than half of a copy with its start.
            lowest = min([float(heights.min()) / 2, *(0.9 * self.link_heights).tolist()])
            y_limits = (lowest, 2 * highest)
        self._top = y_limits[1]
        self.ax = size_axes(
            ax,
            (WIDE_INCHES, 4.4),
            title,
            y_label,
            self.sizes,
            "size of the copy",
            x_margin=1.2,
            y_limits=y_limits,
            log_y=not self.has_rates,
        )

    def draw_link(self) -> None:
        if self.link_heights.size:
            self.ax.plot(
                self.sizes, self.link_heights, color=INK, linewidth=1, linestyle=_DASHES, label="the link alone"
            )

    def draw_predictions(self) -> None:
        for name, heights in self.predictions.items():
            look = self.ways[name].look
            style: dict[str, Any] = {"color": look.color, "linestyle": dash(look), "linewidth": 1.6}
            self.ax.plot(self.sizes, heights, label=f"{name}, predicted", **style)

    def draw_points(self) -> None:
        # Of a rate, the third quartile of the time is the lower one.
        lower, upper = (75, 25) if self.has_rates else (25, 75)
        for name, points in self.points.items():
            low = self._percentile_heights(points, lower)
            high = self._percentile_heights(points, upper)
            sizes = [point.num_bytes for point in points]
            markers(self.ax, name, self.ways[name].look, sizes, low, self.medians[name], high)

    def mark_half_bandwidth(self) -> None:
        """Mark the size at which a copy reaches half of the link's bandwidth."""
        if self.facts is None or not self.has_rates:
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
        for name, way in self.ways.items():
            # The name stands at the end of the line or, without facts, at the last marker.
            heights = self.predictions.get(name, self.medians.get(name))
            if heights is not None:
                ends[name] = (float(heights[-1]), way.look)
        if self.link_heights.size:
            ends["the link alone"] = (float(self.link_heights[-1]), Look(INK, dashed=True, marker=""))
        name_ends(self.ax, ends)


def _pinned_method(profile: Profile | None) -> str:
    """Return how copies of pinned memory are made: without blocking the host, unless only others were measured."""
    if profile is not None:
        methods = {point.options.get("method") for point in profile.points}
        if "pinned" in methods and "pinned_non_blocking" not in methods:
            return "pinned"
    return "pinned_non_blocking"


def _ways(view: str, pinned_method: str) -> dict[str, CopyStyle]:
    """Return the ways to copy that a view compares, by label. `pinned_method` copies pinned memory.

    The view "rate" compares methods. The other views compare, for each kind of memory, a plain copy and, dashed, one
    with an option.
    """
    if view == "rate":
        methods = (pinned_method, *_METHODS[1:])  # instead of the first of _METHODS, which the profile may lack
        return {method: CopyStyle(look, {"method": method}) for method, look in looks(methods).items()}
    plain_suffix = ""
    option_suffix = ", both ways"
    option: dict[str, Any] = {"both": True}
    if view == "pieces":
        plain_suffix = ", one copy"
        option_suffix = f", {NUM_PIECES} copies"
        option = {"pieces": NUM_PIECES}
    ways = {}
    for memory, marker in _MARKERS.items():
        method = memory  # copies from pageable memory are a method of their own
        if memory == "pinned":
            method = pinned_method
        look = looks([method])[method]
        ways[memory + plain_suffix] = CopyStyle(look, {"method": method})
        optional_look = Look(look.color, dashed=True, marker=marker)
        ways[memory + option_suffix] = CopyStyle(optional_look, {"method": method, **option})
    return ways


def _finding(view: str, direction: str, facts: LinkFacts | None, points: Mapping[str, Sequence[Point]]) -> str:
    """Return the title: the subject of a view or, of the view "rate", the rates of two methods and of the link."""
    if view == "both_ways":
        return f"A link has lanes in both directions: copies {_WORDS[direction]}, alone and with equal traffic back"
    if view == "pieces":
        return f"{NUM_PIECES} small copies incur {NUM_PIECES} start-up costs"
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


_CELL_WIDTH_PX = 46.0
_CELL_HEIGHT_PX = 26.0
_LEAST_PX = 400.0  # so that a title fits


def draw_peers(profile: Profile, title: str | None = None) -> Drawing:
    """Draw the bandwidth of copies from each GPU to each other GPU at the largest size of a profile; paler is faster.

    The legend is the scale of the colours, from a quarter of the highest rate. A GPU's own cell is grey, and so is the
    cell of a pair that was not measured.

    Raises ValueError if the profile has no such copies or too many GPUs.
    """
    size, rates = peer_rates(profile)
    gpus = sorted(set(chain.from_iterable(rates)))
    rows = [[rates.get((src, dst), 0.0) for dst in gpus] for src in gpus]
    cells, numbers = shaded(np.array(rows), scale=1e9)  # GB/s
    ticks = tuple((index + 0.5, str(gpu)) for index, gpu in enumerate(gpus))  # in the middle of its row or column
    slow = rate_words(min(rates.values()))
    fast = rate_words(max(rates.values()))
    return Drawing(
        title=title or f"{bytes_words(size)} from GPU to GPU: {slow} to {fast}",
        x_label="target [GPU]",
        y_label="source [GPU]",
        width=len(gpus),
        height=len(gpus),
        size_px=(max(_CELL_WIDTH_PX * len(gpus), _LEAST_PX), _CELL_HEIGHT_PX * len(gpus)),
        rects=(cells,),
        texts=numbers,
        x_ticks=ticks,
        y_ticks=ticks,
        legend=shade_keys(max(rates.values()), scale=1e9, unit="GB/s"),
    )
