"""Fits recover known links, intervals cover as often as they state, and times that are no line are far off."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rankscope.box.fit import fit_link

SIZES = [2**power for power in range(8, 25)]
ALPHA_S, BYTES_PER_S = 20e-6, 1e9


def line(size: int) -> float:
    return ALPHA_S + size / BYTES_PER_S


def drawn(seed: int, noise: float, number: int, sizes: Any = SIZES) -> list[Any]:
    draw = np.random.default_rng(seed)
    return [line(size) * (1 + noise * draw.standard_normal(number)) for size in sizes]


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


def test_stolen_time_does_little() -> None:
    draw = np.random.default_rng(0)
    times = [one + (draw.random(21) < 0.33) * draw.exponential(5e-3, 21) for one in drawn(0, 0.02, 21)]
    fit = fit_link(SIZES, times)
    assert fit.link.alpha_s == pytest.approx(ALPHA_S, rel=0.1)
    assert fit.link.bytes_per_s == pytest.approx(BYTES_PER_S, rel=0.1)
    order = draw.permutation(17)
    assert fit_link([SIZES[index] for index in order], [times[index] for index in order]) == fit


def test_times_that_are_no_line_are_far_off_on_the_sizes_held_out() -> None:
    draw = np.random.default_rng(1)
    assert fit_link(SIZES, draw.uniform(1e-5, 1e-3, 17)).held_out_error > 0.3


def test_a_latency_alone_has_a_bandwidth_without_limit() -> None:
    fit = fit_link(SIZES, [1e-3 / (1 + size * 1e-10) for size in SIZES])  # even falling a little
    assert fit.link.bytes_per_s == np.inf
