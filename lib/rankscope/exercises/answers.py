"""What the exercises' checks have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Check: TypeAlias = Callable[[Any], str | None]  # what is wrong with an answer, None where nothing is


def is_near(answer: Any, right: float) -> bool:
    """Return whether an answer is a number within half a per cent of the right one.

    >>> is_near(1.714, 12 / 7), is_near("1.714", 12 / 7)
    (True, False)
    """
    return isinstance(answer, (int, float)) and abs(answer - right) < 0.005 * right
