"""A drawing of the terms of a rank's memory: a bar for each stage, or way, or machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from ...common.checks import number, of_type
from ...common.units import decimal_unit, decimal_words, round_ticks
from ...figures.palette import MEMORY, PAPER, WorkLook
from ...figures.plots import Key, Plot, Texts, frame, stacked
from ..zero.model import TERMS, ZeroMemory

_LABEL_ROWS = 0.7  # the height of a row of names of limits below the bars, in bars
_BAR_PX = 30.0
_LABEL_PX = 20.0
_WIDE_PX = 620.0
_ROOM_FOR_TOTAL = 0.18  # right of the longest bar, as a share of it
_TEXT_GAP = 0.01  # between a bar or the line of a limit and the total to its right, as a share of the width
_NAME_GAP_PX = 8  # between the names of two limits
_CHARACTER_PX = 6.0  # of the name of a limit
_TOTAL_CHARACTER_PX = 7.2  # of a total, with room around it
_LAST_CENTRED = 0.96  # of the width: further to the right, a name centred under its line would be cut off


def draw_memory(
    memories: Mapping[str, ZeroMemory],
    limits_bytes: Mapping[str, float] | None = None,
    chosen: str = "",
    title: str | None = None,
) -> Plot:
    """Draw each of `memories`, by name, as a bar of its terms, with the total of one rank at its end.

    The first bar is on top. Vertical lines mark `limits_bytes`, except those beyond the longest bar and its total. The
    bar that is `chosen` is framed. DDP's second copy of gradients is hatched, and so is memory that is only temporarily
    in use. Raises ValueError if there are no bars or a limit is not finite and at least 0.
    """
    if not isinstance(memories, Mapping) or not memories:
        raise ValueError(f"memories must be at least one, by name, got {memories!r}")
    for name, memory in memories.items():
        of_type(f"memories[{name!r}]", memory, ZeroMemory)
    names = list(memories)
    totals = np.array([memory.total_bytes for memory in memories.values()], dtype=float)
    longest = max(float(totals.max()), 1.0)  # 1 byte if all bars are empty, because a drawing has a width
    scale, unit = decimal_unit(longest)  # x counts this unit, of `scale` bytes
    width = (1 + _ROOM_FOR_TOTAL) * longest / scale
    limits = {}
    for name, limit_bytes in of_type("limits_bytes", limits_bytes or {}, dict).items():
        limit = number("limits_bytes", limit_bytes, 0) / scale
        if limit < width:  # a limit beyond the drawing would make the bars tiny
            limits[name] = limit
    rows = np.arange(len(names))
    framed = [row for row, name in enumerate(names) if name == chosen]
    words = [decimal_words(total) for total in totals.tolist()]
    words_x = _clear_of_limits(totals / scale, words, limits, width)
    text_shares = np.array([_TOTAL_CHARACTER_PX * len(text) / _WIDE_PX for text in words])  # of the width
    if (words_x + text_shares * width > width).any():  # one is long, or has moved to the right of a line near the edge
        rightmost = max([longest / scale, *limits.values()])
        width = rightmost / (1 - _TEXT_GAP - float(text_shares.max()))  # any total has room to the right of it
        words_x = _clear_of_limits(totals / scale, words, limits, width)
    totals_shown = Texts(words_x, rows + 0.5, words, anchor="start", halo=PAPER)
    limit_names, num_label_rows = _limit_names(limits, width, len(names))
    parts = _parts(memories, scale)
    finding = f"{names[0]}: {words[0]} per rank"
    if len(names) > 1:
        finding += f"; {names[-1]}: {words[-1]}"
    return Plot(
        title=title or finding,
        x_label=f"memory of one rank [{unit}]",
        y_label="",
        width=width,
        height=len(names) + _LABEL_ROWS * num_label_rows,
        size_px=(_WIDE_PX, _BAR_PX * len(names) + _LABEL_PX * num_label_rows),
        rects=(frame(framed, totals[framed] / scale, width, margin=0.004), *stacked(parts)),
        texts=[totals_shown, *limit_names],
        rules=tuple(limits.values()),
        rules_to=float(len(names)),
        x_ticks=round_ticks(longest / scale),
        y_ticks=[(row + 0.5, name) for row, name in enumerate(names)],
        legend=keys_by_look(parts),
    )


def _clear_of_limits(
    bar_ends: NDArray[np.float64], words: list[str], limits: Mapping[str, float], width: float
) -> NDArray[np.float64]:
    """Return the left ends of the totals: after their bars, or after the last limit whose line would cross them."""
    gap = _TEXT_GAP * width
    lefts = []
    for bar_end, text in zip(bar_ends.tolist(), words, strict=True):
        left = bar_end + gap
        text_width = _TOTAL_CHARACTER_PX * len(text) * width / _WIDE_PX
        for limit in sorted(limits.values()):  # from the left, because a text that is moved may meet the next line
            if left - gap / 2 < limit < left + text_width:  # half a gap to the left, a line touches the first letter
                left = limit + gap
        lefts.append(left)
    return np.array(lefts)


def _parts(memories: Mapping[str, ZeroMemory], scale: float) -> dict[Key, NDArray[np.float64]]:
    """The terms that any of `memories` has, each with its lengths in all bars."""
    parts = {}
    for term in TERMS:
        lengths = np.array([memory.terms[term] for memory in memories.values()])
        if lengths.any():
            look = MEMORY[term]
            key = Key(term.replace("_", " "), look.hue, hatched=look.hatched)
            parts[key] = lengths / scale
    return parts


def keys_by_look(keys: Iterable[Key]) -> list[Key]:
    """Return one entry for keys that look the same, with the labels of all, each label once."""
    labels_by_look: dict[WorkLook, list[str]] = {}
    for key in keys:
        labels = labels_by_look.setdefault(WorkLook(key.fill, key.hatched), [])
        if key.label not in labels:
            labels.append(key.label)
    return [Key(", ".join(labels), look.hue, hatched=look.hatched) for look, labels in labels_by_look.items()]


def _limit_names(limits: Mapping[str, float], width: float, num_bars: int) -> tuple[list[Texts], int]:
    """Return the name of each limit under its line, and the number of rows that the names take.

    A name goes into the first row in which it does not touch the one before it. A name at the right edge ends at its
    line, any other is centred under it.
    """
    texts = []
    row_ends: dict[int, float] = {}  # the right end of the last name of each row that has one
    for name, x in sorted(limits.items(), key=lambda limit: limit[1]):
        name_width = (_CHARACTER_PX * len(name) + _NAME_GAP_PX) * width / _WIDE_PX
        if x > _LAST_CENTRED * width:
            anchor = "end"
            left = x - name_width
        else:
            anchor = "middle"
            left = x - 0.5 * name_width
        row = 0
        while row in row_ends and row_ends[row] > left:
            row += 1
        row_ends[row] = left + name_width
        texts.append(Texts(x, num_bars + (row + 0.5) * _LABEL_ROWS, [name], anchor=anchor))
    return texts, len(row_ends)
