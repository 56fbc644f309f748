"""What a rank's memory holds: a bar for each stage, way or setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...common.checks import number
from ...common.units import decimal_unit, decimal_words
from ...drawing.bars import draw_bars
from ...drawing.drawing import Drawing
from ...drawing.palette import MEMORY


def draw_memory(
    memories: Mapping[str, Any],
    limits_bytes: Mapping[str, float] | None = None,
    chosen: str = "",
    title: str = "What a rank's memory holds",
) -> Drawing:
    """Draw each of `memories`, by name, as a bar of its terms with the total of one rank behind it, the first on top.

    A memory is a mapping from terms to bytes, or has one as `terms`. Dashed lines mark `limits_bytes` by name, except
    those far beyond the longest bar, or close below another one. Hatched terms are buffers of communication, or only
    for a moment in use. Raises ValueError if there are no bars, or a limit is not finite and at least 0.
    """
    if not isinstance(memories, Mapping) or not memories:
        raise ValueError(f"memories must be at least one, by name, got {memories!r}")
    terms = {name: getattr(memory, "terms", memory) for name, memory in memories.items()}
    totals = {name: sum(parts.values()) for name, parts in terms.items()}
    scale, unit = decimal_unit(max(totals.values()))
    rows = {}
    for name, parts in terms.items():
        own_last = dict.fromkeys([*MEMORY, *parts])
        rows[name] = {term.replace("_", " "): parts[term] / scale for term in own_last if parts.get(term)}
    behind = [decimal_words(total) + ("  ← your choice" if name == chosen else "") for name, total in totals.items()]
    limits = [(name, number("limits_bytes", limit, 0) / scale) for name, limit in (limits_bytes or {}).items()]
    return draw_bars(rows, f"memory of one rank [{unit}]", title, behind=behind, limits=limits)
