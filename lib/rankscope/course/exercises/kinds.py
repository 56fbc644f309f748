"""The kinds of exercises, `check` and `score`.

An exercise is a function that is registered under its number. It computes the right answer with the library, so that an
exercise cannot disagree with the library. A new exercise is a function with one decorator:

- `exactly`: the function returns the only right answer, a number;
- `nearly`: the function returns a number, and an answer may differ by a share of it;
- `fewest`: the function says what is wrong with a number, and the answer is the smallest number without a fault;
- `judged`: the function says what is wrong with an answer, and returns None if it is right;
- `built`: the function returns the `Score` of something that the reader built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ...common.checks import number, one_line, one_of
from ...common.units import parse_amount

Judge = Callable[[Any], Any]  # from an answer to its Score, or to what is wrong with it, None if it is right
EXERCISES: dict[str, Judge] = {}
READINGS: dict[str, Mapping[float, str]] = {}  # of each exercise: the conditions under which wrong numbers were right
SCORES: list[str] = []  # the exercises in which something is built
_ROUNDING = 1e-9  # the share by which an exact answer may differ


class WrongAnswer(ValueError):
    """The answer to an exercise is wrong. The message says why, and notebooks show only the message."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows instead of a traceback."""
        return [str(self)]


class Score(msgspec.Struct, frozen=True):
    """A comparison of something that the reader built: a table with a row for it and one for each alternative.

    `wrong` says why it does not solve the exercise, and is None if it does.
    """

    columns: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]
    wrong: str | None = None

    def __str__(self) -> str:
        table = [("", *self.columns)]
        for row_name, row_cells in self.rows.items():
            table.append((row_name, *row_cells))
        name_width, *cell_widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = []
        for name, *cells in table:
            right_aligned = map(str.rjust, cells, cell_widths)
            lines.append("  ".join([name.ljust(name_width), *right_aligned]).rstrip())
        return "\n".join(lines)

    __repr__ = __str__


def check(exercise: str, answer: Any = ...) -> None:
    """Print that `answer` is right, or raise WrongAnswer. ``...`` stands for an answer that is still missing.

    Exercises are named after their notebook: "01.2" is the second of notebook 01. A number may have a unit, as in
    "12.5 ms". Raises ValueError if the exercise does not exist.

    >>> check("01.1", ...)
    01.1: not answered yet
    >>> check("00.2", "25 ms")
    00.2: right
    >>> check("00.2", 50)
    Traceback (most recent call last):
    rankscope.course.exercises.kinds.WrongAnswer: 00.2: 50 would be right if nothing overlapped with the backward pass
    """
    one_of("exercise", exercise, tuple(EXERCISES))
    if answer is ...:
        print(f"{exercise}: not answered yet")
        return
    verdict = _judged(exercise, answer)
    wrong = verdict
    if isinstance(verdict, Score):
        print(verdict)
        wrong = verdict.wrong
    if wrong:
        raise WrongAnswer(one_line(f"{exercise}: {wrong}"))
    print(f"{exercise}: right")


def score(exercise: str, answer: Any) -> Score:
    """Compare something that you built for an exercise with its alternatives.

    Raises WrongAnswer if the submission does not run; ValueError if the exercise has no score.

    >>> score("02.2", {"decode": 2})
               workers  throughput  bottleneck
    as it was        6        20/s      decode
    yours            7      33.3/s     augment
    enough          13       100/s      decode
    """
    one_of("exercise that builds something", exercise, tuple(SCORES))
    result: Score = _judged(exercise, answer)
    return result


def _judged(exercise: str, answer: Any) -> Any:
    if hasattr(answer, "tolist"):  # an array or a number of numpy or torch
        answer = answer.tolist()
    try:
        return EXERCISES[exercise](answer)
    except ValueError as error:  # the library rejects the answer
        raise WrongAnswer(one_line(f"{exercise}: {error}")) from None


# ---- kinds of exercises


def amount(answer: Any, unit: str = "") -> float:
    """Return the number of an answer in that unit; the answer is a number, or text that may name another such unit.

    Raises ValueError for anything else.

    >>> amount(12.5, "ms"), amount("0.0125 s", "ms"), amount("60 %")
    (12.5, 12.5, 0.6)
    """
    if isinstance(answer, str):
        return parse_amount(answer, unit)
    name = f"the answer in {unit}" if unit else "the answer"
    return number(name, answer)


def judged(name: str) -> Callable[[Judge], None]:
    """Register an exercise whose function says what is wrong with an answer."""

    def register(judge: Judge) -> None:
        EXERCISES[name] = judge

    return register


def built(name: str) -> Callable[[Judge], None]:
    """Register an exercise whose function returns the `Score` of what the reader built, usually one of `scores`."""
    SCORES.append(name)
    return judged(name)


def exactly(
    name: str, wrong: str, unit: str = "", means: Mapping[float, str] | None = None
) -> Callable[[Callable[[], float]], None]:
    """Register an exercise whose function returns the only right answer.

    `wrong` is the message for another answer, which replaces its ``{}``. `unit` is the unit of a number without one.
    `means` has for wrong numbers the condition under which they would be right: ``{96: "the last 4 samples were
    dropped"}``.
    """
    return nearly(name, wrong, unit, means, within=_ROUNDING)


def nearly(
    name: str, wrong: str, unit: str = "", means: Mapping[float, str] | None = None, within: float = 0.005
) -> Callable[[Callable[[], float]], None]:
    """Register an exercise whose function returns the right number. See `exactly`.

    An answer may differ from it by the share `within`: by default by what rounding to three digits changes at most.
    """
    READINGS[name] = means or {}

    def register(right: Callable[[], float]) -> None:
        def judge(answer: Any) -> str | None:
            value = amount(answer, unit)
            if _close(value, right(), within):
                return None
            reading = _reading(answer, value, READINGS[name], within)
            if reading is not None:
                return reading
            return wrong.format(answer)

        EXERCISES[name] = judge

    return register


def fewest(
    name: str, low: int, high: int, what: str, means: Mapping[float, str] | None = None
) -> Callable[[Callable[[int], str | None]], None]:
    """Register an exercise that asks for the smallest number with which the function finds no fault.

    Answers are whole numbers from `low` to `high`. `what` is the noun for them, and the unit that they may have, as in
    "4 ranks". `means` is that of `exactly`.
    """
    READINGS[name] = means or {}

    def register(fault: Callable[[int], str | None]) -> None:
        def judge(answer: Any) -> str | None:
            value = amount(answer, what)
            if not value.is_integer() or not low <= value <= high:
                return f"the answer must be a whole number of {what} from {low:,} to {high:,}, got {answer!r}"
            wrong = _reading(answer, value, READINGS[name], _ROUNDING)
            if wrong is None:
                wrong = fault(int(value))
            if wrong is not None:
                return wrong
            if any(fault(smaller) is None for smaller in range(low, int(value))):
                return f"{answer} is enough, but a smaller number is enough, too"
            return None

        EXERCISES[name] = judge

    return register


def _close(value: float, right: float, within: float) -> bool:
    return abs(value - right) <= within * abs(right)


def _reading(answer: Any, value: float, means: Mapping[float, str], within: float) -> str | None:
    """The condition under which a wrong number would be right, if it is known."""
    for wrong_value, meaning in means.items():
        if _close(value, wrong_value, within):
            return f"{answer} would be right if {meaning}"
    return None
