"""Curves through what was measured hold between the sizes, whatever one disturbed size says."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from rankscope.box.curve import Curve

from .published import left_out, published

SIZES = [2**power for power in range(8, 30)]


def line_s(num_bytes: float) -> float:
    return 10e-6 + num_bytes / 100e9


def switching_s(num_bytes: float) -> float:
    """Three protocols, each chosen a little too late."""
    if num_bytes < 2**16:
        return 8e-6 + num_bytes / 5e9
    return 20e-6 + num_bytes / 40e9 if num_bytes < 2**23 else 40e-6 + num_bytes / 100e9


def curve(seconds: Callable[[float], float] = line_s, changed: dict[int, float] | None = None) -> Curve:
    """A curve through all SIZES; `changed` multiplies the times of some."""
    return Curve({size: seconds(size) * (changed or {}).get(size, 1.0) for size in SIZES})


@pytest.mark.parametrize("seconds", [line_s, switching_s])
def test_what_was_measured_comes_back_and_nothing_overshoots(seconds: Callable[[float], float]) -> None:
    made = curve(seconds, {2**20: 3.0})
    assert [made.seconds(size) for size in SIZES] == list(made.measured_s.values())
    smooth = curve(seconds)
    for small, large in pairwise(SIZES):
        times = [smooth.seconds(size) for size in np.geomspace(small, large, 17)[1:-1]]
        assert times in (sorted(times), sorted(times, reverse=True))
        ends = sorted([smooth.seconds(small), smooth.seconds(large)])
        assert ends[0] <= min(times) <= max(times) <= ends[1]


def test_a_line_is_met_between_the_sizes_and_beyond_them() -> None:
    made = curve()
    for size in 1.41 * np.array(SIZES[:-1]):
        assert made.seconds(size) == pytest.approx(line_s(size), rel=0.02)
    assert made.seconds(0) == made.seconds(1) == pytest.approx(line_s(256))  # below, the time of the smallest
    assert made.seconds(2**35) == pytest.approx(line_s(2**35), rel=1e-6)
    assert made.covers(256)
    assert not made.covers(255)
    assert not made.covers(2**30)
    falling = Curve({2**power: 1e-3 / power for power in range(10, 16)})
    assert falling.seconds(2**16) == pytest.approx(2 * falling.seconds(2**15))


def test_a_size_of_0_bends_nothing() -> None:
    assert Curve({0: 3e-6, **curve().measured_s}) == curve()


@pytest.mark.parametrize("place", [0, 2, 9, 14, 18])
def test_one_size_that_takes_longer_than_its_neighbours_spoils_no_other(place: int) -> None:
    size = SIZES[place]
    assert curve(changed={size: 3.1}).seconds(1.5 * size) == pytest.approx(line_s(1.5 * size), rel=0.02)


def test_every_second_size_of_published_curves_is_met() -> None:
    curves = list(published())
    assert len(curves) > 140
    left = [size for first in (0, 1) for size in left_out(curves, first)]
    errors = 100 * np.abs([size.error for size in left])
    assert np.median(errors) < 1.8
    assert np.percentile(errors, 90) < 12.5
