"""Fits recover known links, and times that are no line are far off."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.box.fit import fit_link

SIZES = [2**power for power in range(8, 25)]
ALPHA_S, BYTES_PER_S = 20e-6, 1e9


def line(size: int) -> float:
    return ALPHA_S + size / BYTES_PER_S


@pytest.mark.parametrize(("alpha_s", "rate"), [(1e-6, 3e11), (20e-6, 1e9), (5e-3, 12.5e6), (0.0, 1e9), (1.0, 1e3)])
def test_an_exact_line_is_found_exactly(alpha_s: float, rate: float) -> None:
    fit = fit_link(SIZES, [alpha_s + size / rate for size in SIZES])
    assert fit.link.alpha_s == pytest.approx(alpha_s, rel=1e-6, abs=1e-12)
    assert fit.link.bytes_per_s == pytest.approx(rate, rel=1e-6)
    assert fit.held_out_error < 1e-6


@pytest.mark.parametrize("place", range(0, 17, 4))
def test_a_size_that_is_wholly_off_does_little(place: int) -> None:
    fit = fit_link(SIZES, [line(size) * (3 if index == place else 1) for index, size in enumerate(SIZES)])
    assert fit.link.alpha_s == pytest.approx(ALPHA_S, rel=0.02)
    assert fit.link.bytes_per_s == pytest.approx(BYTES_PER_S, rel=0.02)


def test_the_order_of_the_sizes_does_not_matter() -> None:
    draw = np.random.default_rng(0)
    times_s = [line(size) * (1 + 0.02 * draw.standard_normal()) for size in SIZES]
    fit = fit_link(SIZES, times_s)
    assert fit.link.alpha_s == pytest.approx(ALPHA_S, rel=0.1)
    assert fit.link.bytes_per_s == pytest.approx(BYTES_PER_S, rel=0.1)
    order = draw.permutation(17)
    assert fit_link([SIZES[index] for index in order], [times_s[index] for index in order]) == fit


def test_times_that_are_no_line_are_far_off_on_the_sizes_held_out() -> None:
    draw = np.random.default_rng(1)
    assert fit_link(SIZES, draw.uniform(1e-5, 1e-3, 17)).held_out_error > 0.3


def test_a_latency_alone_has_a_bandwidth_without_limit() -> None:
    fit = fit_link(SIZES, [1e-3 / (1 + size * 1e-10) for size in SIZES])  # even falling a little
    assert fit.link.bytes_per_s == np.inf
