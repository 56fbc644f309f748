"""Figures of lines: over any quantity, and costs over the size of a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from ..common.checks import number, one_of, optional
from ..common.units import bytes_words
from .line_axes import Floats, dash, explain, line_axes, markers, name_ends, note, plain_ticks, size_axes
from .marks import WIDE_INCHES
from .palette import CATEGORIES, INK, PAPER, Look, looks

_MARKERS = ("o", "s", "^", "D")


# ---- over any quantity


def curves(
    x: ArrayLike,
    curves: Mapping[str, tuple[ArrayLike | None, ArrayLike | None]],
    title: str,
    x_label: str,
    y_label: str,
    ax: Axes | None = None,
    discrete: bool = False,
    log: str = "",
) -> Axes:
    """Draw ``curves[name] = (predicted, executed)`` over `x`; either of them may be None.

    Predictions are lines, and executions are markers of the same hue. If there are several curves, their names are at
    the right end. If `discrete` is true, a prediction is a short dash at each x, for quantities without values in
    between. The axes in `log` ("x", "y" or "xy") are logarithmic, with ticks that are written without exponents.

    Raises ValueError if there are more curves than hues, if a curve has neither, if a length differs from that of `x`,
    or if `log` names other axes.
    """
    one_of("log", log, ("", "x", "y", "xy"))
    x_values = np.asarray(x)
    _check_curves(curves, x_values)
    ax = line_axes(ax, (WIDE_INCHES, 3.6), title, x_label, y_label)
    ends: dict[str, tuple[float, Look]] = {}
    for index, (name, (predicted, executed)) in enumerate(curves.items()):
        is_dashed = index % 2 == 1  # every second one, so that neighbours differ in grey, too
        look = Look(CATEGORIES[index], is_dashed, _MARKERS[index % len(_MARKERS)])
        if predicted is not None:
            style: dict[str, Any] = {"linestyle": dash(look), "linewidth": 1.6}
            if discrete:
                style = {"linestyle": "none", "marker": "_", "markersize": 18, "markeredgewidth": 1.8}
            ax.plot(x_values, predicted, color=look.color, label=f"{name}, predicted", **style)
        if executed is not None:
            style = {"linestyle": "none", "marker": look.marker, "markersize": 4, "zorder": 3}
            ax.plot(x_values, executed, color=look.color, label=f"{name}, executed", **style)
        named_values = executed if predicted is None else predicted  # the line has the name, if there is one
        ends[name] = _last_finite(named_values), look
    if "x" in log:
        ax.set_xscale("log")
        plain_ticks(ax.xaxis, ax.get_xlim())
        # A caller may set ticks at powers of two, between which minor ticks would confuse.
        ax.set_xticks([], minor=True)
    if "y" in log:
        ax.set_yscale("log")
        plain_ticks(ax.yaxis, ax.get_ylim())
    has_predicted = any(predicted is not None for predicted, _ in curves.values())
    has_executed = any(executed is not None for _, executed in curves.values())
    if has_predicted and has_executed:
        marker = {"marker": "o", "markersize": 4, "linestyle": "none"}
        explain(ax, {"predicted": {"linewidth": 1.6}, "executed": marker})
    if len(curves) > 1:
        name_ends(ax, ends)
    return ax


def _check_curves(curves: Mapping[str, tuple[ArrayLike | None, ArrayLike | None]], x: Floats) -> None:
    """Raise ValueError unless each curve has a prediction or an execution, and each of these a value for each x."""
    if not isinstance(curves, Mapping) or not 0 < len(curves) <= len(CATEGORIES):
        got = len(curves) if isinstance(curves, Mapping) else repr(curves)
        raise ValueError(f"curves must number from 1 to {len(CATEGORIES)}, by name, got {got}")
    for name, pair in curves.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"curves[{name!r}] must be a pair of columns, got {pair!r}")
        predicted, executed = pair
        if predicted is None and executed is None:
            raise ValueError(f"curves must have a prediction or an execution each, got neither for {name!r}")
        for kind, values in (("predicted", predicted), ("executed", executed)):
            if values is not None and np.shape(values) != x.shape:
                raise ValueError(f"{name}, {kind}: {np.shape(values)} values over x of shape {x.shape}")


def _last_finite(values: ArrayLike | None) -> float:
    """The last value that is finite, 0 if none is."""
    numbers = np.asarray(values, dtype=float)
    finite = numbers[np.isfinite(numbers)]
    return float(finite[-1]) if finite.size else 0.0


# ---- over sizes

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))  # the seconds of each unit
_SAME = 1e-9  # lines as close as this, in logarithms, coincide
_LABEL_SHARE = 0.07  # of the width of the axes: the room for the size at a change


def costs(
    num_bytes: ArrayLike,
    seconds: Mapping[str, ArrayLike],
    measured: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    half_bytes: float | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw ``seconds[algorithm]`` over `num_bytes` on logarithmic axes, with names at the right end of the lines.

    A dot with its size marks each point at which another algorithm becomes the
    fastest. `measured` maps algorithms to ``(num_bytes, seconds)``, of shape (sizes,) or (sizes, repeats), drawn as
    markers at the median with a bar from minimum to maximum. `half_bytes` marks n½, where latency and bandwidth take
    the same time.

    Raises ValueError if there are no algorithms, if sizes are not above 0 and ascending, if a time is not above 0,
    or if lengths differ.
    """
    sizes = _sizes(num_bytes)
    if not isinstance(seconds, Mapping) or not seconds:
        raise ValueError(f"seconds must hold the times of at least one algorithm, by name, got {seconds!r}")
    lines_s = {name: _times(name, values, sizes) for name, values in seconds.items()}
    points = _points(measured or {})
    optional("half_bytes", half_bytes, number, above=0)

    all_s = np.concatenate([*lines_s.values(), *(times_s.ravel() for _, times_s in points.values())])
    scale, unit = _unit_of(float(all_s.min()))
    lowest_y = all_s.min() / scale
    highest_y = all_s.max() / scale
    first_leader, changes = lowest(sizes, np.stack(list(lines_s.values())) / scale)
    finding = _fastest(list(lines_s), [first_leader, *(change.leader for change in changes)])
    y_limits = (lowest_y / 2, highest_y * 1.6)  # with some room below the lines, and above them for n½
    ax = size_axes(ax, (WIDE_INCHES, 5), title or finding, f"time [{unit}]", sizes, y_limits=y_limits, log_y=True)
    ends: dict[str, tuple[float, Look]] = {}
    styles = looks([*lines_s, *points])
    for name, times_s in lines_s.items():
        look = styles[name]
        y = times_s / scale
        layer = 2.5 if look.dashed else 2.0  # if two lines coincide, both show only if the dashed one is on top
        ax.plot(sizes, y, color=look.color, linestyle=dash(look), linewidth=1.8, label=name, zorder=layer)
        ends[name] = float(y[-1]), look
    for name, (x, times_s) in points.items():
        low = times_s.min(axis=1) / scale
        middle = np.median(times_s, axis=1) / scale
        high = times_s.max(axis=1) / scale
        markers(ax, name, styles[name], x, low, middle, high)
        if name not in ends:  # the name of a line stands at the line's own end
            ends[name] = float(middle[-1]), styles[name]
    if points:
        explain(ax, {"measured: median, from least to most": {"marker": "o", "linestyle": "none"}})
    _draw_changes(ax, changes)
    name_ends(ax, ends)
    if half_bytes is not None:
        ax.axvline(half_bytes, color=INK, linewidth=0.8, linestyle=":", label="n½")
        above_the_lines = highest_y * 1.45  # and below the upper limit of the axis
        note(ax, f"n½ = {bytes_words(half_bytes)}", (half_bytes, above_the_lines), (4, 0), va="top")
    return ax


