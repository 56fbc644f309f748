"""The notebooks' exercises: `check` works the answer out afresh, raises on a wrong one and waits for a missing one.

Each module has those of some notebooks, in `EXERCISES`.
"""

from __future__ import annotations

from typing import Any

from ..values.checks import one_of
from . import (
    batches,
    buckets,
    data_parallel,
    first_steps,
    gradients,
    memory,
    other_ways,
    own,
    samples,
    transfers,
    uneven,
)

__all__ = ["WrongAnswer", "check"]

_PARTS = (
    first_steps, samples, batches, gradients, transfers, buckets, data_parallel, memory, uneven, other_ways, own
)  # fmt: skip
EXERCISES = {name: check for part in _PARTS for name, check in part.EXERCISES.items()}


class WrongAnswer(ValueError):
    """The answer to an exercise is not right; the message says what it does instead."""


def check(exercise: str, answer: Any = ...) -> None:
    """Print that `answer` is right, raise WrongAnswer where it is not, and wait while it is ``...``.

    Exercises are named after their notebook: "01.2" is the second of notebook 01. Raises ValueError for a name that
    does not exist.

    >>> check("01.1", ...)
    01.1: not answered yet
    >>> check("01.1", 2)
    Traceback (most recent call last):
    rankscope.exercises.WrongAnswer: 01.1: 2 ranks read 1798 samples, of which 1 is a repeat
    """
    one_of("exercise", exercise, tuple(EXERCISES))
    if answer is ...:
        print(f"{exercise}: not answered yet")
        return
    try:
        wrong = EXERCISES[exercise](answer.tolist() if hasattr(answer, "tolist") else answer)  # numpy's and torch's too
    except ValueError as error:  # what the library says of an answer that it does not take
        wrong = str(error)
    if wrong:
        raise WrongAnswer(f"{exercise}: {wrong}")
    print(f"{exercise}: right")
