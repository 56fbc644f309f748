"""How many of its cases a test runs: a sample in `make test`, everything in `make oracles`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

SAMPLE_OR_EVERYTHING = pytest.mark.parametrize(
    "everything",
    [pytest.param(False, id="sample"), pytest.param(True, marks=pytest.mark.oracle, id="everything")],
)


def first_in_test(number: int, cases: Sequence[Any]) -> list[Any]:
    """Return cases for `pytest.mark.parametrize`: `make test` runs the first ones, `make oracles` the others.

    >>> [bool(case.marks) for case in first_in_test(1, ["a", "b"])]
    [False, True]
    """
    params = []
    for place, case in enumerate(cases):
        values = case if type(case) is tuple else (case,)  # a named tuple is one value
        marks = () if place < number else (pytest.mark.oracle,)
        params.append(pytest.param(*values, marks=marks))
    return params
