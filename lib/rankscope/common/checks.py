"""Checks of arguments: one ValueError with the name, the allowed range and the value."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from .words import one_line

Kind = TypeVar("Kind")


def _shown(value: Any) -> str:
    """Return a wrong value for a message of one line, which a whole dataset would not be."""
    return one_line(repr(value))


def whole(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """Return `value` as an int if it is a whole number in [low, high].

    numpy integers and 0-d integer tensors count as whole numbers. Bools and floats do not, because a rank of ``True``
    or ``1.5`` is always a mistake.

    >>> whole("rank", 3, 0, 7)
    3
    >>> whole("rank", 8, 0, 7)
    Traceback (most recent call last):
    ValueError: rank must be a whole number from 0 to 7, got 8
    >>> whole("size", 2.5, 0)
    Traceback (most recent call last):
    ValueError: size must be a whole number of at least 0, got 2.5
    """
    number = _as_whole(value)
    if number is not None and (low is None or number >= low) and (high is None or number <= high):
        return number
    bounds = ""
    if low is not None and high is not None:
        bounds = f" from {low} to {high}"
    elif low is not None:
        bounds = f" of at least {low}"
    elif high is not None:
        bounds = f" of at most {high}"
    raise ValueError(f"{name} must be a whole number{bounds}, got {_shown(value)}")


def _as_whole(value: Any) -> int | None:
    """Return a whole number as an int, and None for anything else."""
    # `operator.index` would also accept truth values of Python and torch, and torch's tensors with one element.
    is_truth_value = isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))
    is_array = getattr(value, "ndim", 0) != 0
    if is_truth_value or is_array:
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def number(
    name: str, value: Any, low: float | None = None, high: float | None = None, *, above: float | None = None
) -> float:
    """Return `value` as a float if it is a number in [low, high] and greater than `above`.

    It must be finite unless `high` is infinite. numpy's numbers and 0-d tensors count as numbers; bools and strings do
    not.

    >>> number("alpha_s", 1, 0)
    1.0
    >>> number("alpha_s", float("inf"), 0)
    Traceback (most recent call last):
    ValueError: alpha_s must be a finite number of at least 0, got inf
    >>> number("bytes_per_s", "10", above=0, high=math.inf)
    Traceback (most recent call last):
    ValueError: bytes_per_s must be a number above 0, got '10'
    """
    number = _as_float(value)
    lowest = -sys.float_info.max if low is None else low  # the largest finite number, and nan is in no range
    highest = sys.float_info.max if high is None else high
    if number is not None and lowest <= number <= highest and (above is None or number > above):
        return number
    bounds = []
    if low is not None:
        bounds.append(f"of at least {low}")
    if above is not None:
        bounds.append(f"above {above}")
    if high is not None and high != math.inf:
        bounds.append(f"of at most {high}")
    expected = "number" if high == math.inf else "finite number"
    if bounds:
        expected += f" {' and '.join(bounds)}"
    raise ValueError(f"{name} must be a {expected}, got {_shown(value)}")


def _as_float(value: Any) -> float | None:
    """Return a number as a float, and None for anything else."""
    if isinstance(value, bool | str | bytes):
        return None
    # Of values with a dtype, those of numpy and torch, `float` would also read truth values, texts, dates, and complex
    # numbers without their imaginary part.
    dtype = getattr(value, "dtype", None)
    if dtype is not None and "int" not in str(dtype) and "float" not in str(dtype):
        return None
    is_array = getattr(value, "ndim", 0) != 0
    if is_array:
        return None
    # `float` would also read the text in a buffer, such as a bytearray. A buffer has neither of these methods.
    if not hasattr(value, "__float__") and not hasattr(value, "__index__"):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):  # a class's own method refuses it, or an int is above 1.8e308
        return None


def is_scalar(value: Any) -> bool:
    """Whether a value is one number or truth value rather than several: Python's, numpy's or a 0-d array."""
    return isinstance(value, bool | int | float) or getattr(value, "ndim", None) == 0


def truth(name: str, value: Any) -> bool:
    """Return `value` as a bool if it is True or False, of Python or numpy.

    >>> truth("ordered", "no")
    Traceback (most recent call last):
    ValueError: ordered must be True or False, got 'no'
    """
    if isinstance(value, bool) or (str(getattr(value, "dtype", "")) == "bool" and value.ndim == 0):
        return bool(value)
    raise ValueError(f"{name} must be True or False, got {_shown(value)}")


def of_type(name: str, value: Any, kind: type[Kind], made_by: str = "") -> Kind:
    """Return `value` if it is of this class; `made_by` names what to call to get one.

    >>> of_type("pipeline", [], dict)
    Traceback (most recent call last):
    ValueError: pipeline must be a dict, got []
    >>> of_type("a trace", "rank0.json", dict, "read_traces")
    Traceback (most recent call last):
    ValueError: a trace must be a dict, such as read_traces returns, got 'rank0.json'
    """
    if isinstance(value, kind):
        return value
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    source = f", such as {made_by} returns" if made_by else ""
    raise ValueError(f"{name} must be {article} {kind.__name__}{source}, got {_shown(value)}")


def function(name: str, value: Any, what: str = "") -> Any:
    """Return `value` if it can be called; `what` describes its arguments or its result.

    >>> function("step", 3, "of inputs and targets")
    Traceback (most recent call last):
    ValueError: step must be a function of inputs and targets, got 3
    """
    if callable(value):
        return value
    expected = "a function"
    if what:
        expected += f" {what}"
    raise ValueError(f"{name} must be {expected}, got {_shown(value)}")


def several(name: str, values: Any, what: str = "") -> list[Any]:
    """Return the values of an iterable as a list. Raises ValueError for anything else, and for strings and mappings.

    Strings and mappings are iterable, but nobody who passes one means its characters or its keys.

    >>> several("shape", (2, 4))
    [2, 4]
    >>> several("shape", 8)
    Traceback (most recent call last):
    ValueError: shape must be a list, got 8
    >>> several("caps_mb", 25, "caps")
    Traceback (most recent call last):
    ValueError: caps_mb must be a list of caps, got 25
    """
    is_single = isinstance(values, str | bytes | Mapping) or is_scalar(values)  # a 0-d array has __iter__, but no items
    if is_single or not isinstance(values, Iterable):
        expected = f"a list of {what}" if what else "a list"
        raise ValueError(f"{name} must be {expected}, got {_shown(values)}")
    return list(values)


def each(name: str, values: Any, check: Callable[..., Any], *limits: Any, **options: Any) -> tuple[Any, ...]:
    """Return a tuple with the result of the check for each of several values.

    >>> each("step_s", [1, 2.5], number, 0)
    (1.0, 2.5)
    >>> each("step_s", [1, -1], number, 0)
    Traceback (most recent call last):
    ValueError: step_s must be a finite number of at least 0, got -1
    """
    return tuple([check(name, value, *limits, **options) for value in several(name, values)])


def optional(name: str, value: Any, check: Callable[..., Any], *limits: Any, **options: Any) -> Any:
    """Return None for None, and the result of the check for any other value.

    >>> optional("ports", None, whole, 1), optional("ports", 2, whole, 1)
    (None, 2)
    """
    if value is None:
        return None
    return check(name, value, *limits, **options)


def check_field(value: msgspec.Struct, name: str, check: Callable[..., Any], *limits: Any, **options: Any) -> None:
    """Replace a field by the result of its check, in the ``__post_init__`` of a frozen value."""
    field = check(name, getattr(value, name), *limits, **options)
    msgspec.structs.force_setattr(value, name, field)


@contextmanager
def while_processing(what: str) -> Iterator[None]:
    """Begin the message of a ValueError with what was processed, such as a name or the place in a file.

    >>> with while_processing("points[2]"):
    ...     whole("num_bytes", -1, 0)
    Traceback (most recent call last):
    ValueError: points[2]: num_bytes must be a whole number of at least 0, got -1
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error


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
    raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {_shown(value)}")
