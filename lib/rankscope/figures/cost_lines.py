"""What algorithms take, size by size: lines that are labelled where they end, over the lower bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from ..values.checks import number
from ..values.units import bytes_words
from .crossings import Change, Floats, lowest
from .palette import INK, PAPER, Look, looks
from .size_lines import LABEL_PT, dash, dress, name_ends, note

_BOUND, _GROUND = "#8a8a8a", "#ededed"
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def to_costs(
    num_bytes: ArrayLike,
    seconds: Mapping[str, ArrayLike],
    bound_s: ArrayLike | None = None,
    measured: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    half_bytes: float | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw ``seconds[algorithm]`` over `num_bytes`, both axes logarithmic, each line named at its right end.

    Below `bound_s` it is grey. A dot, with its size, marks where another algorithm becomes the quickest. `measured`
    holds ``(num_bytes, seconds)`` of an algorithm, of shape (sizes,) or (sizes, repeats): markers at the median with a
    bar from least to most. `half_bytes` marks n½, where latency and bandwidth take the same time.

    Raises ValueError for no algorithm, sizes that do not rise from above 0, times that are not above 0, a bound below
    0, and lengths that differ.
    """
    sizes, lines, below, points = _checked(num_bytes, seconds, bound_s, measured or {})
    if ax is None:
        _, ax = plt.subplots(figsize=(9, 5), layout="constrained")
    values = np.concatenate([*lines.values(), *(y.ravel() for _, y in points.values())])
    scale, unit = next((pair for pair in _UNITS if values.min() >= pair[0]), _UNITS[-1])
    low, high = values.min() / scale, values.max() / scale
    ax.set(xscale="log", yscale="log", xlim=(sizes[0], sizes[-1]), ylim=(low / 2, high * 1.6), ylabel=f"time [{unit}]")
    first, changes = lowest(sizes, np.stack(list(lines.values())) / scale)
    ends = {name: (float(y[-1]) / scale, looks(lines)[name]) for name, y in lines.items()}
    if below is not None:
        ax.fill_between(sizes, np.full(sizes.size, low / 1e3), below / scale, color=_GROUND, zorder=0)
        ax.plot(sizes, below / scale, color=_BOUND, linewidth=1.2, label="lower bound", zorder=1)
        ends["lower bound"] = float(below[-1]) / scale, Look(_BOUND, False, "")
    _draw_lines(ax, sizes, {name: y / scale for name, y in lines.items()})
    _draw_points(ax, {name: (x, y / scale) for name, (x, y) in points.items()}, [*lines, *points])
    _draw_changes(ax, changes)
    name_ends(ax, ends)
    if half_bytes is not None:
        ax.axvline(number("half_bytes", half_bytes, above=0), color=INK, linewidth=0.8, linestyle=":", label="n½")
        note(ax, f"n½ = {bytes_words(half_bytes)}", (half_bytes, high * 1.45), (4, 0), va="top")
    dress(ax, sizes, title or _title([list(lines)[place] for place in (first, *(c.leader for c in changes))]))
    return ax


def _draw_lines(ax: Axes, sizes: Floats, lines: Mapping[str, Floats]) -> None:
    for (name, y), look in zip(lines.items(), looks(lines).values(), strict=True):
        ax.plot(sizes, y, color=look.color, linestyle=dash(look), linewidth=1.8, label=name, zorder=2 + look.dashed / 2)


def _draw_points(ax: Axes, points: Mapping[str, tuple[Floats, Floats]], names: list[str]) -> None:
    for name, (x, y) in points.items():
        look, middle = looks(names)[name], np.median(y, axis=1)
        spread = np.stack([middle - y.min(axis=1), y.max(axis=1) - middle])
        style: dict[str, Any] = {"color": look.color, "marker": look.marker, "linestyle": "none", "zorder": 3}
        ax.errorbar(x, middle, spread, label=f"{name}, measured", markersize=6, elinewidth=1, clip_on=False, **style)
    if points:
        shown = {label: handle for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
        named = [f"{name}, measured" for name in points]
        ax.legend([shown[label] for label in named], named, loc="upper left", frameon=False, fontsize=LABEL_PT)


def _draw_changes(ax: Axes, changes: list[Change]) -> None:
    """A dot for each change of the quickest; its size stands below, where the dots leave room."""
    ax.plot([change.x for change in changes], [change.y for change in changes], "o", color=INK, markersize=5,
            markerfacecolor=PAPER, label="crossover", zorder=4)  # fmt: skip
    last = -np.inf
    for change in changes:
        at = float(ax.transAxes.inverted().transform(ax.transData.transform((change.x, change.y)))[0])
        if at - last > 0.07:
            note(ax, bytes_words(change.x), (change.x, change.y), (0, -7), va="top", ha="center")
            last = at


def _title(leaders: list[str]) -> str:
    if len(leaders) == 1:
        return f"{leaders[0]} is the quickest at every size"
    return f"Quickest, from small to large: {', '.join(leaders)}"


def _checked(
    num_bytes: ArrayLike,
    seconds: Mapping[str, ArrayLike],
    bound_s: ArrayLike | None,
    measured: Mapping[str, tuple[ArrayLike, ArrayLike]],
) -> tuple[Floats, dict[str, Floats], Floats | None, dict[str, tuple[Floats, Floats]]]:
    sizes = np.asarray(num_bytes, dtype=float)
    rises = sizes.ndim == 1 and sizes.size > 1 and np.isfinite(sizes).all() and (np.diff(sizes, prepend=0.0) > 0).all()
    if not rises:
        raise ValueError(f"num_bytes must be at least two sizes that rise from above 0, got {num_bytes!r}")
    if not isinstance(seconds, Mapping) or not seconds:
        raise ValueError(f"seconds must hold the times of at least one algorithm, by name, got {seconds!r}")
    lines = {name: _times(name, values, sizes) for name, values in seconds.items()}
    below = None if bound_s is None else np.asarray(bound_s, dtype=float)
    if below is not None and below.shape != sizes.shape:
        raise ValueError(f"bound_s: {below.shape} values over sizes of shape {sizes.shape}")
    if below is not None and not (np.isfinite(below).all() and (below >= 0).all()):
        raise ValueError("bound_s must be finite numbers of at least 0")
    points = {}
    for name, (x, y) in measured.items():
        places = np.asarray(x, dtype=float)
        if places.ndim != 1 or not places.size or not (np.isfinite(places).all() and (places > 0).all()):
            raise ValueError(f"{name}, measured: sizes must be finite and above 0, got {x!r}")
        points[name] = places, _times(f"{name}, measured", y, places, most_axes=2).reshape(places.size, -1)
    return sizes, lines, below, points


def _times(name: str, values: ArrayLike, sizes: Floats, most_axes: int = 1) -> Floats:
    times = np.asarray(values, dtype=float)
    if times.shape[:1] != sizes.shape or times.ndim > most_axes or not times.size:
        raise ValueError(f"{name}: {times.shape} values over sizes of shape {sizes.shape}")
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise ValueError(f"{name}: times must be finite and above 0 on a logarithmic axis")
    return times
