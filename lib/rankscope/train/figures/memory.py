"""A chart of what a rank's memory holds: a bar for each stage, way or setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ...common.checks import number
from ...common.units import decimal_unit, decimal_words
from ...figures.charts import LABEL_PT, chart, note
from ...figures.palette import INK, MEMORY, TONES

_ROOM = 1.18  # right of the longest bar, for its total


def memory_bars(
    memories: Mapping[str, Any],
    limits_bytes: Mapping[str, float] | None = None,
    chosen: str = "",
    title: str = "What a rank's memory holds",
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draw each of `memories`, by name, as a bar of its terms with the total of one rank at its end, the first on top.

    A memory is a mapping from terms to bytes, or has one as `terms`. Dashed lines mark `limits_bytes` by name, except
    those far beyond the longest bar. The bar that is `chosen` is framed. Hatched terms are buffers of communication,
    or only for a moment in use. Raises ValueError if there are no bars, or a limit is not finite and at least 0.
    """
    if not isinstance(memories, Mapping) or not memories:
        raise ValueError(f"memories must be at least one, by name, got {memories!r}")
    terms = {name: getattr(memory, "terms", memory) for name, memory in memories.items()}
    names = list(terms)
    limits = {name: number("limits_bytes", limit, 0) for name, limit in (limits_bytes or {}).items()}
    longest = max(1.0, *(sum(parts.values()) for parts in terms.values()))
    scale, unit = decimal_unit(longest)
    ax = chart(ax, title, f"memory of one rank [{unit}]", "", inches=1.5 + 0.36 * len(names))
    ax.set(xlim=(0, _ROOM * longest / scale), ylim=(len(names) - 0.4, -0.9))
    ax.grid(visible=False)
    ends = np.zeros(len(names))
    for term, look in MEMORY.items():
        lengths = np.array([parts.get(term, 0) for parts in terms.values()]) / scale
        if lengths.any():
            hatch = "///" if look.hatched else None
            label = term.replace("_", " ")
            ax.barh(names, lengths, 0.72, ends, alpha=0.6, color=look.hue, linewidth=0, hatch=hatch, label=label)
            ends = ends + lengths
    for row, end in enumerate(ends.tolist()):
        note(ax, decimal_words(end * scale), (end, row), (6, 0), va="center", color=INK, zorder=4)
        if names[row] == chosen:
            ax.barh(row, end, 0.78, fill=False, edgecolor=INK, linewidth=1.5)
    for name, limit_bytes in limits.items():
        limit = limit_bytes / scale
        if limit < ax.get_xlim()[1]:
            ax.axvline(limit, color=TONES["mute"], linewidth=1, linestyle="--")
            note(ax, name, (limit, -0.62), (0, 0), ha="center", va="center", color=TONES["mute"], zorder=4)
    ax.figure.legend(loc="outside lower left", ncols=4, frameon=False, fontsize=LABEL_PT)
    return ax
