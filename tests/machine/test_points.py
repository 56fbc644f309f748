"""Points: what they refuse, and their statistics against those of the standard library."""

from __future__ import annotations

import pickle
import statistics
from typing import Any

import numpy as np
import pytest

from rankscope.machine import Point

TIMES = (5e-3, 1e-3, 4e-3, 2e-3, 3e-3)


def made(**changes: Any) -> Point:
    arguments: dict[str, Any] = {"what": "allreduce", "num_bytes": 1024, "seconds": TIMES, "clean": (True,) * 5}
    return Point(**(arguments | changes))


def test_statistics_are_of_the_clean_iterations() -> None:
    point = made(clean=(True, True, True, False, True))
    assert point.used_s == (5e-3, 1e-3, 4e-3, 3e-3)
    assert point.median_s == pytest.approx(statistics.median(point.used_s))
    low, _, high = statistics.quantiles(point.used_s, n=4, method="inclusive")
    assert point.iqr_s == pytest.approx(high - low)
    assert max(point.used_s) > point.p99_s > statistics.quantiles(point.used_s, n=10, method="inclusive")[-1]


def test_with_too_few_clean_iterations_all_are_used() -> None:
    point = made(clean=(True, True, True, False, False))
    assert point.used_s == TIMES
    assert point.num_clean == 3


def test_seconds_are_kept_to_six_digits() -> None:
    assert made(seconds=(1.23456789e-4,) * 5).seconds == (1.23457e-4,) * 5


def test_numbers_of_numpy_become_plain_ones() -> None:
    point = made(num_bytes=np.int64(8), seconds=[np.float32(0.5)] * 5, clean=[np.bool_(True)] * 5)
    assert (type(point.num_bytes), type(point.seconds[0]), type(point.clean[0])) == (int, float, bool)


def test_the_key_does_not_depend_on_the_order_of_options() -> None:
    assert made(options={"a": 1, "b": 2}).key == made(options={"b": 2, "a": 1}, seconds=[1.0] * 5).key
    assert made(options={"a": 1}).key != made(options={"a": 2}).key


def test_pickles() -> None:
    point = made(options={"algorithm": "ring", "in_place": True})
    again = pickle.loads(pickle.dumps(point))
    assert (again, again.key) == (point, point.key)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"what": "allrecude"}, "what must be one of .*got 'allrecude'"),
        ({"what": None}, "what must be one of .*got None"),
        ({"num_bytes": -1}, "num_bytes must be a whole number from 0 to .*got -1"),
        ({"num_bytes": 1.5}, "num_bytes .*got 1.5"),
        ({"num_bytes": 1 << 70}, "num_bytes .*got 1180591620717411303424"),
        ({"seconds": ()}, "seconds must be those of at least one iteration"),
        ({"seconds": 1.0}, "seconds must be .*got 1.0"),
        ({"seconds": (1.0,) * 4}, "clean must have a word on each of 4 iterations"),
        ({"seconds": (1.0, 2.0, 0.0, 1.0, 1.0)}, "seconds must be .*got 0.0"),
        ({"seconds": (1.0, 2.0, -1.0, 1.0, 1.0)}, "got -1.0"),
        ({"seconds": (1.0, 2.0, float("nan"), 1.0, 1.0)}, "got nan"),
        ({"seconds": (1.0, 2.0, float("inf"), 1.0, 1.0)}, "got inf"),
        ({"seconds": (1.0, 2.0, "1", 1.0, 1.0)}, "got '1'"),
        ({"clean": (1, 1, 1, 1, 1)}, "clean must be True or False, got 1"),
        ({"options": ["ring"]}, "options must be a mapping"),
        ({"options": {"shape": (2, 2)}}, r"options must be .*got 'shape': \(2, 2\)"),
        ({"options": {"a": "\x1b[2J"}}, "options must be printable .*got 'a': .*x1b"),
        ({"options": {1: "a"}}, "options must be .*got 1"),
    ],
)
def test_what_no_measurement_gives_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        made(**changes)
