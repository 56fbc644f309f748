"""The kinds of exercises, `check` and `score`.

An exercise is a function that stands under its number. It works the right answer out afresh, by the library, so that
an exercise cannot say something else than the library does. A new one is a function with one decorator:

- `exactly`: the function returns the one right answer, a number or anything with an ``==``;
- `nearly`: it returns a number, and an answer may differ by a share of it;
- `fewest`: it says what is wrong with a number, and the answer is the smallest of which nothing is;
- `judged`: it says what is wrong with an answer, and returns None where nothing is;
- `built`: it returns the `Score` of something that the reader built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ...common.checks import number, one_line, one_of
from ...common.units import parse_amount

Judge = Callable[[Any], Any]  # of an answer: its Score, or what is wrong with it, None where nothing is
EXERCISES: dict[str, Judge] = {}
READINGS: dict[str, Mapping[float, str]] = {}  # of each exercise: what wrong numbers would be right for
SCORES: list[str] = []  # the exercises that build something
_ROUNDING = 1e-9


class WrongAnswer(ValueError):
    """The answer to an exercise is not right; the message says what it does instead. Notebooks show only that."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows in the place of a traceback."""
        return [str(self)]


@attrs.frozen(repr=False)
class Score:
    """How good something is that the reader built: a table with a row for it and one for each thing to compare it with.

    `wrong` says what it lacks to solve the exercise, None where it solves it.
    """

    columns: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]
    wrong: str | None = None

    def __str__(self) -> str:
        lines = [("", *self.columns), *((name, *cells) for name, cells in self.rows.items())]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]).rstrip() for name, *cells in lines
        )

    __repr__ = __str__


def check(exercise: str, answer: Any = ...) -> None:
    """Print that `answer` is right, raise WrongAnswer where it is not, and wait while it is ``...``.

    Exercises are named after their notebook: "01.2" is the second of notebook 01. A number may have a unit, as in
    "12.5 ms". Raises ValueError for an exercise that does not exist.

    >>> check("01.1", ...)
    01.1: not answered yet
    >>> check("00.2", "25 ms")
    00.2: right
    >>> check("00.2", 50)
    Traceback (most recent call last):
    rankscope.course.exercises.kinds.WrongAnswer: 00.2: 50 would be right if nothing overlapped with the backward
    """
    one_of("exercise", exercise, tuple(EXERCISES))
    if answer is ...:
        print(f"{exercise}: not answered yet")
        return
    wrong = _judged(exercise, answer)
    if isinstance(wrong, Score):
        print(wrong)
        wrong = wrong.wrong
    if wrong:
        raise WrongAnswer(one_line(f"{exercise}: {wrong}"))
    print(f"{exercise}: right")


def score(exercise: str, answer: Any) -> Score:
    """Return how good something is that you built for an exercise, next to what it is compared with.

    Raises WrongAnswer for something that does not work at all, ValueError for an exercise that builds nothing.

    >>> score("14.2", "broadcast yours ranks=4 chunks=1\\n0: 0>1:0=\\n1: 0>2:0=\\n2: 0>3:0=")
                     steps     time  × bound
    yours                3  63.1 µs     1.58
    binomial (best)      2    42 µs     1.05
    lower bound               40 µs
    """
    one_of("exercise that builds something", exercise, tuple(SCORES))
    found: Score = _judged(exercise, answer)
    return found


def _judged(exercise: str, answer: Any) -> Any:
    try:
        return EXERCISES[exercise](answer.tolist() if hasattr(answer, "tolist") else answer)  # numpy's and torch's too
    except ValueError as error:  # what the library says of an answer that it does not take
        raise WrongAnswer(one_line(f"{exercise}: {error}")) from None


# ---- kinds of exercises


def amount(answer: Any, unit: str = "") -> float:
    """Return a number that is given as it is, in that unit, or as a text that may name another unit of the same kind.

    Raises ValueError for anything else.

    >>> amount(12.5, "ms"), amount("0.0125 s", "ms"), amount("60 %")
    (12.5, 12.5, 0.6)
    """
    if isinstance(answer, str):
        return parse_amount(answer, unit)
    return number(f"the answer{unit and f' in {unit}'}", answer)


def judged(name: str) -> Callable[[Judge], None]:
    """An exercise whose function says what is wrong with an answer."""
    return lambda judge: EXERCISES.update({name: judge})


def built(name: str) -> Callable[[Judge], None]:
    """An exercise whose function returns the `Score` of what the reader built; see `scores` for those that exist."""
    SCORES.append(name)
    return judged(name)


def exactly(
    name: str, wrong: str, unit: str = "", means: Mapping[float, str] | None = None
) -> Callable[[Callable[[], Any]], None]:
    """An exercise whose function returns the one right answer.

    `wrong` has a place for another one, `unit` is that of a number without one, and `means` says of wrong numbers what
    they would be right for: ``{96: "the last 4 samples were dropped"}``.
    """
    return nearly(name, wrong, unit, means, within=_ROUNDING)


def nearly(
    name: str, wrong: str, unit: str = "", means: Mapping[float, str] | None = None, within: float = 0.005
) -> Callable[[Callable[[], Any]], None]:
    """An exercise whose function returns the right number; an answer may differ by a share of it. See `exactly`."""

    READINGS[name] = means or {}

    def register(right: Callable[[], Any]) -> None:
        def judge(answer: Any) -> str | None:
            solution = right()
            if not isinstance(solution, int | float):
                if _as_lists(answer) == _as_lists(solution):
                    return None
                return wrong.format(repr(answer))
            given = amount(answer, unit)
            if _close(given, solution, within):
                return None
            return _reading(answer, given, READINGS[name], within) or wrong.format(answer)

        EXERCISES[name] = judge

    return register


def fewest(
    name: str, low: int, high: int, what: str, means: Mapping[float, str] | None = None
) -> Callable[[Callable[[int], str | None]], None]:
    """An exercise that asks for the smallest number of which the function finds nothing wrong."""

    READINGS[name] = means or {}

    def register(lacks: Callable[[int], str | None]) -> None:
        def judge(answer: Any) -> str | None:
            given = amount(answer, what)
            if not given.is_integer() or not low <= given <= high:
                return f"the answer must be a whole number of {what} from {low:,} to {high:,}, got {answer!r}"
            if reading := _reading(answer, given, READINGS[name], _ROUNDING):
                return reading
            if wrong := lacks(int(given)):
                return wrong
            if all(lacks(smaller) for smaller in range(low, int(given))):
                return None
            return f"{answer} is enough, but a smaller number is enough, too"

        EXERCISES[name] = judge

    return register


def _as_lists(answer: Any) -> Any:
    """Return an answer whose tuples are lists, at any depth: no exercise asks which of the two somebody writes."""
    if isinstance(answer, list | tuple):
        return [_as_lists(item) for item in answer]
    return answer


def _close(given: float, value: float, within: float) -> bool:
    return abs(given - value) <= within * abs(value)


def _reading(answer: Any, given: float, means: Mapping[float, str], within: float) -> str | None:
    """What a wrong number would be right for, if that is known."""
    found = (meaning for value, meaning in means.items() if _close(given, value, within))
    return next((f"{answer} would be right if {meaning}" for meaning in found), None)
