"""A rank's own step, and what it takes with allreduces: by hand, and against SimPy."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from rankscope.timeline import Timeline
from rankscope.train.ddp import Contention, Gradient, LocalStep, simulate

from .simpy_reference import reference

MIB = 1 << 20


def proportional(mib_per_s: float) -> Any:
    return lambda num_bytes: num_bytes / (mib_per_s * MIB)


def four(**changed: Any) -> LocalStep:
    """Four gradients of 1 MiB, ready after 1, 2, 3, 4 s of the backward, the last first."""
    return replace(LocalStep.modelled([MIB] * 4, 4.0, forward_s=2.0), **{"optimizer_s": 0.5, **changed})


def spans(timeline: Timeline, kind: str) -> list[tuple[int, float, float]]:
    return [(span.item, round(span.start_s, 9), round(span.stop_s, 9)) for span in timeline.select(kind=kind)]


def test_gradients_that_are_ready_at_the_same_time_come_as_the_backward_does() -> None:
    assert four(ready_s=[4.0, 1.0, 1.0, 1.0]).buckets(0) == ((3,), (2,), (1,), (0,))
    assert four(ready_s=[4.0, 1.0, 3.0, 2.0]).buckets(2) == ((1, 3), (2, 0))
    assert four(ready_s=[4.0, math.nan, 3.0, 2.0]).buckets(2) == ((2, 3), (0, 1))  # in the order of definition


def test_a_modelled_backward_takes_shares_of_the_bytes() -> None:
    by_bytes = LocalStep.modelled([100, 300], backward_s=1.0)
    assert by_bytes.ready_s.tolist() == [1.0, 0.75]
    assert by_bytes.forward_s == 0.5
    assert LocalStep.modelled([0, 0], backward_s=1.0).ready_s.tolist() == [0.0, 0.0]
    empty = LocalStep((), np.empty(0), 1.0, 2.0, 0.5)
    assert simulate(empty, proportional(1.0)).makespan_s == 3.5


def test_a_bucket_is_reduced_while_the_backward_goes_on() -> None:
    step = simulate(four(), proportional(2.0), bucket_cap_mb=1)
    assert spans(step, "forward") == [(0, 0, 2)]
    assert spans(step, "backward") == [(0, 2, 6)]
    assert spans(step, "allreduce") == [(0, 3, 3.5), (1, 4, 4.5), (2, 5, 5.5), (3, 6, 6.5)]
    assert spans(step, "wait") == [(-1, 6, 6.5)]
    assert spans(step, "optimizer") == [(-1, 6.5, 7)]
    in_turn = simulate(four(), proportional(2.0), bucket_cap_mb=1, overlap=False)
    assert spans(in_turn, "allreduce") == [(0, 6, 6.5), (1, 6.5, 7), (2, 7, 7.5), (3, 7.5, 8)]
    three_passes = simulate(four(), proportional(2.0), bucket_cap_mb=1, accumulation=3)
    assert spans(three_passes, "backward") == [(0, 2, 6), (1, 8, 12), (2, 14, 18)]
    assert spans(three_passes, "allreduce") == spans(step.shifted(12), "allreduce")


def test_computing_and_communicating_slow_each_other_down() -> None:
    # From 3 on (1 s of backward done, 3 left) an allreduce of 1.5 s: 1.5 · 2 = 3 s, in which 3 / 1.5 = 2 s of backward
    # are done; the last second runs alone.
    step = simulate(four(), lambda b: 1.5, buckets=[[3], [2, 1, 0]], contention=Contention(1.5, 2.0))
    assert spans(step, "allreduce") == [(0, 3, 6), (1, 7, 8.5)]
    assert spans(step, "backward") == [(0, 2, 7)]


def drawn_case(seed: int) -> dict[str, Any]:
    """One of few gradients; half of them in whole and half seconds, so that many things happen at once."""
    draw = random.Random(seed)
    number = draw.randint(1, 12 if seed % 2 else 5)

    def seconds() -> float:
        return draw.uniform(0, 10) if seed % 2 else draw.choice([0.0, 0.5, 1.0, 2.0, 3.5])

    backward_s = seconds()
    shares = [0.0, 0.25, 0.5, 1.0, 1.0, math.nan, draw.random(), draw.random()]
    gradients = tuple(Gradient(str(n), draw.choice([0, 1, 2, 5, 1000])) for n in range(number))
    ready_s = np.array([draw.choice(shares) * backward_s for _ in range(number)])
    order = draw.sample(range(number), number)
    cuts = sorted({0, number, *[draw.randint(0, number) for _ in range(4)]})
    return {
        "local": LocalStep(gradients, ready_s, seconds(), backward_s, seconds(), draw.choice([0.0, seconds()])),
        "buckets": [order[first:last] for first, last in pairwise(cuts)],
        "alpha_s": seconds(),
        "beta": draw.choice([0.0, 0.5, 0.001]),
        "contention": Contention(draw.choice([1.0, 1.5, 3.1]), draw.choice([1.0, 2.0, 7.3])),
        "overlap": draw.random() < 0.8,
        "accumulation": draw.randint(1, 3),
    }


@pytest.mark.parametrize("first", [0, 100, 200, 300])
def test_it_is_what_simpy_finds(first: int) -> None:
    for seed in range(first, first + 100):
        case = drawn_case(seed)
        step = simulated(case)
        assert_as_simpy(case, step)
        if len(step.select(kind="allreduce")) > 1 and case["alpha_s"] > 0:
            with pytest.raises(AssertionError):
                assert_as_simpy({**case, "alpha_s": 1.01 * case["alpha_s"]}, step)


def simulated(case: dict[str, Any]) -> Timeline:
    options = {name: case[name] for name in ("buckets", "contention", "overlap", "accumulation")}
    return simulate(case["local"], lambda b: case["alpha_s"] + b * case["beta"], **options)


def assert_as_simpy(case: dict[str, Any], step: Timeline) -> None:
    step.check()
    local, passes = case["local"], case["accumulation"]

    def cost(num_bytes: float) -> float:
        return float(case["alpha_s"] + num_bytes * case["beta"])

    begin_s = passes * local.forward_s + (passes - 1) * local.backward_s
    expected = {}
    for (kind, item), times in reference(local, case["buckets"], cost, case["contention"], case["overlap"]).items():
        expected[kind, passes - 1 if kind == "backward" else item] = begin_s + np.array(times)
    found = {(span.kind, span.item): (span.start_s, span.stop_s) for span in step}
    for key, (start_s, stop_s) in expected.items():
        if key[0] != "unpack" or stop_s - start_s > 1e-9:  # else there is nothing to show
            assert found[key] == pytest.approx((start_s, stop_s), rel=1e-9, abs=1e-9), key
    end_s = max(stop_s for _, stop_s in expected.values())
    assert step.makespan_s == pytest.approx(end_s + local.optimizer_s, rel=1e-9, abs=1e-9)
