"""Figures of lines: over any quantity, queues over time, and costs over the size of a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from ..common.checks import count_of, number, whole
from ..common.frozen import optional
from ..common.units import bytes_words
from .axes import as_text
from .line_axes import GREY, LABEL_PT, Floats, dash, explain, line_axes, markers, name_ends, note, size_axes
from .palette import CATEGORIES, INK, PAPER, Look, looks

_MARKERS = "o", "s", "^", "D"


# ---- over any quantity


def curves(
    x: ArrayLike,
    curves: Mapping[str, tuple[ArrayLike | None, ArrayLike | None]],
    title: str,
    x_label: str,
    y_label: str,
    ax: Axes | None = None,
    discrete: bool = False,
) -> Axes:
    """Draw ``curves[name] = (predicted, executed)`` over `x`, either of them None where there is none.

    A prediction is a line, an execution markers of the same hue; of several the name stands at the right end. With
    `discrete`, a prediction is a short dash at each x, for quantities that do not exist in between. Raises ValueError
    for more curves than there are hues, for one without either, and for lengths that differ from that of `x`.
    """
    _check_pairs("curves", curves)
    if empty := [name for name, pair in curves.items() if pair[0] is None and pair[1] is None]:
        raise ValueError(f"curves must have a prediction or an execution each, got neither for {empty[0]!r}")
    places = np.asarray(x)
    for name, pair in curves.items():
        for values, kind in zip(pair, ("predicted", "executed"), strict=True):
            if values is not None and np.shape(values) != places.shape:
                raise ValueError(f"{name}, {kind}: {np.shape(values)} values over x of shape {places.shape}")
    ax = line_axes(ax, (8, 3.6), title, x_label, y_label)
    ends: dict[str, tuple[float, Look]] = {}
    for place, (name, (predicted, executed)) in enumerate(curves.items()):
        look = Look(CATEGORIES[place], place % 2 == 1, _MARKERS[place % len(_MARKERS)])
        line: dict[str, Any] = {"linestyle": dash(look), "linewidth": 1.6}
        if discrete:
            line = {"linestyle": "none", "marker": "_", "markersize": 18, "markeredgewidth": 1.8}
        dots: dict[str, Any] = {"linestyle": "none", "marker": look.marker, "markersize": 4, "zorder": 3}
        for values, kind, style in ((predicted, "predicted", line), (executed, "executed", dots)):
            if values is not None:
                ax.plot(places, values, color=look.color, label=f"{name}, {kind}", **style)
                seen = np.asarray(values, dtype=float)
                ends.setdefault(name, (float(seen[np.isfinite(seen)][-1:].sum()), look))
    if {kind for pair in curves.values() for kind in (0, 1) if pair[kind] is not None} == {0, 1}:
        dot = {"marker": "o", "markersize": 4, "linestyle": "none"}
        explain(ax, {"predicted": {"linewidth": 1.6}, "executed": dot})
    if len(curves) > 1:
        name_ends(ax, ends)
    return ax


def queue_fill(
    fills: Mapping[str, tuple[ArrayLike, ArrayLike]],
    capacity: int | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw how many items wait over time, ``fills[name] = (times_s, number)`` as `pipeline.queue_fill` gives them.

    Each has a strip of its own, the first on top, all as high as the `capacity`, or as the largest number without one.
    Raises ValueError for more than eight, for lengths that differ, and for a capacity below 0.
    """
    _check_pairs("fills", fills)
    for name, (times_s, waiting) in fills.items():
        if np.shape(times_s) != np.shape(waiting):
            raise ValueError(f"{name}: {np.shape(waiting)} numbers over times of shape {np.shape(times_s)}")
    optional("capacity", capacity, whole, 0)
    most = max(int(np.max(waiting, initial=0)) for _, waiting in fills.values())
    tall = max(most, capacity or 0, 1)
    finding = f"At most {count_of(most, 'item')} in the queue"
    if capacity is not None:
        finding += f", which holds {capacity}"
    inches = 8, 0.6 + 1.1 * len(fills)
    y_limits = -0.05 * tall, 1.4 * tall * len(fills)
    ax = line_axes(ax, inches, title or finding, "time [s]", "items in the queue", y_limits=y_limits, grid="")
    ticks: dict[float, str] = {}
    for row, ((name, (times_s, waiting)), color) in enumerate(zip(fills.items(), CATEGORIES, strict=False)):
        ground = 1.4 * tall * (len(fills) - 1 - row)
        x, height = np.asarray(times_s, dtype=float), ground + np.asarray(waiting, dtype=float)
        ax.fill_between(x, ground, height, step="post", color=color, linewidth=0, alpha=0.8, label=name)
        for level, width in ((ground, 0.8), (ground + (capacity or 0), 0.8 * (capacity is not None))):
            ax.axhline(level, color=GREY, linewidth=width, zorder=0)
        coords = ("axes fraction", "data"), "offset points"
        as_text(ax.annotate(name, (0, ground + tall), (0, 3), *coords, fontsize=LABEL_PT))
        ticks |= {ground: "0", ground + tall: f"{tall}"}
    ax.set_yticks(list(ticks), list(ticks.values()))
    return ax


