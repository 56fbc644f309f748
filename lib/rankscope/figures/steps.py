"""What steps cost: lengths of samples, the wait for the costliest rank, and bars of parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from ..common.checks import number, of_type, one_of
from ..common.units import percent_words, round_ticks, three_digits
from ..sampling.assignment import Assignment
from ..sampling.values import CostFunction, checked_lengths
from ..sampling.work import epoch_work
from .marks import Drawing
from .palette import WAITING, WORK
from .plots import WIDE_PX, FloatArray, Key, Plot, Texts, numbers_on, stacked, whole_ticks

_MOST_STEPS, _MOST_RANGES, _MOST_ROWS = 40, 20, 64
_WIDTH_WITH_TEXT = 1.08  # times the longest bar: the text behind it needs the rest
_ROW_PX = 15.0
_COMPUTE = WORK["compute"].hue


def draw_lengths(lengths: ArrayLike, title: str | None = None, deck: str | None = None) -> Drawing:
    """Draw how many samples have which length, in ranges of equal width, and what share of all tokens these have.

    Raises ValueError for lengths that are not whole numbers of at least 0.
    """
    tokens = checked_lengths(lengths)
    longest = int(tokens.max(initial=0))
    range_width = max(int(_round_step(max((longest + 1) / _MOST_RANGES, 1))), 1)
    num_ranges = longest // range_width + 1
    num_samples = np.bincount(tokens // range_width, minlength=num_ranges)
    in_range = np.bincount(tokens // range_width, weights=tokens, minlength=num_ranges)
    shares = in_range / max(int(tokens.sum()), 1)  # all samples may have 0 tokens
    labels = [str(first) for first in range(num_ranges)]
    if range_width > 1:
        labels = [f"{first} to {first + range_width - 1}" for first in range(0, longest + 1, range_width)]
    found = "No samples"
    if tokens.size:
        num_longest = max(round(tokens.size / 10), 1)
        share = np.sort(tokens)[-num_longest:].sum() / max(int(tokens.sum()), 1)
        found = f"The longest tenth has {percent_words(share)} of all tokens"
        if deck is None:
            deck = f"half of {tokens.size:,} samples have at most {np.median(tokens):.0f}; in per cent: share of tokens"
    y_ticks = [(row + 0.5, label) for row, label in enumerate(labels)]
    words = [f"{share:.0%}" if share else "" for share in shares]
    parts = {Key("", _COMPUTE): num_samples.astype(float)}
    return _bars(title or found, deck, "samples", "tokens", parts, words, y_ticks)


def draw_step_costs(
    assignment: Assignment,
    lengths: ArrayLike | None = None,
    cost: str | CostFunction = "linear",
    title: str | None = None,
    deck: str | None = None,
) -> Drawing:
    """Draw the cost of each step: the mean over the ranks, and the mean wait for the costliest rank.

    Of many steps the first 40 are shown. The number next to a bar is the share of padding, if each batch is padded to
    its longest sample. `lengths` are those of all samples in tokens, by default 1 each, and `cost` is that of
    `epoch_work`. Raises ValueError if `lengths` are not one whole number of at least 0 per sample.
    """
    of_type("assignment", assignment, Assignment)
    if lengths is None:
        lengths = np.ones(assignment.size, dtype=np.int64)
    work = epoch_work(assignment, lengths, cost)
    step_costs = work.step_costs[:_MOST_STEPS]
    num_steps, num_all_steps = len(step_costs), len(work.step_costs)
    means, highest = step_costs.mean(axis=1), step_costs.max(axis=1)
    words = [f"{share:.0%}" for share in work.step_padding_shares[:num_steps].tolist()]
    waiting = percent_words(1 - 1 / work.imbalance)  # the mean rank works for 1 / imbalance of the costliest one's time
    unit = {"linear": "tokens", "quadratic": "tokens²"}[cost] if isinstance(cost, str) else "cost"
    if deck is None:
        deck = f"{percent_words(work.padding_share)} of the tokens are padding (per step: the number behind its bar)"
    y_label = "step" if num_steps == num_all_steps else f"first {num_steps} steps"
    parts = {
        Key("mean over the ranks", _COMPUTE): means,
        Key("wait for the costliest rank", WAITING, hatched=True): highest - means,
    }
    found = f"Ranks wait for {waiting} of the time"
    y_ticks = whole_ticks(num_steps, most=20)
    return _bars(title or found, deck, f"cost of the step [{unit}]", y_label, parts, words, y_ticks)


def _bars(
    title: str,
    deck: str | None,
    x_label: str,
    y_label: str,
    parts: Mapping[Key, FloatArray],
    words: Sequence[str],
    y_ticks: Sequence[tuple[float, str]],
) -> Plot:
    """Draw bars of stacked parts, with a word behind each."""
    lengths = sum(parts.values(), np.zeros(len(words)))
    longest = float(lengths.max(initial=0.0)) or 1.0
    behind = Texts(lengths + 0.01 * longest, np.arange(len(words)) + 0.5, words, anchor="start")
    return Plot(
        title=title,
        deck=deck or "",
        x_label=x_label,
        y_label=y_label,
        width=_WIDTH_WITH_TEXT * longest,
        height=max(len(words), 1),
        size_px=(WIDE_PX, max(_ROW_PX * len(words), 40)),
        rects=stacked(parts, margin=0.1),
        texts=[behind],
        x_axis=(0.0, longest),
        x_ticks=round_ticks(longest),
        y_ticks=y_ticks,
        legend=[key for key in parts if key.label],
    )


def draw_bars(
    rows: Mapping[str, Mapping[str, float]],
    x_label: str = "time [ms]",
    title: str | None = None,
    deck: str | None = None,
) -> Drawing:
    """Draw a horizontal bar for each row, the first on top; ``rows[name][kind]`` is the length of one of its parts.

    Kinds are those of `palette.WORK`. The length of a part is written on it where it fits, and a kind that is not wider
    than a pixel in any row is omitted. Raises ValueError if a kind is unknown, if there are no rows or more than 64, or
    if a length is negative or not finite.

    >>> drawing = draw_bars({"rank 0": {"forward": 5, "wait": 60}, "rank 1": {"forward": 65}}, title="Rank 0 waits")
    >>> [key.label for key in drawing.legend], drawing.height
    (['forward', 'wait'], 2.0)
    """
    if not isinstance(rows, Mapping) or not 0 < len(rows) <= _MOST_ROWS:
        got = len(rows) if isinstance(rows, Mapping) else repr(rows)
        raise ValueError(f"rows must number from 1 to {_MOST_ROWS}, by name, got {got}")
    names = [of_type("the name of a row", name, str) for name in rows]
    lengths = _part_lengths(rows)
    total = sum(lengths.values(), np.zeros(len(rows)))
    width = 1.02 * float(total.max()) or 1.0
    parts: dict[Key, FloatArray] = {}
    for kind, length in lengths.items():
        if (length * WIDE_PX > width).any():
            parts[Key(kind, WORK[kind].hue, hatched=WORK[kind].hatched)] = length
    bars = stacked(parts)
    texts: list[Texts] = []
    for bar, length in zip(bars, parts.values(), strict=True):
        words = np.array([three_digits(value) for value in length.tolist()])
        needed_px = np.array([8.0 * len(word) for word in words.tolist()])
        texts += numbers_on(bar, words, wanted=needed_px < length * WIDE_PX / width)
    return Plot(
        title=title or f"{names[int(total.argmax())]} has the longest bar",
        deck=deck or "",
        x_label=x_label,
        width=width,
        height=float(len(names)),
        size_px=(WIDE_PX, 28.0 * len(names)),
        rects=bars,
        texts=texts,
        x_ticks=round_ticks(width),
        y_ticks=[(row + 0.5, name) for row, name in enumerate(names)],
        legend=list(parts),
    )


def _part_lengths(rows: Mapping[str, Mapping[str, float]]) -> dict[str, FloatArray]:
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


def _round_step(least: float) -> float:
    """Return 1, 2 or 5 times a power of ten that is at least `least`.

    >>> _round_step(333), _round_step(0.15)
    (500.0, 0.2)
    """
    power = 10.0 ** np.floor(np.log10(least))
    return float(next(digit * power for digit in (1, 2, 5, 10) if digit * power >= least))
