"""A rank's own step, and what it takes with allreduces: by hand, against SimPy, and where nothing overlaps."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import nn

from rankscope.timeline import Timeline
from rankscope.train.ddp import Contention, LocalStep, simulate
from rankscope.train.ddp.buckets import Buckets, ParameterSpec
from rankscope.train.ddp.step import default_buckets, launches

from .simpy_reference import reference

MIB = 1 << 20


def proportional(mib_per_s: float) -> Any:
    return lambda num_bytes: num_bytes / (mib_per_s * MIB)


def four(**changed: Any) -> LocalStep:
    """Four tensors of 1 MiB, ready after 1, 2, 3, 4 s of the backward, the last first."""
    return replace(LocalStep.modelled([MIB] * 4, 4.0, forward_s=2.0, optimizer_s=0.5), **changed)


def spans(timeline: Timeline, kind: str) -> list[tuple[int, float, float]]:
    return [(span.item, round(span.start_s, 9), round(span.stop_s, 9)) for span in timeline.select(kind=kind)]


# ---- what a rank does by itself


def two(**changed: Any) -> LocalStep:
    parameters = (ParameterSpec("a", 4), ParameterSpec("b", 8))
    return LocalStep(
        **{"parameters": parameters, "ready_s": [0.2, 0.1], "forward_s": 0.1, "backward_s": 0.2, **changed}
    )


def test_gradients_that_are_ready_at_the_same_time_come_as_the_backward_does() -> None:
    specs = tuple(ParameterSpec(name, 4) for name in "abcd")
    assert two(parameters=specs, ready_s=[0.2, 0.1, 0.1, 0.1]).ready_order == (3, 2, 1, 0)
    assert two(parameters=specs, ready_s=[0.0, math.nan, 0.2, 0.1]).ready_order == (0, 3, 2)


def test_a_modelled_backward_takes_shares_of_the_bytes() -> None:
    by_bytes = LocalStep.modelled([100, 300], backward_s=1.0)
    assert by_bytes.ready_s.tolist() == [1.0, 0.75]
    assert by_bytes.forward_s == 0.5
    assert [spec.name for spec in LocalStep.modelled([100, ParameterSpec("w", 300)], 1.0).parameters] == ["0", "w"]
    of_module = LocalStep.modelled(nn.Linear(3, 1), 1.0)
    assert [(spec.name, spec.num_bytes) for spec in of_module.parameters] == [("weight", 12), ("bias", 4)]
    assert of_module.ready_s.tolist() == [1.0, 0.25]


def test_no_bytes_take_no_time() -> None:
    assert LocalStep.modelled([0, 0], backward_s=1.0).ready_s.tolist() == [0.0, 0.0]
    assert LocalStep.modelled([], backward_s=1.0).ready_order == ()


# ---- a step by hand


def test_a_bucket_is_reduced_while_the_backward_goes_on() -> None:
    step = simulate(four(), proportional(2.0), bucket_cap_mb=1)
    assert spans(step, "forward") == [(0, 0, 2)]
    assert spans(step, "backward") == [(0, 2, 6)]
    assert spans(step, "allreduce") == [(0, 3, 3.5), (1, 4, 4.5), (2, 5, 5.5), (3, 6, 6.5)]
    assert spans(step, "wait") == [(-1, 6, 6.5)]
    assert spans(step, "optimizer") == [(-1, 6.5, 7)]
    assert {span.lane for span in step if span.kind != "allreduce"} == {"compute"}
    assert {span.lane for span in step if span.kind == "allreduce"} == {"allreduce"}


def test_computing_and_communicating_slow_each_other_down() -> None:
    # From 3 on (1 s of backward done, 3 left) an allreduce of 1.5 s: 1.5 · 2 = 3 s, in which 3 / 1.5 = 2 s of backward
    # are done; the last second runs alone.
    step = simulate(four(), lambda b: 1.5, buckets=[[3], [2, 1, 0]], contention=Contention(1.5, 2.0))
    assert spans(step, "allreduce") == [(0, 3, 6), (1, 7, 8.5)]
    assert spans(step, "backward") == [(0, 2, 7)]
    # An allreduce of 4 s outlives the backward: 3 s of it take 4.5 s, in which 2.25 s of the allreduce are done.
    step = simulate(four(), lambda b: 4.0, buckets=[[3], [2, 1, 0]], contention=Contention(1.5, 2.0))
    assert spans(step, "allreduce") == [(0, 3, 9.25), (1, 9.25, 13.25)]
    assert spans(step, "backward") == [(0, 2, 7.5)]


def test_buckets_are_unpacked_in_turn_while_others_are_still_on_the_wire() -> None:
    local = four(unpack_s=4.0)  # 1 s a tensor
    step = simulate(local, proportional(1.0), buckets=[[3], [2], [1], [0]])
    assert spans(step, "allreduce") == [(0, 3, 4), (1, 4, 5), (2, 5, 6), (3, 6, 7)]
    assert spans(step, "unpack") == [(0, 6, 7), (1, 7, 8), (2, 8, 9), (3, 9, 10)]
    assert "wait" not in step.kinds
    # Both at half the speed: from 4.5 on, 2 s of the backward take 4 s, in which 2 of the second bucket's 4.5 s are
    # done. 1 s of unpacking takes 2 s, in which 1 s more is done; the rank waits for the last 1.5 s. Then 1 s of
    # unpacking and the 1 s of the third bucket go on together.
    costs, twice = lambda b: [0.5, 4.5, 1.0], Contention(2.0, 2.0)
    slow = simulate(local, costs, buckets=[[3], [2], [1, 0]], contention=twice)
    assert spans(slow, "allreduce") == [(0, 3, 4), (1, 4.5, 12), (2, 12, 14)]
    assert spans(slow, "backward") == [(0, 2, 8.5)]
    assert spans(slow, "unpack") == [(0, 8.5, 10.5), (1, 12, 14), (2, 14, 16)]
    assert spans(slow, "wait") == [(-1, 10.5, 12)]


def test_with_accumulation_only_the_last_micro_batch_communicates() -> None:
    step = simulate(four(), proportional(2.0), bucket_cap_mb=1, accumulation=3)
    assert spans(step, "forward") == [(0, 0, 2), (1, 6, 8), (2, 12, 14)]
    assert spans(step, "backward") == [(0, 2, 6), (1, 8, 12), (2, 14, 18)]
    once = simulate(four(), proportional(2.0), bucket_cap_mb=1).select(kind="allreduce").shifted(12)
    assert spans(step, "allreduce") == spans(once, "allreduce")


def test_a_module_without_parameters_communicates_nothing() -> None:
    empty = LocalStep((), [], 1.0, 2.0, 0.5)  # type: ignore[arg-type]
    assert simulate(empty, proportional(1.0)).makespan_s == 3.5
    assert launches(empty, Buckets([])).num_bytes.size == launches(empty, Buckets([])).launch_s.size == 0


def test_a_step_overlaps_one_micro_batch_on_one_optimizer_by_default() -> None:
    explicit = simulate(four(), proportional(2.0), contention=Contention(1.0, 1.0), accumulation=1, overlap=True)
    assert list(simulate(four(), proportional(2.0))) == list(explicit)
    bare = LocalStep.modelled([MIB], 1.0)
    assert (bare.optimizer_s, bare.unpack_s) == (0, 0)
    assert simulate(bare, proportional(1.0)).kinds.count("optimizer") == 0
    without_overlap = simulate(four(), proportional(2.0), bucket_cap_mb=1, overlap=False)
    assert spans(without_overlap, "allreduce") == [(0, 6, 6.5), (1, 6.5, 7), (2, 7, 7.5), (3, 7.5, 8)]


def test_buckets_are_unpacked_in_proportion_to_their_bytes() -> None:
    local = LocalStep.modelled([1, 2], 1.0, unpack_s=3.0)
    step = simulate(local, lambda num_bytes: 0.0, buckets=[[0], [1]])
    assert spans(step, "unpack") == [(0, 1.5, 2.5), (1, 2.5, 4.5)]
    empty = LocalStep.modelled([0], 1.0, unpack_s=3.0)
    assert spans(simulate(empty, lambda num_bytes: 0.5), "unpack") == []


# ---- against SimPy, and of buckets against DDP's


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    number = draw(st.integers(1, 12))
    seconds = st.floats(0, 10, allow_subnormal=False).map(lambda value: round(value, 3))
    backward_s = draw(seconds)
    share = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0, math.nan]))
    ready_s = np.array([draw(share) * backward_s for _ in range(number)])
    order = draw(st.permutations(range(number)))
    cuts = sorted(draw(st.sets(st.integers(1, number), max_size=6)) | {number})
    parameters = tuple(ParameterSpec(f"{n}", draw(st.integers(0, 1000))) for n in range(number))
    unpack = st.one_of(st.just(0.0), seconds)
    slow = st.one_of(st.just(1.0), st.floats(1, 5))
    return {
        "local": LocalStep(parameters, ready_s, draw(seconds), backward_s, draw(seconds), draw(unpack)),
        "buckets": Buckets([order[low:high] for low, high in zip([0, *cuts], cuts, strict=False)]),
        "alpha_s": draw(seconds),
        "beta": draw(st.floats(0, 0.01)),
        "contention": Contention(draw(slow), draw(slow)),
        "overlap": draw(st.booleans()),
        "accumulation": draw(st.integers(1, 3)),
    }


def drawn_case(draw: random.Random) -> dict[str, Any]:
    """One of few parameters, in whole and half seconds, in which many things happen at once."""
    number = draw.randint(1, 5)
    seconds = [0.0, 0.5, 1.0, 2.0, 3.5]
    backward_s = draw.choice([1.0, 2.0, 4.0])
    shares = [0.0, 0.25, 0.5, 1.0, 1.0, math.nan]
    parameters = tuple(ParameterSpec(f"{n}", draw.choice([0, 1, 2, 5])) for n in range(number))
    ready_s = np.array([draw.choice(shares) * backward_s for _ in range(number)])
    order = draw.sample(range(number), number)
    cut = draw.randint(1, number)
    unpack_s = draw.choice([0.0, 1.5])
    return {
        "local": LocalStep(parameters, ready_s, draw.choice(seconds), backward_s, draw.choice(seconds), unpack_s),
        "buckets": Buckets([part for part in (order[:cut], order[cut:]) if part]),
        "alpha_s": draw.choice(seconds),
        "beta": draw.choice([0.0, 0.5]),
        "contention": Contention(draw.choice([1.0, 1.5]), draw.choice([1.0, 2.0])),
        "overlap": draw.random() < 0.8,
        "accumulation": draw.randint(1, 3),
    }


def test_small_steps_are_what_simpy_finds() -> None:
    draw = random.Random(0)
    for _ in range(60):
        compare_with_simpy(drawn_case(draw))


@pytest.mark.slow
@settings(max_examples=250, deadline=None, derandomize=True)
@given(cases())
def test_it_is_what_simpy_finds(case: dict[str, Any]) -> None:
    compare_with_simpy(case)


def compare_with_simpy(case: dict[str, Any]) -> None:
    local, buckets, contention, overlap = (case[name] for name in ("local", "buckets", "contention", "overlap"))

    def cost(num_bytes: Any) -> Any:
        return case["alpha_s"] + num_bytes * case["beta"]

    rounds = case["accumulation"]
    step = simulate(local, cost, buckets=buckets, contention=contention, overlap=overlap, accumulation=rounds)
    step.check()
    assert {span.rank for span in step} <= {0}
    start_s = rounds * local.forward_s + (rounds - 1) * local.backward_s
    expected = {
        key: (start + start_s, stop + start_s)
        for key, (start, stop) in reference(local, buckets, cost, contention, overlap).items()
    }
    expected["backward", rounds - 1] = expected.pop(("backward", 0))
    simulated = {(span.kind, span.item): (span.start_s, span.stop_s) for span in step}
    for key, times in expected.items():
        if key[0] == "unpack" and times[1] - times[0] < 1e-9:
            continue  # nothing to show
        assert simulated[key] == pytest.approx(times, rel=1e-9, abs=1e-9), key
    end_s = max(stop for _, stop in expected.values())
    assert step.makespan_s == pytest.approx(end_s + local.optimizer_s, rel=1e-9, abs=1e-9)


def test_a_parameter_without_a_gradient_does_not_delay_its_bucket() -> None:
    local = four(ready_s=[4.0, math.nan, 2.0, 0.5])
    assert launches(local, Buckets([[3, 1], [2, 0]])).launch_s.tolist() == [0.5, 4.0]


def test_gradients_of_other_dtypes_and_sparse_ones_have_buckets_of_their_own() -> None:
    specs = [ParameterSpec("a", MIB), ParameterSpec("b", MIB, "bfloat16"), ParameterSpec("c", MIB, sparse=True)]
    mixed = LocalStep.modelled(specs, 3.0)
    assert launches(mixed, default_buckets(mixed, 25)).launch_s.tolist() == [1.0, 3.0, 3.0]
    assert len(default_buckets(four(), 1e308)) == 1


# ---- what is refused
