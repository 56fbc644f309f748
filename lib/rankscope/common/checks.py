"""What every room says in the same words: one error for bad input, and numbers with their nouns."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

Kind = TypeVar("Kind")
_MOST_CHARACTERS = 400  # of an error about what others wrote


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


def number(
    name: str, value: Any, low: float | None = None, high: float | None = None, *, above: float | None = None
) -> float:
    """Return `value` as a float if it is a number in [low, high] and greater than `above`.

    It must be finite unless `high` is infinite. numpy's numbers and 0-d tensors count; bools and strings do not.

    >>> number("alpha_s", 1, 0)
    1.0
    >>> number("alpha_s", float("inf"), 0)
    Traceback (most recent call last):
    ValueError: alpha_s must be a finite number of at least 0, got inf
    >>> number("bytes_per_s", "10", above=0, high=math.inf)
    Traceback (most recent call last):
    ValueError: bytes_per_s must be a number above 0, got '10'
    """
    try:
        found = float(value) if _is_number(value) else math.nan
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    least, most = -math.inf if low is None else low, math.inf if high is None else high
    enough = least <= found <= most and (above is None or found > above)
    if enough and (math.isfinite(found) or high == math.inf):
        return found
    bounds = [] if low is None else [f"of at least {low}"]
    bounds += [] if above is None else [f"above {above}"]
    bounds += [] if high in (None, math.inf) else [f"of at most {high}"]
    kind = "number" if high == math.inf else "finite number"
    raise ValueError(f"{name} must be a {' '.join([kind, ' and '.join(bounds)]).rstrip()}, got {value!r}")


def is_scalar(value: Any) -> bool:
    """Whether a value is one number or the like rather than several: a Python number, a numpy one, a 0-d array."""
    return isinstance(value, bool | int | float) or getattr(value, "ndim", None) == 0


def _is_number(value: Any) -> bool:
    kind = str(getattr(value, "dtype", "float"))
    if isinstance(value, bool | str | bytes) or not ("int" in kind or "float" in kind):
        return False
    return getattr(value, "ndim", None) in (None, 0) and (hasattr(value, "__float__") or hasattr(value, "__index__"))


def truth(name: str, value: Any) -> bool:
    """Return `value` as a bool if it is True or False, Python's or numpy's.

    >>> truth("ordered", "no")
    Traceback (most recent call last):
    ValueError: ordered must be True or False, got 'no'
    """
    if isinstance(value, bool) or (str(getattr(value, "dtype", "")) == "bool" and value.ndim == 0):
        return bool(value)
    raise ValueError(f"{name} must be True or False, got {value!r}")


def of_type(name: str, value: Any, kind: type[Kind]) -> Kind:
    """Return `value` if it is of that class.

    >>> of_type("pipeline", [], dict)
    Traceback (most recent call last):
    ValueError: pipeline must be a dict, got []
    """
    if isinstance(value, kind):
        return value
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    raise ValueError(f"{name} must be {article} {kind.__name__}, got {value!r}")


def function(name: str, value: Any, what: str = "") -> Any:
    """Return `value` if it can be called; `what` says of what it is a function, or what it returns.

    >>> function("step", 3, "of inputs and targets")
    Traceback (most recent call last):
    ValueError: step must be a function of inputs and targets, got 3
    """
    if callable(value):
        return value
    raise ValueError(f"{name} must be a function{what and f' {what}'}, got {value!r}")


def several(name: str, values: Any, what: str = "") -> list[Any]:
    """Return the values as a list; ValueError for what cannot be iterated over, and for a text or a mapping, which can.

    >>> several("shape", (2, 4))
    [2, 4]
    >>> several("shape", 8)
    Traceback (most recent call last):
    ValueError: shape must be a list, got 8
    >>> several("caps_mb", 25, "caps")
    Traceback (most recent call last):
    ValueError: caps_mb must be a list of caps, got 25
    """
    one = isinstance(values, str | bytes | Mapping) or getattr(values, "ndim", 1) == 0
    if one or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list{what and f' of {what}'}, got {values!r}")
    return list(values)


def count_of(number: int, noun: str) -> str:
    """Return the number with its noun, in the plural unless it is one.

    >>> count_of(1, "rank"), count_of(2, "rank")
    ('1 rank', '2 ranks')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def printable(text: str, keep: str = "") -> str:
    """Return a text without what would do something where it is shown: it is a space, an escape, or one of `keep`.

    >>> print(printable("a\\x1b[31m\\ud800\\tb"))
    a\\x1b[31m\\ud800 b
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else _escape(one) for one in text)


def one_line(text: str) -> str:
    """Return a text as an error says it: printable, and without its middle where it is longer than 400 characters.

    >>> len(one_line("got " + "9" * 5000))
    403
    """
    line = printable(text)
    half = _MOST_CHARACTERS // 2
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:half]} … {line[-half:]}"


def _escape(one: str) -> str:
    return " " if one.isspace() else one.encode("unicode_escape").decode()


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
