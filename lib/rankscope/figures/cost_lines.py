"""What algorithms take, size by size: lines that are named where they end, over the lower bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from ..values.checks import number
from ..values.units import bytes_words
from .lines import GREY, LABEL_PT, Floats, axes_of, dash, markers, name_ends, note, over_sizes
from .palette import INK, PAPER, Look, looks

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
    if half_bytes is not None:
        number("half_bytes", half_bytes, above=0)

    values = np.concatenate([*lines.values(), *(y.ravel() for _, y in points.values())])
    scale, unit = next((pair for pair in _UNITS if values.min() >= pair[0]), _UNITS[-1])
    lowest_y, highest_y = values.min() / scale, values.max() / scale
    ax = axes_of(ax, 9, 5)
    ax.set(xscale="log", yscale="log", xlim=(sizes[0], sizes[-1]), ylim=(lowest_y / 2, highest_y * 1.6))
    ax.set_ylabel(f"time [{unit}]")
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
    if points:
        shown = {label: handle for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
        named = [f"{name}, measured" for name in points]
        ax.legend([shown[label] for label in named], named, loc="upper left", frameon=False, fontsize=LABEL_PT)
    first, changes = lowest(sizes, np.stack(list(lines.values())) / scale)
    _draw_changes(ax, changes)
    name_ends(ax, ends)
    if half_bytes is not None:
        ax.axvline(half_bytes, color=INK, linewidth=0.8, linestyle=":", label="n½")
        note(ax, f"n½ = {bytes_words(half_bytes)}", (half_bytes, highest_y * 1.45), (4, 0), va="top")
    leaders = [list(lines)[place] for place in (first, *(change.leader for change in changes))]
    finding = f"Quickest, from small to large: {', '.join(leaders)}"
    if len(leaders) == 1:
        finding = f"{leaders[0]} is the quickest at every size"
    over_sizes(ax, sizes, title or finding)
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
        part = 0.0
        while (step := _overtaken(left, rise, leader, part)) is not None:
            part, leader = step
            at = across[place] + part * (across[place + 1] - across[place])
            changes.append(Change(float(np.exp(at)), float(np.exp(left[leader] + part * rise[leader])), leader))
    return first, changes


def _overtaken(left: Floats, rise: Floats, leader: int, part: float) -> tuple[float, int] | None:
    """The next part of the interval in which a line gets below the leader, and which; None if none does."""
    above = np.maximum(left - left[leader] + part * (rise - rise[leader]), 0)
    faster = rise[leader] - rise > _SAME
    if not faster.any():
        return None
    wait = np.full(left.size, np.inf)
    wait[faster] = above[faster] / (rise[leader] - rise[faster])
    soonest = np.flatnonzero(wait <= wait.min() + _SAME)
    after = part + float(wait.min())
    return (after, int(soonest[rise[soonest].argmin()])) if after < 1 - _SAME else None