def _unit_of(shortest_s: float) -> tuple[float, str]:
    """Return the largest unit in which no time is below 1, and its seconds; the smallest unit if there is none."""
    for seconds, unit in _UNITS:
        if shortest_s >= seconds:
            return seconds, unit
    return _UNITS[-1]


def _sizes(num_bytes: ArrayLike) -> Floats:
    sizes = np.asarray(num_bytes, dtype=float)
    is_column = sizes.ndim == 1 and sizes.size > 1
    rises_from_above_0 = (np.diff(sizes, prepend=0.0) > 0).all()
    if not is_column or not np.isfinite(sizes).all() or not rises_from_above_0:
        raise ValueError(f"num_bytes must be at least two sizes that rise from above 0, got {num_bytes!r}")
    return sizes


def _points(measured: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> dict[str, tuple[Floats, Floats]]:
    """The sizes measured of each algorithm, and the times, sizes by repeats."""
    points = {}
    for name, (num_bytes, seconds) in measured.items():
        sizes = np.asarray(num_bytes, dtype=float)
        is_column = sizes.ndim == 1 and sizes.size > 0
        if not is_column or not np.isfinite(sizes).all() or not (sizes > 0).all():
            raise ValueError(f"{name}, measured: sizes must be finite and above 0, got {num_bytes!r}")
        times_s = _times(f"{name}, measured", seconds, sizes, most_axes=2)
        points[name] = sizes, times_s.reshape(sizes.size, -1)  # times without repeats become one column
    return points


def _fastest(names: Sequence[str], leaders: Sequence[int]) -> str:
    """Name the fastest algorithms, from small to large; `leaders` are their places in `names`."""
    if len(leaders) == 1:
        return f"{names[leaders[0]]} is the fastest at every size"
    return f"Fastest, from small to large: {', '.join(names[leader] for leader in leaders)}"


def _draw_changes(ax: Axes, changes: list[Change]) -> None:
    """A dot for each change of the fastest; its size stands below, where the dots leave room."""
    x = [change.x for change in changes]
    y = [change.y for change in changes]
    ax.plot(x, y, "o", color=INK, markersize=5, markerfacecolor=PAPER, label="crossover", zorder=4)
    to_axes = ax.transData + ax.transAxes.inverted()  # from data to shares of the axes' width and height
    last_share = -np.inf  # where the last label stands; none stands anywhere yet
    for change in changes:
        share = float(to_axes.transform((change.x, change.y))[0])
        if share - last_share > _LABEL_SHARE:
            note(ax, bytes_words(change.x), (change.x, change.y), (0, -7), va="top", ha="center")
            last_share = share


def _times(name: str, values: ArrayLike, sizes: Floats, most_axes: int = 1) -> Floats:
    """The times of these sizes, above 0, as a logarithmic axis needs them."""
    times = np.asarray(values, dtype=float)
    has_row_per_size = times.shape[:1] == sizes.shape
    if not has_row_per_size or times.ndim > most_axes or times.size == 0:
        raise ValueError(f"{name}: {times.shape} values over sizes of shape {sizes.shape}")
    if not (np.isfinite(times) & (times > 0)).all():
        raise ValueError(f"{name}: times must be finite and above 0 on a logarithmic axis")
    return times


# ---- where lines cross


class Change(NamedTuple):
    """At `x` and above, line `leader` is the lowest; it is `y` high there."""

    x: float
    y: float
    leader: int


def lowest(x: Floats, y: Floats) -> tuple[int, list[Change]]:
    """Return the lowest line at the left, and each change of it, for lines that are straight on logarithmic axes.

    `y` has a row for each line, all above 0. Of lines that coincide the one that was the lowest remains so; at the left
    it is the first of them.

    >>> first, changes = lowest(np.array([1.0, 100.0]), np.array([[1.0, 100.0], [10.0, 10.0]]))
    >>> first, [(round(change.x, 9), round(change.y, 9), change.leader) for change in changes]
    (0, [(10.0, 10.0, 1)])
    """
    log_x = np.log(x)
    log_y = np.log(y)
    is_lowest = log_y[:, 0] <= log_y[:, 0].min() + _SAME
    first_leader = int(is_lowest.argmax())  # the first that is True
    leader = first_leader
    changes: list[Change] = []
    for interval in range(x.size - 1):  # from one x to the next
        start = log_y[:, interval]  # the height of each line at the left of the interval
        rise = log_y[:, interval + 1] - start  # of each line from there to the right
        for fraction in _possible_changes(start, rise):
            height = start + fraction * rise  # of each line at this fraction of the interval
            lowest_lines = np.flatnonzero(height <= height.min() + _SAME)
            # Of the lines that meet here, the one that rises least is the lowest after this point.
            next_leader = int(lowest_lines[rise[lowest_lines].argmin()])
            leader_remains = rise[leader] <= rise[next_leader] + _SAME
            if not leader_remains:
                leader = next_leader
                change_x = log_x[interval] + fraction * (log_x[interval + 1] - log_x[interval])
                changes.append(Change(float(np.exp(change_x)), float(np.exp(height[leader])), leader))
    return first_leader, changes


def _possible_changes(start: Floats, rise: Floats) -> list[float]:
    """Return where the lowest line may change in an interval, as rising fractions of it from 0 to below 1.

    Lines start at heights `start` and reach ``start + rise``. The lowest may change where two lines cross, and also at
    0, where the slopes change.
    """
    gap = np.subtract.outer(start, start)  # lines by lines, as the arrays below
    closing = -np.subtract.outer(rise, rise)  # how much of the gap two lines close over the whole interval
    # Parallel lines cross nowhere: their fraction is infinite or nan.
    with np.errstate(divide="ignore", invalid="ignore"):
        crossings = gap / closing
    inside = crossings[(crossings > 0) & (crossings < 1 - _SAME)]  # 1 is the 0 of the next interval
    return np.unique([0.0, *inside]).tolist()  # type: ignore[no-any-return]
