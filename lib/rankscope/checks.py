"""What every room says in the same words: one error for bad input, and numbers with their nouns."""

from __future__ import annotations

import operator
from typing import Any


def whole(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """Return `value` as an int if it is a whole number in [low, high].

    numpy integers and 0-d integer tensors count as whole numbers; bools and floats do not, since a rank of
    ``True`` or ``1.5`` is always a slip.

    >>> whole("rank", 3, 0, 7)
    3
    >>> whole("rank", 8, 0, 7)
    Traceback (most recent call last):
    ValueError: rank must be a whole number from 0 to 7, got 8
    >>> whole("size", 2.5, 0)
    Traceback (most recent call last):
    ValueError: size must be a whole number of at least 0, got 2.5
    """
    try:
        plain = not isinstance(value, bool) and "bool" not in str(getattr(value, "dtype", ""))
        number = operator.index(value) if plain and getattr(value, "ndim", 0) == 0 else None
    except TypeError:
        number = None
    if number is not None and (low is None or number >= low) and (high is None or number <= high):
        return number
    bounds = {
        (False, False): f" from {low} to {high}",
        (False, True): f" of at least {low}",
        (True, False): f" of at most {high}",
        (True, True): "",
    }[low is None, high is None]
    raise ValueError(f"{name} must be a whole number{bounds}, got {value!r}")


def count_of(number: int, noun: str) -> str:
    """Return the number with its noun, in the plural unless it is one.

    >>> count_of(1, "rank"), count_of(2, "rank")
    ('1 rank', '2 ranks')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Return `value` if it is one of the `allowed` words.

    >>> one_of("color_by", "rank", ("rank", "position"))
    'rank'
    >>> one_of("color_by", "size", ("rank", "position"))
    Traceback (most recent call last):
    ValueError: color_by must be one of 'rank', 'position', got 'size'
    """
    if isinstance(value, str) and value in allowed:
        return value
    raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
