"""The fit finds the contention that steps were made with, from one of them, and says if there is none to find."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from rankscope.train.ddp import Contention, LocalStep, contention, simulate
from rankscope.train.ddp.buckets import Buckets
from rankscope.train.ddp.contention import OverlappedStep, fit_contention
from rankscope.train.ddp.cost import CostTable

MIB = 2**20
LOCAL = LocalStep.modelled([4 * MIB] * 10, backward_s=0.4, optimizer_s=0.01, unpack_s=0.02)
COST = CostTable((0.0, 100e6), (1e-3, 0.4))
PAIRS = [(place, place - 1) for place in range(9, 0, -2)]
ONE_BUCKET = [range(10)]


def overlapped(
    contention: Contention, buckets: Iterable[Iterable[int]] = PAIRS, cost: CostTable = COST
) -> OverlappedStep:
    step = simulate(LOCAL, cost, buckets=buckets, contention=contention)
    return OverlappedStep(Buckets(buckets), step.select(kind="backward").busy_s, step.end_s)


@pytest.mark.slow
@pytest.mark.parametrize("pair", [(1.2, 2.0), (1.9, 1.2), (2.0, 7.0)])
def test_one_step_tells_what_all_others_take(pair: tuple[float, float]) -> None:
    fitted = fit_contention([overlapped(Contention(*pair))], LOCAL, COST)
    for size in (1, 3, 5):
        buckets = [range(first, max(first - size, -1), -1) for first in range(9, -1, -size)]
        expected_s = overlapped(Contention(*pair), buckets).step_s
        assert overlapped(fitted, buckets).step_s == pytest.approx(expected_s, rel=0.002)


@pytest.mark.slow
@pytest.mark.parametrize("pair", [(1.0, 1.0), (1.3, 2.5), (1.0, 6.0)])
def test_both_numbers_are_found_if_the_backward_outlasts_a_bucket(pair: tuple[float, float]) -> None:
    fitted = fit_contention([overlapped(Contention(*pair))], LOCAL, COST)
    assert (fitted.compute, fitted.communication) == pytest.approx(pair, rel=0.02)


def test_one_bucket_says_nothing() -> None:
    one_bucket = overlapped(Contention(), ONE_BUCKET)
    for steps in ([], [one_bucket]):
        with pytest.raises(ValueError, match="steps must have one whose allreduces start before the backward ends"):
            fit_contention(steps, LOCAL, COST)
    assert fit_contention([overlapped(Contention(1.4, 2.0)), one_bucket], LOCAL, COST).compute > 1.3


def test_a_backward_that_never_waits_leaves_the_wire_its_time() -> None:
    slow = CostTable((0.0, 100e6), (0.0, 40.0))  # the wire is all there is: contention cannot be seen in the step
    step = overlapped(Contention(), cost=slow)
    fitted = fit_contention([step], LOCAL, slow)
    assert overlapped(fitted, cost=slow).step_s == pytest.approx(step.step_s, rel=0.001)


def test_the_unit_of_time_does_not_matter_to_a_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps that no contention explains both: the fit is a compromise, and depends on how errors are weighted."""
    monkeypatch.setattr(contention, "_STARTS", [1.5])  # one start is enough here
    observed = [overlapped(Contention(1.2, 1.5)), overlapped(Contention(1.6, 2.5))]
    fitted = fit_contention(observed, LOCAL, COST)
    slower = [step._replace(backward_s=1000 * step.backward_s, step_s=1000 * step.step_s) for step in observed]
    times_s = (LOCAL.ready_s, LOCAL.forward_s, LOCAL.backward_s, LOCAL.optimizer_s, LOCAL.unpack_s)
    local = LocalStep(LOCAL.parameters, *[1000 * seconds for seconds in times_s])
    again = fit_contention(slower, local, lambda num_bytes: 1000 * COST(num_bytes))
    assert (again.compute, again.communication) == pytest.approx((fitted.compute, fitted.communication), rel=1e-3)
    assert 1.2 < fitted.compute < 1.6
