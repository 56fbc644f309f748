"""Exercises of notebook 12: ranks that run out of batches at different times."""

from __future__ import annotations

from typing import Any

from ..uneven import model as uneven
from .answers import Check, is_near

_FOUR = (10, 10, 12, 15)  # batches


def _shadows(answer: Any) -> str | None:
    """The shadows of four ranks with 10, 10, 12 and 15 batches, under Join."""
    right = len(uneven.simulate(_FOUR, "join").select(kind="shadow"))
    return None if answer == right and not isinstance(answer, bool) else f"finished ranks do not shadow {answer!r}"


def _last_against_first(answer: Any) -> str | None:
    """How much more a sample of the last batch counts than one of the first, divided by the ranks that are left."""
    scale = uneven.gradient_scale(_FOUR, "join", divide_by_initial_world_size=False)
    active = [sum(own > step for own in _FOUR) for step in range(max(_FOUR))]
    right = (scale[-1] / active[-1]) / (scale[0] / active[0])
    return None if is_near(answer, right) else f"it does not count {answer!r} times as much"


def _epoch_of_the_hang(answer: Any) -> str | None:
    """The epoch, from 1, of a rank with 110 batches when one with 100 has ended its ten epochs."""
    right = uneven.steps_by_rank([10 * 100, 10 * 110], "hang")[1] // 110 + 1
    return None if answer == right and not isinstance(answer, bool) else f"rank 1 is not in epoch {answer!r}"


EXERCISES: dict[str, Check] = {
    "12.1": _shadows,
    "12.2": _last_against_first,
    "12.3": _epoch_of_the_hang,
}
