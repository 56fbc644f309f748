"""The fit finds the contention that steps were made with, from one of them, and says where there is none to find."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rankscope.ddp.contention import OverlappedStep, fit_contention
from rankscope.ddp.cost import CostTable
from rankscope.ddp.local_step import Contention, LocalStep
from rankscope.ddp.overlap import simulate_step

MIB = 2**20
LOCAL = LocalStep.modelled([4 * MIB] * 10, backward_s=0.4, optimizer_s=0.01)
LOCAL = replace(LOCAL, unpack_s=0.02)
COST = CostTable((0.0, 100e6), (1e-3, 0.4))
BUCKETS = tuple((place, place - 1) for place in range(9, 0, -2))


def made(contention: Contention, buckets: tuple[tuple[int, ...], ...] = BUCKETS) -> OverlappedStep:
    return OverlappedStep.of(simulate_step(LOCAL, COST, buckets=buckets, contention=contention), buckets)


@pytest.mark.parametrize("pair", [(1.2, 2.0), (1.5, 4.0), (1.9, 1.2), (2.0, 7.0)])
def test_one_step_tells_what_all_others_take(pair: tuple[float, float]) -> None:
    fitted = fit_contention([made(Contention(*pair))], LOCAL, COST)
    for size in (1, 3, 5):
        buckets = tuple(tuple(range(first, max(first - size, -1), -1)) for first in range(9, -1, -size))
        assert made(fitted, buckets).step_s == pytest.approx(made(Contention(*pair), buckets).step_s, rel=0.002)


@pytest.mark.parametrize("pair", [(1.0, 1.0), (1.3, 2.5), (1.0, 6.0)])
def test_both_numbers_are_found_where_the_backward_outlasts_a_bucket(pair: tuple[float, float]) -> None:
    fitted = fit_contention([made(Contention(*pair))], LOCAL, COST)
    assert (fitted.compute, fitted.communication) == pytest.approx(pair, rel=0.02)


def test_of_steps_that_disagree_it_takes_the_middle() -> None:
    steps = [made(Contention(1.2, 2.0)), made(Contention(1.6, 2.0))]
    assert 1.2 < fit_contention(steps, LOCAL, COST).compute < 1.6


def test_several_micro_batches_are_refused() -> None:
    timeline = simulate_step(LOCAL, COST, buckets=BUCKETS, contention=Contention(1.5, 2.0), accumulation=3)
    with pytest.raises(ValueError, match="timeline must have one backward, that of the only micro-batch, got 3"):
        OverlappedStep.of(timeline, BUCKETS)


def test_one_bucket_says_nothing() -> None:
    bucket = (tuple(range(10)),)
    with pytest.raises(ValueError, match="steps must have one whose allreduces start before the backward ends"):
        fit_contention([made(Contention(), bucket)], LOCAL, COST)
    assert fit_contention([made(Contention(1.4, 2.0)), made(Contention(), bucket)], LOCAL, COST).compute > 1.3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: fit_contention([], LOCAL, COST), "steps must have one whose allreduces"),
        (lambda: fit_contention([3], LOCAL, COST), "steps must be an OverlappedStep, got 3"),  # type: ignore[list-item]
        (lambda: fit_contention([made(Contention())], 3, COST), "local must be a LocalStep, got 3"),  # type: ignore[arg-type]
        (lambda: fit_contention(3, LOCAL, COST), "steps must be a list of OverlappedStep values, got 3"),  # type: ignore[arg-type]
        (lambda: OverlappedStep(3, 1, 1), "buckets must be lists of places of parameters, got 3"),  # type: ignore[arg-type]
        (lambda: OverlappedStep.of(3, BUCKETS), "timeline must be a Timeline, got 3"),  # type: ignore[arg-type]
        (lambda: OverlappedStep(((0,),), -1, 1), "backward_s must be a finite number of at least 0, got -1"),
        (lambda: OverlappedStep(((0,),), 2, 1), "step_s must be a finite number of at least 2"),
        (lambda: OverlappedStep(((0,),), 0, 0), "step_s must be a finite number above 0, got 0.0"),
        (lambda: OverlappedStep(((-1,),), 1, 1), "buckets must be a whole number of at least 0, got -1"),
        (lambda: fit_contention([OverlappedStep(((0,),), 1, 1)], LOCAL, COST), "buckets must hold"),
    ],
)
def test_bad_input_is_told(wrong, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        wrong()


def test_a_backward_that_never_waits_leaves_the_wire_its_time() -> None:
    slow = CostTable((0.0, 100e6), (0.0, 40.0))  # the wire is all there is: contention cannot be seen in the step
    found = OverlappedStep.of(simulate_step(LOCAL, slow, buckets=BUCKETS), BUCKETS)
    fitted = fit_contention([found], LOCAL, slow)
    again = OverlappedStep.of(simulate_step(LOCAL, slow, buckets=BUCKETS, contention=fitted), BUCKETS)
    assert np.isclose(again.step_s, found.step_s, rtol=0.001)
