"""A drawing of what a rank's memory is made of: a bar of terms for each stage, or way, or machine."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..values.checks import number, of_type
from ..values.units import decimal_unit, decimal_words, round_ticks
from ..zero.model import TERMS, ZeroMemory
from .crossings import Floats
from .marks import Drawing, Key, Rects, Texts
from .palette import CATEGORIES, FAINT, INK, PAPER

_LABEL_ROWS = 0.7  # below the bars, where limits are named
_WIDE_PX, _CHARACTER_PX = 620.0, 6.0
_LAST = 0.96  # of the width, beyond which a name in the middle under its line would be cut
COLORS = dict(zip(TERMS, CATEGORIES, strict=True)) | {"activations": FAINT}


def draw_zero_memory(
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
    _check(memories)
    names, totals = list(memories), np.array([memory.total_bytes for memory in memories.values()], dtype=float)
    longest = max(float(totals.max()), 1.0)
    scale, unit = decimal_unit(longest)
    width = 1.18 * longest / scale
    limits = {name: number("limits_bytes", value, 0) / scale for name, value in (limits_bytes or {}).items()}
    limits = {name: value for name, value in limits.items() if value < width}
    shown = [term for term in TERMS if any(memory.terms[term] for memory in memories.values())]
    y, ink = np.arange(len(names)) + 0.5, (INK,) * len(names)
    words = tuple(decimal_words(total) for total in totals.tolist())
    totalled = Texts(totals / scale + 0.01 * width, y, words, ink, anchor="start", halo=(PAPER,) * y.size)
    named = _named(limits, width, len(names))
    label_px = 20.0 * len({y for texts in named for y in texts.y.tolist()})
    return Drawing(
        title=title or _finding(names, words),
        x_label=f"memory of one rank [{unit}]",
        y_label="",
        width=width,
        height=len(names) + _LABEL_ROWS * label_px / 20,
        size_px=(_WIDE_PX, 30.0 * len(names) + label_px),
        rects=(_frame(names, totals / scale, chosen, width), *(_bars(memories, term, scale) for term in shown)),
        texts=(totalled, *named),
        rules=tuple(limits.values()),
        rules_to=float(len(names)),
        x_ticks=round_ticks(longest / scale),
        y_ticks=tuple(zip(y.tolist(), names, strict=True)),
        legend=tuple(Key(term.replace("_", " "), COLORS[term], hatched=_passing(term)) for term in shown),
    )


def _check(memories: Mapping[str, ZeroMemory]) -> None:
    if not isinstance(memories, Mapping) or not memories:
        raise ValueError(f"memories must be at least one, by name, got {memories!r}")
    for name, memory in memories.items():
        of_type(f"memories[{name!r}]", memory, ZeroMemory)


def _finding(names: list[str], words: tuple[str, ...]) -> str:
    return f"{names[0]}: {words[0]} a rank" + (f"; {names[-1]}: {words[-1]}" if len(names) > 1 else "")


def _named(limits: Mapping[str, float], width: float, top: int) -> tuple[Texts, ...]:
    """The names under their lines, further down where they would meet, and to the left of a line at the right edge."""
    texts, ends = [], list[float]()  # where each row of names ends
    for name, x in sorted(limits.items(), key=lambda limit: limit[1]):
        wide = (_CHARACTER_PX * len(name) + 8) * width / _WIDE_PX
        anchor, back = ("end", 1.0) if x > _LAST * width else ("middle", 0.5)
        row = next((row for row, end in enumerate(ends) if end <= x - back * wide), len(ends))
        ends[row : row + 1] = [x + (1 - back) * wide]
        y = top + (row + 0.5) * _LABEL_ROWS
        texts.append(Texts(np.array([x]), np.array([y]), (name,), (INK,), size_px=10.0, anchor=anchor))
    return tuple(texts)


def _bars(memories: Mapping[str, ZeroMemory], term: str, scale: float) -> Rects:
    """The pieces of one term, each where the terms before it end."""
    before = list(TERMS)[: list(TERMS).index(term)]
    start = [sum(memory.terms[one] for one in before) / scale for memory in memories.values()]
    wide = [memory.terms[term] / scale for memory in memories.values()]
    rows = np.arange(len(memories)) + 0.14
    return Rects.of(start, rows, COLORS[term], width=wide, height=0.72, hatched=_passing(term))


def _frame(names: list[str], totals: Floats, chosen: str, width: float) -> Rects:
    here = np.array([place for place, name in enumerate(names) if name == chosen], dtype=int)
    return Rects.of(-0.004 * width, here + 0.04, INK, width=totals[here] + 0.008 * width, height=0.92, edge=INK)


def _passing(term: str) -> bool:
    return term in ("buckets", "largest_layer")
