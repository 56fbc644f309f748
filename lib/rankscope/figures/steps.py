"""Horizontal bars of parts: what steps cost, how long samples are, and any parts by kind of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from ..common.checks import number, of_type, one_of
from ..common.units import percent_words, round_ticks, three_digits
from ..sampling.assignment import Assignment
from ..sampling.values import CostFunction, checked_lengths
from ..sampling.work import epoch_work
from .marks import DIGIT_PX, LETTER_PX, RIGHT_PX, Box, Drawing, Mark, Text, axis, key_marks
from .palette import WORK, WorkLook

_MOST_STEPS = 40
_MOST_ROWS = 64
_BEHIND_PX = 44.0  # for the word behind the longest bar


def _bars(
    rows: Sequence[str],
    parts: Mapping[str, tuple[WorkLook, Sequence[float]]],
    x_label: str,
    behind: Sequence[str] = (),
    row_px: float = 15.0,
    with_lengths: bool = False,
) -> tuple[list[Mark], float]:
    """Return the marks of a bar for each row, and how high they are: a part is its look and its length in each row."""
    left = 1.32 * LETTER_PX * max([8, *map(len, rows)]) + 20
    totals = np.sum([lengths for _, lengths in parts.values()], axis=0)
    longest = float(max(totals, default=0.0)) or 1.0
    px_per_unit = (RIGHT_PX - left - (_BEHIND_PX if behind else 0)) / longest
    keys = {label: look for label, (look, _) in parts.items() if len(parts) > 1 or with_lengths}
    marks, top = key_marks(keys)
    for row, name in enumerate(rows):
        y = top + row * row_px
        marks.append(Text(left - 12, y + row_px / 2 + 4, name, "label", "ink", "end"))
        x = left
        for look, lengths in parts.values():
            width = float(lengths[row]) * px_per_unit
            words = three_digits(float(lengths[row])) if with_lengths else ""
            if DIGIT_PX * len(words) + 10 > width:
                words = ""
            if width >= 0.5:
                marks.append(Box(x, y + 1, max(width - 1, 0.5), row_px - 3, look.hue, "work", look.hatched, words))
            x += width
        if behind:
            marks.append(Text(x + 6, y + row_px / 2 + 4, behind[row], "number", "mute"))
    bottom = top + len(rows) * row_px + 4
    ticks = [(left + place * px_per_unit, words) for place, words in round_ticks(longest)]
    marks += axis(bottom, ticks, left, left + longest * px_per_unit)
    marks.append(Text((left + RIGHT_PX) / 2, bottom + 36, x_label, "label", "mute", "middle"))
    return marks, bottom + 42


def draw_bars(
    rows: Mapping[str, Mapping[str, float]],
    x_label: str = "time [ms]",
    title: str | None = None,
    deck: str | None = None,
) -> Drawing:
    """Draw a horizontal bar for each row, the first on top; ``rows[name][kind]`` is the length of one of its parts.

    Kinds are those of `palette.WORK`. The length of a part is written on it where it fits. Raises ValueError if a kind
    is unknown, if there are no rows or more than 64, or if a length is negative or not finite.

    >>> draw_bars({"rank 0": {"forward": 5, "wait": 60}, "rank 1": {"forward": 65}}).title
    'rank 0 has the longest bar'
    """
    if not isinstance(rows, Mapping) or not 0 < len(rows) <= _MOST_ROWS:
        raise ValueError(f"rows must be 1 to {_MOST_ROWS} by name, got {rows!r}")
    lengths: dict[str, list[float]] = {}
    for row, (name, parts) in enumerate(rows.items()):
        for kind, length in parts.items():
            one_of("each kind of work", kind, tuple(WORK))
            lengths.setdefault(kind, [0.0] * len(rows))[row] = number(f"{name}, {kind}", length, 0)
    looks = {kind: (WORK[kind], column) for kind, column in lengths.items()}
    marks, height_px = _bars(list(rows), looks, x_label, row_px=28.0, with_lengths=True)
    longest = max(rows, key=lambda name: sum(rows[name].values()))
    return Drawing(title or f"{longest} has the longest bar", marks, height_px, deck or "")


def draw_lengths(lengths: ArrayLike, title: str | None = None, deck: str | None = None) -> Drawing:
    """Draw how many samples have which length, in ranges of equal width, and what share of all tokens these have.

    Raises ValueError for lengths that are not whole numbers of at least 0.
    """
    tokens = checked_lengths(lengths)
    longest = int(tokens.max(initial=0))
    range_width = max(int(round_ticks(max(longest, 1) + 1.0)[1][0] / 2), 1)
    num_samples = np.bincount(tokens // range_width)
    shares = np.bincount(tokens // range_width, weights=tokens) / max(int(tokens.sum()), 1)
    rows = [str(length) for length in range(num_samples.size)]
    if range_width > 1:
        rows = [f"{first} to {first + range_width - 1}" for first in range(0, longest + 1, range_width)]
    words = [f"{share:.0%}" if share else "" for share in shares.tolist()]
    marks, height_px = _bars(rows, {"samples": (WORK["compute"], num_samples.tolist())}, "samples", words)
    found = "No samples"
    if tokens.size:
        num_longest = max(round(tokens.size / 10), 1)
        share = np.sort(tokens)[-num_longest:].sum() / max(int(tokens.sum()), 1)
        found = f"The longest tenth has {percent_words(share)} of all tokens"
        deck = deck or f"half of {tokens.size:,} samples have at most {np.median(tokens):.0f}; %: share of tokens"
    return Drawing(title or found, marks, height_px, deck or "")


def draw_step_costs(
    assignment: Assignment,
    lengths: ArrayLike | None = None,
    cost: str | CostFunction = "linear",
    title: str | None = None,
    deck: str | None = None,
) -> Drawing:
    """Draw the cost of each step: the mean over the ranks, and the mean wait for the costliest rank.

    Of many steps the first 40 are shown. The number behind a bar is the share of padding, if each batch is padded to
    its longest sample. `lengths` are those of all samples in tokens, by default 1 each, and `cost` is that of
    `epoch_work`. Raises ValueError if `lengths` are not one whole number of at least 0 per sample.
    """
    of_type("assignment", assignment, Assignment)
    if lengths is None:
        lengths = np.ones(assignment.size, dtype=np.int64)
    work = epoch_work(assignment, lengths, cost)
    step_costs = work.step_costs[:_MOST_STEPS]
    means = step_costs.mean(axis=1)
    parts = {
        "mean over the ranks": (WORK["compute"], means.tolist()),
        "wait for the costliest rank": (WORK["barrier"], (step_costs.max(axis=1) - means).tolist()),
    }
    rows = [str(step) for step in range(len(step_costs))]
    padding = [f"{share:.0%}" for share in work.step_padding_shares[: len(rows)].tolist()]
    unit = {"linear": "tokens", "quadratic": "tokens²"}[cost] if isinstance(cost, str) else "cost"
    marks, height_px = _bars(rows, parts, f"cost of the step [{unit}]", padding)
    if deck is None:
        deck = f"{percent_words(work.padding_share)} of the tokens are padding (per step: the number behind its bar)"
        if len(work.step_costs) > len(rows):
            deck += f"; the first {len(rows)} steps"
    waiting = percent_words(1 - 1 / work.imbalance)  # the mean rank works for 1 / imbalance of the costliest one's time
    return Drawing(title or f"Ranks wait for {waiting} of the time", marks, height_px, deck)
