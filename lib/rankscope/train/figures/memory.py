"""A drawing of what a rank's memory is made of: a bar of terms for each stage, or way, or machine."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...common.checks import number, of_type
from ...common.units import decimal_unit, decimal_words, round_ticks
from ...figures.marks import Drawing, Key, Texts, frame, stacked
from ...figures.palette import CATEGORIES, FAINT, PAPER
from ..zero.model import TERMS, ZeroMemory

_LABEL_ROWS = 0.7  # below the bars, where limits are named
_WIDE_PX, _CHARACTER_PX = 620.0, 6.0
_LAST = 0.96  # of the width, beyond which a name in the middle under its line would be cut
COLORS = dict(zip(TERMS, CATEGORIES, strict=True)) | {"activations": FAINT}
_PASSING = ("buckets", "largest_layer")  # there for a while only


def draw_memory(
    memories: Mapping[str, ZeroMemory],
    limits_bytes: Mapping[str, float] | None = None,
    chosen: str = "",
    title: str | None = None,
) -> Drawing:
    """Draw each of `memories`, by name, as a bar of its terms, the first on top, with the total of one rank at its end.

    `limits_bytes` are marked by lines down, as far as the bars reach; the bar that is `chosen` is framed. Hatched are
    DDP's second copy of gradients, and what is whole on a rank for a while only. Raises ValueError for no bars, and for
    limits that are not finite and at least 0.
    """
    if not isinstance(memories, Mapping) or not memories:
        raise ValueError(f"memories must be at least one, by name, got {memories!r}")
    for name, memory in memories.items():
        of_type(f"memories[{name!r}]", memory, ZeroMemory)
    names, totals = list(memories), np.array([memory.total_bytes for memory in memories.values()], dtype=float)
    longest = max(float(totals.max()), 1.0)
    scale, unit = decimal_unit(longest)
    width = 1.18 * longest / scale
    limits = {name: number("limits_bytes", value, 0) / scale for name, value in (limits_bytes or {}).items()}
    limits = {name: value for name, value in limits.items() if value < width}
    rows = np.arange(len(names))
    framed = [row for row, name in enumerate(names) if name == chosen]
    shown = [term for term in TERMS if any(memory.terms[term] for memory in memories.values())]
    keys = [Key(term.replace("_", " "), COLORS[term], hatched=term in _PASSING) for term in shown]
    terms = np.array([[memory.terms[term] for memory in memories.values()] for term in shown])
    parts = dict(zip(keys, terms / scale, strict=True))
    words = [decimal_words(total) for total in totals.tolist()]
    texts = [Texts(totals / scale + 0.01 * width, rows + 0.5, words, anchor="start", halo=PAPER)]
    ends: list[float] = []  # where each row of names ends
    for name, x in sorted(limits.items(), key=lambda limit: limit[1]):
        # under its line, further down where names would meet, and to the left of a line at the right edge
        wide_name = (_CHARACTER_PX * len(name) + 8) * width / _WIDE_PX
        anchor, back = ("end", 1.0) if x > _LAST * width else ("middle", 0.5)
        row = next((row for row, end in enumerate(ends) if end <= x - back * wide_name), len(ends))
        ends[row : row + 1] = [x + (1 - back) * wide_name]
        texts.append(Texts(x, len(names) + (row + 0.5) * _LABEL_ROWS, [name], size_px=10.0, anchor=anchor))
    finding = f"{names[0]}: {words[0]} per rank" + (f"; {names[-1]}: {words[-1]}" if len(names) > 1 else "")
    return Drawing(
        title=title or finding,
        x_label=f"memory of one rank [{unit}]",
        y_label="",
        width=width,
        height=len(names) + _LABEL_ROWS * len(ends),
        size_px=(_WIDE_PX, 30.0 * len(names) + 20.0 * len(ends)),
        rects=(frame(framed, totals[framed] / scale, width, margin=0.004), *stacked(parts)),
        texts=texts,
        rules=tuple(limits.values()),
        rules_to=float(len(names)),
        x_ticks=round_ticks(longest / scale),
        y_ticks=[(row + 0.5, name) for row, name in enumerate(names)],
        legend=parts,
    )
