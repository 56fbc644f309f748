"""Exercises of notebook 11: what a rank holds in memory."""

from __future__ import annotations

from typing import Any

from ..values.units import decimal_words
from ..zero import model as zero
from .answers import Check, is_number, is_whole


def _fewest_ranks(answer: Any) -> str | None:
    """The fewest ranks on which stage 2 leaves 24 GB or less of 7.5 billion parameters."""
    if not is_whole(answer, 1, 10**6):
        return f"a number of ranks from 1 to 1,000,000 is asked for, got {answer!r}"
    needed = zero.memory(7.5e9, answer, stage=2).total_bytes
    if needed > 24e9:
        return f"with {answer} it is {decimal_words(needed)} a rank"
    return "fewer do, too" if answer > 1 and zero.memory(7.5e9, answer - 1, stage=2).total_bytes <= 24e9 else None


def _five_on_four(answer: Any) -> str | None:
    """By which share the fullest of four ranks holds more than a quarter of five equal tensors."""
    sizes = [1000] * 5
    right = zero.imbalance(sizes, zero.partition(sizes, 4))
    if not is_number(answer) or not 0 <= answer <= 3:
        return f"a share of at most 3 is asked for, got {answer!r}"
    return None if abs(answer - right) < 1e-6 else f"it is not {answer!r} of an even share"


def _padding(answer: Any) -> str | None:
    """The bytes that four shards of ten rows of a thousand floats hold beyond the tensor itself."""
    weight = zero.Parameter("weight", (10, 1000), 4)
    right = 4 * (4 * weight.rows_bound(4) - weight.size)
    return None if answer == right else f"the shards do not hold {answer!r} bytes more than the tensor"


EXERCISES: dict[str, Check] = {
    "11.1": _fewest_ranks,
    "11.2": _five_on_four,
    "11.3": _padding,
}
