"""What algorithms take, size by size: lines that are labelled where they end, over the lower bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from numpy.typing import ArrayLike

from ..units import bytes_words
from .crossings import Change, Floats, lowest
from .palette import INK, PAPER, Look, looks

_BOUND, _GROUND = "#8a8a8a", "#ededed"
_LABEL_PT = 8.0
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

    Raises ValueError for no algorithm, sizes that do not rise from above 0, times that are not above 0, and lengths
    that differ.
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
    _name_ends(ax, ends)
    if half_bytes is not None:
        ax.axvline(half_bytes, color=INK, linewidth=0.8, linestyle=":", label="n½")
        _note(ax, f"n½ = {bytes_words(half_bytes)}", (half_bytes, high * 1.45), (4, 0), va="top")
    _dress(ax, sizes, title or _title([list(lines)[place] for place in (first, *(c.leader for c in changes))]))
    return ax


def _draw_lines(ax: Axes, sizes: Floats, lines: Mapping[str, Floats]) -> None:
    for (name, y), look in zip(lines.items(), looks(lines).values(), strict=True):
        ax.plot(
            sizes, y, color=look.color, linestyle=_dash(look), linewidth=1.8, label=name, zorder=2 + look.dashed / 2
        )


def _dash(look: Look) -> Any:
    return (0, (4, 2.5)) if look.dashed else "-"


def _draw_points(ax: Axes, points: Mapping[str, tuple[Floats, Floats]], names: list[str]) -> None:
    for name, (x, y) in points.items():
        look, middle = looks(names)[name], np.median(y, axis=1)
        spread = np.stack([middle - y.min(axis=1), y.max(axis=1) - middle])
        style: dict[str, Any] = {"color": look.color, "marker": look.marker, "linestyle": "none", "zorder": 3}
        ax.errorbar(x, middle, spread, label=f"{name}, measured", markersize=6, elinewidth=1, clip_on=False, **style)
    if points:
        shown = {label: handle for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
        named = [f"{name}, measured" for name in points]
        ax.legend([shown[label] for label in named], named, loc="upper left", frameon=False, fontsize=_LABEL_PT)


def _draw_changes(ax: Axes, changes: list[Change]) -> None:
    """A dot for each change of the quickest; its size stands below, where the dots leave room."""
    ax.plot([change.x for change in changes], [change.y for change in changes], "o", color=INK, markersize=5,
            markerfacecolor=PAPER, label="crossover", zorder=4)  # fmt: skip
    last = -np.inf
    for change in changes:
        at = float(ax.transAxes.inverted().transform(ax.transData.transform((change.x, change.y)))[0])
        if at - last > 0.07:
            _note(ax, bytes_words(change.x), (change.x, change.y), (0, -7), va="top", ha="center")
            last = at


def _name_ends(ax: Axes, ends: Mapping[str, tuple[float, Look]]) -> None:
    """A piece of each line with its name beside the line's end, and a hair to it; no name covers another."""
    low, high = np.log(ax.get_ylim())
    wanted = {name: float((np.log(y) - low) / (high - low)) for name, (y, _) in ends.items()}
    names = sorted(wanted, key=lambda name: wanted[name])
    tall = 1.3 * _LABEL_PT / (ax.bbox.height / ax.figure.dpi * 72)
    frame = ax.get_yaxis_transform()
    for name, place in zip(names, _apart([wanted[name] for name in names], tall), strict=True):
        y, look = ends[name]
        to = float(np.exp(low + place * (high - low)))
        ax.plot([1, 1.02], [y, to], color=look.color, linewidth=0.7, transform=frame, clip_on=False)
        ax.plot([1.02, 1.05], [to, to], color=look.color, linestyle=_dash(look), linewidth=1.8, transform=frame,
                clip_on=False)  # fmt: skip
        ax.text(1.055, to, name, transform=frame, va="center", fontsize=_LABEL_PT, color=INK)


def _apart(places: Sequence[float], least: float) -> list[float]:
    """Rising places moved as little as it takes to stand at least so far apart, groups about their middle, up to 1.

    >>> [round(place, 3) for place in _apart([0.0, 0.0, 1.0], 0.1)]
    [-0.05, 0.05, 1.0]
    """
    groups: list[list[float]] = []
    for place in places:
        groups.append([place])
        while len(groups) > 1 and _middle(groups[-1]) - _middle(groups[-2]) < least / 2 * sum(map(len, groups[-2:])):
            groups[-2:] = [groups[-2] + groups[-1]]
    moved = [_middle(g) + (place - (len(g) - 1) / 2) * least for g in groups for place in range(len(g))]
    top = [1 - least * place for place in reversed(range(len(moved)))]
    return [min(pair) for pair in zip(moved, top, strict=True)]


def _middle(group: list[float]) -> float:
    return sum(group) / len(group)


def _note(ax: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **style: Any) -> None:
    halo = [withStroke(linewidth=3, foreground=PAPER)]
    ax.annotate(text, at, xytext=offset, textcoords="offset points", fontsize=_LABEL_PT, path_effects=halo, **style)


def _dress(ax: Axes, sizes: Floats, title: str) -> None:
    powers = np.arange(np.ceil(np.log2(sizes[0]) - 1e-9), np.floor(np.log2(sizes[-1]) + 1e-9) + 1)
    every = next(step for step in (1, 2, 5, 10, 20, 50) if powers.size <= 8 * step)
    shown = 2.0 ** powers[powers % every == 0]
    ax.set_xticks(shown, [bytes_words(size) for size in shown.tolist()])
    ax.set_xticks([], minor=True)
    ax.set_xlabel("size of each rank's buffer")
    ax.set_title(title, loc="left", fontsize=11, fontweight="bold")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color="#e6e6e6", linewidth=0.7)
    ax.set_axisbelow(True)


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
    if sizes.ndim != 1 or sizes.size < 2 or not (sizes[0] > 0 and (np.diff(sizes) > 0).all()):
        raise ValueError(f"num_bytes must be at least two sizes that rise from above 0, got {num_bytes!r}")
    if not seconds:
        raise ValueError("seconds must hold the times of at least one algorithm, got none")
    lines = {name: _times(name, values, sizes) for name, values in seconds.items()}
    below = None if bound_s is None else np.asarray(bound_s, dtype=float)
    if below is not None and below.shape != sizes.shape:
        raise ValueError(f"bound_s: {below.shape} values over sizes of shape {sizes.shape}")
    points = {}
    for name, (x, y) in measured.items():
        places = np.asarray(x, dtype=float)
        points[name] = places, _times(f"{name}, measured", y, places)
        points[name] = places, points[name][1].reshape(places.size, -1)
    return sizes, lines, below, points


def _times(name: str, values: ArrayLike, sizes: Floats) -> Floats:
    times = np.asarray(values, dtype=float)
    if times.shape[:1] != sizes.shape or times.ndim > (2 if name.endswith(", measured") else 1):
        raise ValueError(f"{name}: {times.shape} values over sizes of shape {sizes.shape}")
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise ValueError(f"{name}: times must be finite and above 0 on a logarithmic axis")
    return times
