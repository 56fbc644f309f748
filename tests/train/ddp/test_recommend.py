"""Which bucket cap is recommended, and that no cap at all is much better."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from msgspec.structs import replace

from rankscope.cluster import Link
from rankscope.train.ddp import Contention, LocalStep, cost, recommend, simulate
from rankscope.train.ddp.recommend import CapCandidate, Recommendation

MIB = 1 << 20


def every_cap_mb(local: LocalStep) -> list[float]:
    """A cap for each way in which buckets can be filled: all distances between sums of gradients in their order."""
    sizes = [gradient.num_bytes for gradient in local.gradients]
    return sorted({sum(sizes[first:last]) / MIB for last in range(len(sizes) + 1) for first in range(last)})


@pytest.mark.parametrize("first", [0, 20, 40])
def test_no_cap_is_more_than_a_hundredth_better(first: int) -> None:
    """The search takes steps of 2 % from a hundredth of the bytes up; this tries all caps."""
    for seed in range(first, first + 20):
        draw = random.Random(seed)
        sizes = [int(10 ** draw.uniform(3, 7)) for _ in range(draw.randint(1, 20))]
        local = LocalStep.modelled(sizes, draw.uniform(0.001, 0.05))
        local = replace(local, unpack_s=draw.choice([0.0, 0.005]))
        wire = cost(Link(10 ** draw.uniform(-6, -3), 10 ** draw.uniform(8, 11)), num_ranks=4)
        slower = Contention(draw.uniform(1, 2), draw.uniform(1, 3))
        advice = recommend(local, wire, contention=slower)
        exhaustive = recommend(local, wire, contention=slower, caps_mb=every_cap_mb(local))
        least_s = min(exhaustive.shortest.step_s, exhaustive.default.step_s)
        assert advice.shortest.step_s <= 1.01 * least_s, seed
        assert advice.chosen.step_s <= 1.021 * least_s, seed
        for candidate in (advice.default, advice.chosen, advice.shortest):
            step = simulate(local, wire, bucket_cap_mb=candidate.bucket_cap_mb, contention=slower)
            assert candidate.step_s == pytest.approx(step.makespan_s)
            assert candidate.wait_s == pytest.approx(step.select(kind="wait").busy_s, abs=1e-12)
            assert candidate.num_buckets == len(step.select(kind="allreduce"))


def by_hand(*steps: tuple[float, int, float], default_s: float = 1.0) -> Recommendation:
    candidates = tuple(CapCandidate(cap, count, step_s, step_s / 4) for cap, count, step_s in steps)
    return Recommendation(candidates, CapCandidate(None, 2, default_s, 0.5), 0.1)


@pytest.mark.parametrize(
    ("steps", "chosen_mb"),
    [
        ([(1, 9, 0.5), (2, 5, 0.505), (4, 3, 0.6)], 2),  # fewer buckets, within 1 % of the shortest step
        ([(1, 9, 0.5), (2, 5, 0.5051), (4, 3, 0.6)], 1),  # just beyond 1 %
        ([(1, 9, 0.504), (4, 3, 0.503), (8, 3, 0.5), (16, 3, 0.501)], 8),  # of as many buckets, the shortest step
        ([(1, 9, 0.9902), (2, 5, 1.5)], None),  # 1 % less than the default is not enough
        ([(1, 20, 0.99), (2, 10, 0.9998)], 1),  # fewer buckets, but they save nothing
        ([], None),
    ],
)
def test_the_fewest_buckets_within_a_hundredth_of_the_shortest_step_are_recommended(
    steps: list[tuple[float, int, float]], chosen_mb: float | None
) -> None:
    assert by_hand(*steps).bucket_cap_mb == chosen_mb
    assert f"bucket_cap_mb={chosen_mb}" in repr(by_hand(*steps)) or chosen_mb is None


SMALL = [50690, 103498, 4620, 37610, 17179, 1527, 13691, 855063]
LARGE = [26270, 556228, 922776, 693305, 73989, 1490, 42759, 5189864, 381698, 972096, 4789, 15141, 8997368, 11642]
LARGE += [414127, 863549, 4303, 2029]


@pytest.mark.parametrize(
    ("sizes", "backward_s", "wire", "gain"),
    [(SMALL, 0.01048, cost(Link(2.6e-5, 0.529e9), 4), 0.119), (LARGE, 0.0172, cost(Link(4.25e-4, 14.1e9), 8), 0.093)],
)
def test_a_gain_between_powers_of_two_is_found(sizes: list[int], backward_s: float, wire: Any, gain: float) -> None:
    local = replace(LocalStep.modelled(sizes, backward_s), unpack_s=0.005)
    advice = recommend(local, wire)
    assert 1 - advice.chosen.step_s / advice.default.step_s == pytest.approx(gain, abs=0.001)
    assert recommend(local, wire, caps_mb=[2**power for power in range(10)]).bucket_cap_mb is None
    assert math.log2(advice.bucket_cap_mb or 1) % 1


def test_without_overlap_one_bucket_is_never_slower() -> None:
    layers = LocalStep.modelled([MIB] * 64, 0.064)
    ring = cost(Link(50e-6, 2e9), num_ranks=8)
    assert recommend(layers, ring).bucket_cap_mb == 8
    assert recommend(layers, ring, overlap=False).chosen.num_buckets == 1
    assert recommend(LocalStep.modelled([], 0.0), ring).bucket_cap_mb is None  # a step that takes no time
