"""Figures on matplotlib Axes: a step over bucket caps, and memory over the number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from ...common.checks import number, of_type
from ...common.frozen import optional
from ...common.units import time_unit
from ...figures.axes import keys_below, to_axes
from ...figures.line_axes import GREY, Floats, dash, line_axes, name_ends, note
from ...figures.palette import CATEGORIES, INK, PAPER, Look
from ..ddp.recommend import Recommendation
from ..zero.model import ZeroMemory
from .ddp import PARTS, until_alike
from .memory import draw_memory

_DEFAULT_CAP_MB = 25.0  # where DDP's default stands


def bucket_caps(
    recommendation: Recommendation,
    measured: Mapping[float | None, Sequence[float]] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the predicted step over the cap: computing alone, how much allreduces slow it down, and waiting for them.

    The sweep ends where larger caps change nothing. A ring marks the recommended cap; DDP's default, whose first bucket
    is smaller, is a diamond at 25 MiB. `measured` has the seconds of steps for some caps (None is the default): markers
    at the median with the quartiles.

    Raises ValueError for fewer than two caps, for a cap that is not above 0, and for one measured without a step.
    """
    found = of_type("recommendation", recommendation, Recommendation)
    caps = np.array([one.bucket_cap_mb for one in found.candidates], dtype=float)
    if caps.size < 2 or not (caps > 0).all():
        raise ValueError(f"recommendation must have at least two caps above 0 to be drawn, got {caps.tolist()}")
    seen: dict[float | None, Floats] = {}
    for cap, steps in (measured or {}).items():
        seen[optional("a cap of measured", cap, number, above=0)] = np.array([number("measured", s, 0) for s in steps])
    if empty := [cap for cap, steps in seen.items() if not steps.size]:
        raise ValueError(f"measured must have at least one step for each cap, got none for {empty[0]}")
    swept = until_alike(found, max((cap for cap in seen if cap is not None), default=0.0))
    swept = found.candidates[: len(swept) + 1]  # one more, which shows that it stays
    caps, _, steps_s, waits_s = np.array(swept, dtype=float).T
    quartiles_s = {cap: np.percentile(steps, (25, 50, 75)) for cap, steps in seen.items()}
    top_s = max([float(steps_s.max()), found.default.step_s, *(high for _, _, high in quartiles_s.values())])
    scale, unit = time_unit(top_s)

    finding = "No cap is predicted to be worth leaving the default for"
    if found.bucket_cap_mb is not None:
        words = f"With {found.bucket_cap_mb:g} MiB a step is predicted to take"
        finding = f"{words} {found.gain:.1%} less than by default"
    ax = line_axes(
        ax,
        (9, 4.2),
        title or finding,
        "bucket_cap_mb [MiB]",
        f"step [{unit}]",
        x=caps,
        x_margin=1.3,
        x_words="{:g}".format,
        y_limits=(0, 1.12 * top_s / scale),
        grid_color="#e0e0e0",
    )
    edges = [np.zeros(caps.size), np.full(caps.size, found.alone_s), steps_s - waits_s, steps_s]
    for low, high, (name, (color, hatched)) in zip(edges[:-1], edges[1:], PARTS.items(), strict=True):
        style: dict[str, Any] = {"hatch": "///", "edgecolor": INK} if hatched else {}
        ax.fill_between(caps, low / scale, high / scale, facecolor=color, alpha=0.6, linewidth=0, label=name, **style)
    ax.plot(caps, steps_s / scale, color=INK, linewidth=1.8, label="step, predicted")
    hollow: dict[str, Any] = {"linestyle": "none", "color": INK, "markerfacecolor": PAPER, "zorder": 4}
    ax.plot([_DEFAULT_CAP_MB], [found.default.step_s / scale], "D", label="DDP's default, predicted", **hollow)
    if found.bucket_cap_mb is not None:
        place = found.bucket_cap_mb, found.chosen.step_s / scale
        ax.plot(*place, "o", markersize=11, label="recommended", **hollow)
        note(ax, f"{found.bucket_cap_mb:g} MiB", place, (0, -16), ha="center", va="top")
    solid: dict[str, Any] = {"color": INK, "markersize": 5, "zorder": 5, "elinewidth": 1, "clip_on": False}
    given = {cap: quartiles for cap, quartiles in quartiles_s.items() if cap is not None}
    default = {_DEFAULT_CAP_MB: quartiles_s[None]} if None in quartiles_s else {}
    for quartiles, fmt, label in (
        (given, "s", "measured: median and quartiles"),
        (default, "D", "DDP's default, measured"),
    ):
        if quartiles:
            low, middle, high = np.array(list(quartiles.values())).T / scale
            ax.errorbar(list(quartiles), middle, [middle - low, high - middle], fmt=fmt, label=label, **solid)

    handles, names = ax.get_legend_handles_labels()
    keys_below(ax, dict(zip(names, handles, strict=True)))
    return ax


