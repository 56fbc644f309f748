"""What a rank needs as ranks are added: a line for each stage, over the memories that one can buy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from ..values.checks import number
from ..zero.model import ZeroMemory
from .palette import CATEGORIES, Look
from .size_lines import dash, name_ends

_LIMIT = "#8a8a8a"


def to_zero_curve(
    memories: Mapping[str, Sequence[ZeroMemory]],
    limits_bytes: Mapping[str, float] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the total of each of ``memories[name]`` over its number of ranks, both axes logarithmic, named at its end.

    `limits_bytes` are grey lines across. Raises ValueError for no line, for one of fewer than two numbers of ranks, and
    for limits that are not above 0.
    """
    _check(memories)
    if ax is None:
        _, ax = plt.subplots(figsize=(8, 4), layout="constrained")
    ax.set(xscale="log", yscale="log", xlabel="ranks", ylabel="memory of one rank [GB]")
    ends, limits = {}, {name: number("limits_bytes", value, above=0) for name, value in (limits_bytes or {}).items()}
    for place, (name, line) in enumerate(memories.items()):
        look = Look(CATEGORIES[place % len(CATEGORIES)], place >= len(CATEGORIES), "")
        ranks, gigabytes = [one.num_ranks for one in line], [one.total_bytes / 1e9 for one in line]
        ax.plot(ranks, gigabytes, color=look.color, linestyle=dash(look), linewidth=1.8, label=name)
        ends[name] = gigabytes[-1], look
    counts = sorted({one.num_ranks for line in memories.values() for one in line})
    every = [one.total_bytes for line in memories.values() for one in line] + list(limits.values())
    ax.set(xlim=(counts[0], counts[-1]), ylim=(min(every) / 1.3e9, max(every) * 1.4e-9))
    for name, value in limits.items():
        ax.axhline(value / 1e9, color=_LIMIT, linewidth=0.8, zorder=0, label=name)
        ends[name] = value / 1e9, Look(_LIMIT, False, "")
    powers = 2 ** np.arange(int(np.ceil(np.log2(counts[0]))), int(np.log2(counts[-1])) + 1)
    ax.set_xticks(powers.tolist(), [str(power) for power in powers])
    ax.set_xticks([], minor=True)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    name_ends(ax, ends)
    last = min(memories, key=lambda name: ends[name][0])
    found = title or f"With {counts[-1]} ranks, {last} needs {ends[last][0]:.3g} GB a rank"
    ax.set_title(found, loc="left", fontsize=11, fontweight="bold")
    return ax


def _check(memories: Mapping[str, Sequence[ZeroMemory]]) -> None:
    if not isinstance(memories, Mapping) or not memories:
        raise ValueError(f"memories must be lines of at least two numbers of ranks, by name, got {memories!r}")
    for name, line in memories.items():
        if not isinstance(line, Sequence) or not all(isinstance(one, ZeroMemory) for one in line):
            raise ValueError(f"memories[{name!r}] must be a sequence of ZeroMemory, got {line!r}")
    if any(len({one.num_ranks for one in line}) < 2 for line in memories.values()):
        raise ValueError(f"memories must be lines of at least two numbers of ranks, by name, got {list(memories)}")
