"""Fits recover known links, intervals cover as often as they state, and times that are no line are reported as none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rankscope.box.fit import LinkFit, fit_link, slope_s_per_byte

from ..extents import first_in_test

SIZES = [2**power for power in range(8, 25)]
ALPHA_S, BYTES_PER_S = 20e-6, 1e9


def line(size: int) -> float:
    return ALPHA_S + size / BYTES_PER_S


def switching(size: int) -> float:
    """Copied up to 64 KiB, by rendezvous from there on."""
    return line(size) if size < 65536 else 60e-6 + size / 3e9


def drawn(
    seed: int, noise: float, number: int, seconds: Callable[[int], float] = line, sizes: Any = SIZES
) -> list[Any]:
    draw = np.random.default_rng(seed)
    return [seconds(size) * (1 + noise * draw.standard_normal(number)) for size in sizes]


def holds(fit: LinkFit) -> tuple[bool, bool]:
    alpha_s, rate = fit.alpha_s_interval, fit.bytes_per_s_interval
    return alpha_s[0] <= ALPHA_S <= alpha_s[1], rate[0] <= BYTES_PER_S <= rate[1]


# ---- what is known is found


@pytest.mark.parametrize(("alpha_s", "rate"), [(1e-6, 3e11), (20e-6, 1e9), (5e-3, 12.5e6), (0.0, 1e9), (1.0, 1e3)])
def test_an_exact_line_is_found_exactly(alpha_s: float, rate: float) -> None:
    fit = fit_link(SIZES, [alpha_s + size / rate for size in SIZES])
    assert fit.link.alpha_s == pytest.approx(alpha_s, rel=1e-6, abs=1e-12)
    assert fit.link.bytes_per_s == pytest.approx(rate, rel=1e-6)
    assert len(fit.pieces) == 1
    assert fit.held_out_error < 1e-6
    assert fit.num_held_out == len(SIZES) // 2


def test_a_latency_alone_has_a_bandwidth_without_limit() -> None:
    fit = fit_link(SIZES, [1e-3 / (1 + size * 1e-10) for size in SIZES])  # even falling a little
    assert fit.link.bytes_per_s == np.inf
    assert fit.link.alpha_s == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("seed", range(5))
def test_steal_that_hits_a_third_of_the_samples_does_little(seed: int) -> None:
    draw = np.random.default_rng(seed)
    times = [one + (draw.random(21) < 0.33) * draw.exponential(5e-3, 21) for one in drawn(seed, 0.02, 21)]
    fit = fit_link(SIZES, times)
    assert fit.link.alpha_s == pytest.approx(ALPHA_S, rel=0.1)
    assert fit.link.bytes_per_s == pytest.approx(BYTES_PER_S, rel=0.1)


@pytest.mark.parametrize("place", range(0, 17, 2))
def test_a_size_that_is_wholly_off_does_little(place: int) -> None:
    times = [line(size) * (3 if where == place else 1) for where, size in enumerate(SIZES)]
    fit = fit_link(SIZES, times)
    assert fit.link.alpha_s == pytest.approx(ALPHA_S, rel=0.02)
    assert fit.link.bytes_per_s == pytest.approx(BYTES_PER_S, rel=0.02)


def test_sizes_come_in_any_order_and_twice() -> None:
    times = drawn(1, 0.05, 8)
    order = np.random.default_rng(2).permutation(len(SIZES))
    sizes = [SIZES[place] for place in order for _ in range(2)]
    halves = [half for place in order for half in (times[place][:4], times[place][4:])]
    assert fit_link(sizes, halves).link == fit_link(SIZES, times).link


def test_sums_in_memory_have_the_slope_of_most_sizes() -> None:
    times = [1e-6 + size * 1e-10 for size in SIZES]
    times[5] *= 4
    assert slope_s_per_byte(SIZES, times) == pytest.approx(1e-10, rel=0.01)


# ---- pieces


@pytest.mark.parametrize("seed", range(10))
def test_a_switch_is_found_where_it_is(seed: int) -> None:
    fit = fit_link(SIZES, drawn(seed, 0.02, 15, switching))
    assert len(fit.pieces) == 2
    assert 32768 <= fit.pieces[1][0] <= 131072
    for size in (1024, 8192, 2**20, 2**23):
        assert fit.seconds(size) == pytest.approx(switching(size), rel=0.05)
    assert fit.held_out_error < 0.03
    assert fit.at(10**9) == fit.pieces[1][1]
    assert fit.at(0) == fit.pieces[0][1]


def test_three_pieces_are_found() -> None:
    def three(size: int) -> float:
        return line(size) if size < 2**13 else 60e-6 + size / 3e9 if size < 2**19 else 1e-3 + size / 5e8

    fit = fit_link(SIZES, [three(size) for size in SIZES])
    assert len(fit.pieces) == 3
    assert fit.held_out_error < 1e-3


@pytest.mark.slow
def test_one_line_is_seldom_cut() -> None:
    cut = sum(len(fit_link(SIZES, drawn(seed, 0.05, 9)).pieces) > 1 for seed in range(100))
    assert cut <= 15


def test_a_kink_starts_where_the_lines_cross() -> None:
    def kinked(size: int) -> float:
        return min(10e-6 + size / 1e9, 220e-6 + size / 4e9)

    fit = fit_link(SIZES, [kinked(size) for size in SIZES])
    assert len(fit.pieces) == 2
    assert fit.pieces[1][0] == pytest.approx(210e-6 / (1 / 1e9 - 1 / 4e9), rel=0.01)


# ---- how far to believe it


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "number", "sizes"), first_in_test(2, [(0.02, 9, SIZES), (0.1, 1, SIZES), (0.15, 15, SIZES[::2])])
)
def test_intervals_hold_the_truth_as_often_as_they_say(noise: float, number: int, sizes: list[int]) -> None:
    are_held = [holds(fit_link(sizes, drawn(seed, noise, number, sizes=sizes))) for seed in range(200)]
    for share in np.mean(are_held, axis=0):
        assert 0.88 <= share <= 1.0


def test_intervals_are_no_wider_than_they_must_be() -> None:
    fit = fit_link(SIZES, drawn(0, 0.02, 20))
    low, high = fit.alpha_s_interval
    assert 0.002 < (high - low) / ALPHA_S < 0.1


def test_what_is_no_line_has_a_large_error_on_what_was_held_out() -> None:
    draw = np.random.default_rng(5)
    fit = fit_link(SIZES, [1e-3 * 10 ** draw.uniform(-1, 1) for _ in SIZES])
    assert fit.held_out_error > 0.3
    low, high = fit.alpha_s_interval
    assert high > 3 * max(low, 1e-9)


def test_sizes_held_out_are_not_fitted() -> None:
    times = drawn(6, 0.02, 1)
    other = [one * (1 + 9 * (place % 2)) for place, one in enumerate(times)]
    one, two = fit_link(SIZES, times), fit_link(SIZES, other)
    assert one.link == two.link
    assert one.held_out_error < 0.1
    assert two.held_out_error == pytest.approx(0.9, abs=0.05)
    assert one.num_held_out == 8
