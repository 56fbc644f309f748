"""What the exercises' checks have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Check: TypeAlias = Callable[[Any], str | None]  # what is wrong with an answer, None where nothing is


def is_number(answer: Any) -> bool:
    """Return whether an answer is a number, which True is not."""
    return isinstance(answer, int | float) and not isinstance(answer, bool)


def is_whole(answer: Any, low: int, high: int) -> bool:
    """Return whether an answer is a whole number in [low, high].

    >>> is_whole(3, 1, 4), is_whole(3.0, 1, 4), is_whole(True, 1, 4), is_whole(10**100, 1, 4)
    (True, False, False, False)
    """
    return isinstance(answer, int) and not isinstance(answer, bool) and low <= answer <= high


def is_near(answer: Any, right: float) -> bool:
    """Return whether an answer is a number within half a per cent of the right one, which is above 0.

    >>> is_near(1.714, 12 / 7), is_near("1.714", 12 / 7), is_near(10**400, 12 / 7)
    (True, False, False)
    """
    return is_number(answer) and 0.995 * float(right) < answer < 1.005 * float(right)
