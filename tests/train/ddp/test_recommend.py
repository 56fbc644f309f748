"""Which bucket cap is recommended, in what words, and that no cap tried is better."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rankscope.cluster import Link
from rankscope.train.ddp import Contention, LocalStep, cost, recommend, simulate
from rankscope.train.ddp.recommend import DEFAULT_CAPS_MB, CapCandidate, Recommendation

MIB = 1 << 20
RING = cost(Link(alpha_s=50e-6, bytes_per_s=2e9), num_ranks=8)


def layers(number: int, backward_s: float = 0.064) -> LocalStep:
    return LocalStep.modelled([MIB] * number, backward_s)


def caps_mb(candidates: Iterable[CapCandidate]) -> list[float | None]:
    return [candidate.bucket_cap_mb for candidate in candidates]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 8 * MIB), max_size=40),
    st.floats(0, 0.2),
    st.floats(0, 1e-3),
    st.floats(1e8, 1e11),
    st.floats(1, 3),
    st.floats(1, 3),
    st.integers(1, 3),
)
def test_each_candidate_is_a_simulated_step_and_none_is_much_better_than_the_chosen(
    sizes: list[int], backward_s: float, alpha_s: float, rate: float, slow: float, slower: float, accumulation: int
) -> None:
    local, contention = LocalStep.modelled(sizes, backward_s, optimizer_s=0.01), Contention(slow, slower)
    local = replace(local, unpack_s=backward_s / 10)
    wire = cost(Link(alpha_s, rate), num_ranks=4)
    advice = recommend(local, wire, contention=contention, accumulation=accumulation)
    for candidate in (advice.default, *advice.candidates):
        cap = candidate.bucket_cap_mb
        step = simulate(local, wire, bucket_cap_mb=cap, contention=contention, accumulation=accumulation)
        waits = step.select(kind="wait")
        assert candidate.num_buckets == len(step.select(kind="allreduce"))
        assert candidate.step_s == pytest.approx(step.makespan_s, abs=1e-12)
        assert candidate.wait_s == pytest.approx(float((waits.stop_s - waits.start_s).sum()), abs=1e-9)
        assert advice.chosen.step_s <= candidate.step_s * 1.01 + 1e-12
        if advice.chosen != advice.default and candidate.step_s < advice.chosen.step_s:
            assert candidate.num_buckets >= advice.chosen.num_buckets
    assert advice.alone_s <= min(candidate.step_s for candidate in advice.candidates) + 1e-12
    assert caps_mb(advice.candidates) == list(DEFAULT_CAPS_MB)


def test_where_nothing_is_gained_the_default_is_left_alone() -> None:
    advice = recommend(layers(20), cost(Link(0.0, 1e15), num_ranks=8))
    assert advice.bucket_cap_mb is None
    assert advice.gain == 0.0
    assert "keep the default" in str(advice)
    assert caps_mb(advice.neighbours) == [16, 32]


def by_hand(*steps: tuple[float, int, float], default_s: float = 1.0) -> Recommendation:
    """A recommendation of these caps, numbers of buckets and steps."""
    candidates = tuple(CapCandidate(cap, count, step_s, step_s / 4) for cap, count, step_s in steps)
    return Recommendation(candidates, CapCandidate(None, 2, default_s, 0.5), 0.1)


@pytest.mark.parametrize(
    ("steps", "chosen_mb"),
    [
        ([(1, 9, 0.5), (2, 5, 0.505), (4, 3, 0.6)], 2),  # fewer buckets, within 1 % of the shortest step
        ([(1, 9, 0.5), (2, 5, 0.5051), (4, 3, 0.6)], 1),  # just beyond 1 %
        ([(1, 9, 0.504), (4, 3, 0.503), (8, 3, 0.5), (16, 3, 0.501)], 8),  # of as many buckets, the shortest step
        ([(1, 9, 0.9902), (2, 5, 1.5)], None),  # 1 % less than the default is not enough
        ([(1, 9, 0.99), (2, 5, 1.5)], 1),
        ([(1, 20, 0.99), (2, 10, 0.9998)], 1),  # fewer buckets, but they save nothing
        ([], None),
    ],
)
def test_the_fewest_buckets_within_a_hundredth_of_the_shortest_step_are_recommended(
    steps: list[tuple[float, int, float]], chosen_mb: float | None
) -> None:
    assert by_hand(*steps).bucket_cap_mb == chosen_mb


def test_the_gain_and_the_neighbours_of_a_recommendation() -> None:
    half = by_hand((1, 9, 0.9), (2, 5, 0.5), (4, 3, 0.8), (8, 2, 0.9))
    assert half.gain == 0.5
    assert caps_mb(half.neighbours) == [1, 4]
    assert "bucket_cap_mb=2" in str(half)
    assert by_hand((1, 9, 0.0), default_s=0.0).gain == 0
    at_the_default = by_hand((8, 9, 1.0), (25, 5, 1.0), (32, 3, 1.0), (64, 2, 1.0))
    assert at_the_default.bucket_cap_mb is None
    assert caps_mb(at_the_default.neighbours) == [8, 32]


def test_a_recommendation_is_for_one_micro_batch_that_overlaps() -> None:
    advice = recommend(layers(8), RING, caps_mb=[2])
    assert advice == recommend(layers(8), RING, caps_mb=[2], accumulation=1, overlap=True)
    assert advice != recommend(layers(8), RING, caps_mb=[2], overlap=False)
    assert advice != recommend(layers(8), RING, caps_mb=[2], accumulation=2)