def zero_memory(
    memories: Mapping[str, ZeroMemory | Sequence[ZeroMemory]],
    limits_bytes: Mapping[str, float] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw what a rank's memory is made of, a bar for each stage or way, or its total over the number of ranks.

    Of one `zero.memory` for each name, the terms: see `draw_memory`. Of several each, which must differ in their
    number of ranks, the totals as lines, both axes logarithmic, named at their ends. `limits_bytes` are marked by
    lines.

    Raises ValueError for no memory, for a line of fewer than two numbers of ranks, and for limits below 0, or of lines
    not above 0.
    """
    if isinstance(memories, Mapping) and any(isinstance(one, Sequence) for one in memories.values()):
        return _memory_lines(memories, limits_bytes or {}, ax, title)
    return to_axes(draw_memory(cast(Mapping[str, ZeroMemory], memories), limits_bytes, title=title), ax)


def _memory_lines(
    memories: Mapping[str, Any], limits_bytes: Mapping[str, float], ax: Axes | None, title: str | None
) -> Axes:
    for name, line in memories.items():
        if not isinstance(line, Sequence) or not all(isinstance(one, ZeroMemory) for one in line):
            raise ValueError(f"memories[{name!r}] must be a sequence of ZeroMemory, got {line!r}")
    if any(len({one.num_ranks for one in line}) < 2 for line in memories.values()):
        raise ValueError(f"memories must be lines of at least two numbers of ranks, by name, got {list(memories)}")
    limits = {name: number("limits_bytes", value, above=0) for name, value in limits_bytes.items()}
    counts = sorted({one.num_ranks for line in memories.values() for one in line})
    every = [one.total_bytes for line in memories.values() for one in line] + list(limits.values())
    gigabytes = {name: [one.total_bytes / 1e9 for one in line] for name, line in memories.items()}
    least = min(gigabytes, key=lambda name: gigabytes[name][-1])
    ax = line_axes(
        ax,
        (8, 4),
        title or f"With {counts[-1]} ranks, {least} needs {gigabytes[least][-1]:.3g} GB per rank",
        "ranks",
        "memory of one rank [GB]",
        x=counts,
        x_words="{:.0f}".format,
        y_limits=(min(every) / 1.3e9, max(every) * 1.4e-9),
        log_y=True,
    )
    ends = {}
    for place, (name, line) in enumerate(memories.items()):
        look = Look(CATEGORIES[place % len(CATEGORIES)], place >= len(CATEGORIES), "")
        ranks = [one.num_ranks for one in line]
        ax.plot(ranks, gigabytes[name], color=look.color, linestyle=dash(look), linewidth=1.8, label=name)
        ends[name] = gigabytes[name][-1], look
    for name, value in limits.items():
        ax.axhline(value / 1e9, color=GREY, linewidth=0.8, zorder=0, label=name)
        ends[name] = value / 1e9, Look(GREY, False, "")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    name_ends(ax, ends)
    return ax