def _check_pairs(name: str, pairs: Mapping[str, Any]) -> None:
    if not isinstance(pairs, Mapping) or not 0 < len(pairs) <= len(CATEGORIES):
        got = len(pairs) if isinstance(pairs, Mapping) else repr(pairs)
        raise ValueError(f"{name} must number from 1 to {len(CATEGORIES)}, by name, got {got}")
    for one, pair in pairs.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"{name}[{one!r}] must be a pair of columns, got {pair!r}")


# ---- over sizes

_GROUND = "#ededed"
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_SAME = 1e-9  # lines as close as this, in logarithms, are one


def costs(
    num_bytes: ArrayLike,
    seconds: Mapping[str, ArrayLike],
    bound_s: ArrayLike | None = None,
    measured: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    half_bytes: float | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw ``seconds[algorithm]`` over `num_bytes`, both axes logarithmic, each line named at its right end.

    Below `bound_s` it is grey. A dot, with its size, marks where another algorithm becomes the fastest. `measured`
    holds ``(num_bytes, seconds)`` of an algorithm, of shape (sizes,) or (sizes, repeats): markers at the median with a
    bar from least to most. `half_bytes` marks n½, where latency and bandwidth take the same time.

    Raises ValueError for no algorithm, sizes that do not rise from above 0, times that are not above 0, a bound below
    0, and lengths that differ.
    """
    sizes = np.asarray(num_bytes, dtype=float)
    rises = sizes.ndim == 1 and sizes.size > 1 and np.isfinite(sizes).all() and (np.diff(sizes, prepend=0.0) > 0).all()
    if not rises:
        raise ValueError(f"num_bytes must be at least two sizes that rise from above 0, got {num_bytes!r}")
    if not isinstance(seconds, Mapping) or not seconds:
        raise ValueError(f"seconds must hold the times of at least one algorithm, by name, got {seconds!r}")
    lines = {name: _times(name, values, sizes) for name, values in seconds.items()}
    below = None if bound_s is None else _times("bound_s", bound_s, sizes, low=0)
    points = {}
    for name, (x, y) in (measured or {}).items():
        places = np.asarray(x, dtype=float)
        if places.ndim != 1 or not places.size or not (np.isfinite(places).all() and (places > 0).all()):
            raise ValueError(f"{name}, measured: sizes must be finite and above 0, got {x!r}")
        points[name] = places, _times(f"{name}, measured", y, places, most_axes=2).reshape(places.size, -1)
    optional("half_bytes", half_bytes, number, above=0)

    values = np.concatenate([*lines.values(), *(y.ravel() for _, y in points.values())])
    scale, unit = next((pair for pair in _UNITS if values.min() >= pair[0]), _UNITS[-1])
    lowest_y, highest_y = values.min() / scale, values.max() / scale
    first, changes = lowest(sizes, np.stack(list(lines.values())) / scale)
    leaders = [list(lines)[place] for place in (first, *(change.leader for change in changes))]
    finding = f"Fastest, from small to large: {', '.join(leaders)}"
    if len(leaders) == 1:
        finding = f"{leaders[0]} is the fastest at every size"
    y_limits = lowest_y / 2, highest_y * 1.6
    ax = size_axes(ax, (9, 5), title or finding, f"time [{unit}]", sizes, y_limits=y_limits, log_y=True)
    if below is not None:
        ax.fill_between(sizes, np.full(sizes.size, lowest_y / 1e3), below / scale, color=_GROUND, zorder=0)
        ax.plot(sizes, below / scale, color=GREY, linewidth=1.2, label="lower bound", zorder=1)
    ends = {}
    for (name, y), look in zip(lines.items(), looks(lines).values(), strict=True):
        order = 2 + look.dashed / 2
        ax.plot(sizes, y / scale, color=look.color, linestyle=dash(look), linewidth=1.8, label=name, zorder=order)
        ends[name] = float(y[-1]) / scale, look
    if below is not None:
        ends["lower bound"] = float(below[-1]) / scale, Look(GREY, False, "")
    styles = looks([*lines, *points])
    for name, (x, y) in points.items():
        low, middle, high = (found(y, axis=1) / scale for found in (np.min, np.median, np.max))
        markers(ax, name, styles[name], x, low, middle, high)
        ends.setdefault(name, (float(middle[-1]), styles[name]))
    if points:
        explain(ax, {"measured: median, from least to most": {"marker": "o", "linestyle": "none"}})
    _draw_changes(ax, changes)
    name_ends(ax, ends)
    if half_bytes is not None:
        ax.axvline(half_bytes, color=INK, linewidth=0.8, linestyle=":", label="n½")
        note(ax, f"n½ = {bytes_words(half_bytes)}", (half_bytes, highest_y * 1.45), (4, 0), va="top")
    return ax


def _draw_changes(ax: Axes, changes: list[Change]) -> None:
    """A dot for each change of the fastest; its size stands below, where the dots leave room."""
    x, y = [change.x for change in changes], [change.y for change in changes]
    ax.plot(x, y, "o", color=INK, markersize=5, markerfacecolor=PAPER, label="crossover", zorder=4)
    last = -np.inf
    for change in changes:
        at = float(ax.transAxes.inverted().transform(ax.transData.transform((change.x, change.y)))[0])
        if at - last > 0.07:
            note(ax, bytes_words(change.x), (change.x, change.y), (0, -7), va="top", ha="center")
            last = at


def _times(name: str, values: ArrayLike, sizes: Floats, most_axes: int = 1, low: float | None = None) -> Floats:
    """The times of these sizes: above 0, as a logarithmic axis needs them, or at least `low`."""
    times = np.asarray(values, dtype=float)
    if times.shape[:1] != sizes.shape or times.ndim > most_axes or not times.size:
        raise ValueError(f"{name}: {times.shape} values over sizes of shape {sizes.shape}")
    if not (np.isfinite(times).all() and (times > 0 if low is None else times >= low).all()):
        allowed = "above 0 on a logarithmic axis" if low is None else f"at least {low}"
        raise ValueError(f"{name}: times must be finite and {allowed}")
    return times


# ---- where lines cross


class Change(NamedTuple):
    """From `x` on, where the lines are at `y`, line `leader` is the lowest."""

    x: float
    y: float
    leader: int


def lowest(x: Floats, y: Floats) -> tuple[int, list[Change]]:
    """Return the lowest line at the left, and each change of it, for lines that are straight on logarithmic axes.

    `y` has a row a line, all above 0. Of lines that coincide the one that led keeps the lead, else the first has it.

    >>> first, changes = lowest(np.array([1.0, 100.0]), np.array([[1.0, 100.0], [10.0, 10.0]]))
    >>> first, [(round(change.x, 9), round(change.y, 9), change.leader) for change in changes]
    (0, [(10.0, 10.0, 1)])
    """
    across, down = np.log(x), np.log(y)
    first = leader = int((down[:, 0] <= down[:, 0].min() + _SAME).argmax())
    changes: list[Change] = []
    for place in range(x.size - 1):
        left, rise = down[:, place], down[:, place + 1] - down[:, place]
        for part in _meetings(left, rise):
            height = left + part * rise
            together = np.flatnonzero(height <= height.min() + _SAME)
            after = int(together[rise[together].argmin()])
            if rise[after] < rise[leader] - _SAME:
                leader, at = after, across[place] + part * (across[place + 1] - across[place])
                changes.append(Change(float(np.exp(at)), float(np.exp(height[leader])), leader))
    return first, changes


def _meetings(left: Floats, rise: Floats) -> list[float]:
    """Where in an interval two lines meet, as parts of it, and its beginning."""
    with np.errstate(divide="ignore", invalid="ignore"):  # parallel lines
        parts = np.subtract.outer(left, left) / -np.subtract.outer(rise, rise)
    return np.unique([0.0, *parts[(parts > 0) & (parts < 1 - _SAME)]]).tolist()  # type: ignore[no-any-return]
