"""Drawings of quantities that have parts: one horizontal bar per row, from the kinds of work it consists of."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..common.checks import number, of_type, one_of
from ..common.units import round_ticks, three_digits
from .marks import Drawing, FloatArray, Key, Texts, numbers_on, stacked
from .palette import WORK

_WIDE_PX = 620.0
_ROW_PX = 30.0
_DIGIT_PX = 8.0  # the width of a character of a length on a bar
_MOST_ROWS = 64


def draw_bars(rows: Mapping[str, Mapping[str, float]], x_label: str = "time [ms]", title: str | None = None) -> Drawing:
    """Draw a horizontal bar for each row, the first on top; ``rows[name][kind]`` is the length of one of its parts.

    Kinds are those of `palette.WORK`, such as "forward", and have the same colour as in a timeline. They are drawn from
    left to right in the order in which they first occur. The length of a part is written on it where it fits, and a
    kind that is not wider than a pixel in any row is omitted.

    Raises ValueError if a kind is unknown, if there are no rows or more than 64, or if a length is negative or not
    finite.

    >>> drawing = draw_bars({"rank 0": {"forward": 5, "wait": 60}, "rank 1": {"forward": 65}}, title="Rank 0 waits")
    >>> [key.label for key in drawing.legend], drawing.height
    (['forward', 'wait'], 2.0)
    """
    if not isinstance(rows, Mapping) or not 0 < len(rows) <= _MOST_ROWS:
        got = len(rows) if isinstance(rows, Mapping) else repr(rows)
        raise ValueError(f"rows must number from 1 to {_MOST_ROWS}, by name, got {got}")
    names = [of_type("the name of a row", name, str) for name in rows]
    lengths = _lengths(rows)
    total = sum(lengths.values(), np.zeros(len(rows)))
    # 2 % stay empty beyond the longest bar. A drawing must have some width, even if all lengths are 0.
    width = 1.02 * float(total.max()) or 1.0
    length_of_key: dict[Key, FloatArray] = {}
    for kind, length in lengths.items():
        look = WORK[kind]
        length_px = length * _WIDE_PX / width
        if (length_px > 1).any():
            length_of_key[Key(kind, look.hue, hatched=look.hatched)] = length
    bars = stacked(length_of_key)
    texts: list[Texts] = []
    for bar, length in zip(bars, length_of_key.values(), strict=True):
        words = np.array([three_digits(value) for value in length.tolist()])
        word_px = np.array([_DIGIT_PX * len(word) for word in words.tolist()])
        length_px = length * _WIDE_PX / width
        texts += numbers_on(bar, words, wanted=word_px < length_px)
    return Drawing(
        title=title or f"{names[int(total.argmax())]} has the longest bar",
        x_label=x_label,
        y_label="",
        width=width,
        height=float(len(names)),
        size_px=(_WIDE_PX, _ROW_PX * len(names)),
        rects=bars,
        texts=texts,
        x_ticks=round_ticks(width),
        y_ticks=[(row + 0.5, name) for row, name in enumerate(names)],
        legend=list(length_of_key),
    )


def _lengths(rows: Mapping[str, Mapping[str, float]]) -> dict[str, FloatArray]:
    """Return the checked lengths of each kind of work, one per row, 0 if a row does not have it."""
    lengths: dict[str, FloatArray] = {}
    for row, (name, parts) in enumerate(rows.items()):
        if not isinstance(parts, Mapping):
            raise ValueError(f"{name}: must have lengths by kind of work, got {parts!r}")
        for kind, length in parts.items():
            one_of("each kind of work", kind, tuple(WORK))
            column = lengths.setdefault(kind, np.zeros(len(rows)))
            column[row] = number(f"{name}, {kind}", length, 0)
    return lengths
