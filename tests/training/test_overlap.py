"""What a step of backward and allreduces takes, against SimPy, by hand, and where nothing overlaps."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.cluster import Link
from rankscope.ddp.buckets import ddp_buckets
from rankscope.ddp.cost import allreduce_cost
from rankscope.ddp.launches import default_buckets, default_launches, launches
from rankscope.ddp.local_step import Contention, LocalStep, ParameterSpec
from rankscope.ddp.overlap import simulate_step, step_seconds
from rankscope.timeline import Timeline

from .simpy_reference import reference

MIB = 1 << 20


def proportional(mib_per_s: float) -> Any:
    return lambda num_bytes: num_bytes / (mib_per_s * MIB)


def four(backward_s: float = 4.0, forward_s: float = 2.0, optimizer_s: float = 0.5) -> LocalStep:
    """Four tensors of 1 MiB, ready after 1, 2, 3, 4 s of the backward, the last first."""
    return LocalStep.modelled([MIB] * 4, backward_s, forward_s=forward_s, optimizer_s=optimizer_s)


def spans(timeline: Timeline, kind: str) -> list[tuple[int, float, float]]:
    return [(span.item, round(span.start_s, 9), round(span.stop_s, 9)) for span in timeline.select(kind=kind)]


# ---- by hand


def test_a_bucket_is_reduced_while_the_backward_goes_on() -> None:
    step = simulate_step(four(), proportional(2.0), bucket_cap_mb=1)
    assert spans(step, "forward") == [(0, 0, 2)]
    assert spans(step, "backward") == [(0, 2, 6)]
    assert spans(step, "allreduce") == [(0, 3, 3.5), (1, 4, 4.5), (2, 5, 5.5), (3, 6, 6.5)]
    assert spans(step, "wait") == [(-1, 6, 6.5)]
    assert spans(step, "optimizer") == [(-1, 6.5, 7)]
    assert {(lane, kind) for _, lane, kind, *_ in step} == {
        ("compute", "forward"), ("compute", "backward"), ("compute", "wait"), ("compute", "optimizer"),
        ("allreduce", "allreduce"),
    }  # fmt: skip


def test_an_allreduce_waits_for_those_before_it() -> None:
    step = simulate_step(four(), proportional(0.5), bucket_cap_mb=1)
    assert spans(step, "allreduce") == [(0, 3, 5), (1, 5, 7), (2, 7, 9), (3, 9, 11)]


def test_a_bucket_waits_for_the_launch_of_those_before_it() -> None:
    step = simulate_step(four(), proportional(2.0), buckets=[[3, 0], [2], [1]])
    assert spans(step, "allreduce") == [(0, 6, 7), (1, 7, 7.5), (2, 7.5, 8)]


def test_what_goes_on_at_once_holds_each_other_up() -> None:
    # From 3 on (1 s of backward done, 3 left) an allreduce of 1.5 s: 1.5 · 2 = 3 s, in which 3 / 1.5 = 2 s of backward
    # are done; the last second runs alone.
    step = simulate_step(four(), lambda b: 1.5, buckets=[[3], [2, 1, 0]], contention=Contention(1.5, 2.0))
    assert spans(step, "allreduce") == [(0, 3, 6), (1, 7, 8.5)]
    assert spans(step, "backward") == [(0, 2, 7)]
    # An allreduce of 4 s outlives the backward: 3 s of it take 4.5 s, in which 2.25 s of the allreduce are done.
    step = simulate_step(four(), lambda b: 4.0, buckets=[[3], [2, 1, 0]], contention=Contention(1.5, 2.0))
    assert spans(step, "allreduce") == [(0, 3, 9.25), (1, 9.25, 13.25)]
    assert spans(step, "backward") == [(0, 2, 7.5)]


def test_buckets_are_unpacked_in_turn_beside_what_is_still_on_the_wire() -> None:
    local = dataclasses.replace(four(), unpack_s=4.0)  # 1 s a tensor
    step = simulate_step(local, proportional(1.0), buckets=[[3], [2], [1], [0]])
    assert spans(step, "allreduce") == [(0, 3, 4), (1, 4, 5), (2, 5, 6), (3, 6, 7)]
    assert spans(step, "unpack") == [(0, 6, 7), (1, 7, 8), (2, 8, 9), (3, 9, 10)]
    assert "wait" not in step.kinds
    # Both at half the speed: from 4.5 on, 2 s of the backward take 4 s, in which 2 of the second bucket's 4.5 s are
    # done. 1 s of unpacking takes 2 s, in which 1 s more is done; the rank waits for the last 1.5 s. Then 1 s of
    # unpacking and the 1 s of the third bucket go on together.
    costs, twice = lambda b: [0.5, 4.5, 1.0], Contention(2.0, 2.0)
    slow = simulate_step(local, costs, buckets=[[3], [2], [1, 0]], contention=twice)
    assert spans(slow, "allreduce") == [(0, 3, 4), (1, 4.5, 12), (2, 12, 14)]
    assert spans(slow, "backward") == [(0, 2, 8.5)]
    assert spans(slow, "unpack") == [(0, 8.5, 10.5), (1, 12, 14), (2, 14, 16)]
    assert spans(slow, "wait") == [(-1, 10.5, 12)]


def test_without_overlap_the_step_is_the_sum() -> None:
    step = simulate_step(four(), proportional(2.0), bucket_cap_mb=1, overlap=False, contention=Contention(9, 9))
    assert spans(step, "allreduce") == [(0, 6, 6.5), (1, 6.5, 7), (2, 7, 7.5), (3, 7.5, 8)]
    assert step.makespan_s == 2 + 4 + 4 * 0.5 + 0.5


def test_a_free_wire_leaves_what_is_computed() -> None:
    free = allreduce_cost(Link(0.0, math.inf), num_ranks=8)
    assert step_seconds(four(), free, [None, 1, 2, 100]).tolist() == [6.5] * 4
    assert "wait" not in simulate_step(four(), free).kinds


def test_one_bucket_starts_when_the_last_gradient_is_ready() -> None:
    assert spans(simulate_step(four(), proportional(2.0), bucket_cap_mb=100), "allreduce") == [(0, 6, 8)]


def test_with_accumulation_only_the_last_micro_batch_communicates() -> None:
    step = simulate_step(four(), proportional(2.0), bucket_cap_mb=1, accumulation=3)
    assert spans(step, "forward") == [(0, 0, 2), (1, 6, 8), (2, 12, 14)]
    assert spans(step, "backward") == [(0, 2, 6), (1, 8, 12), (2, 14, 18)]
    once = simulate_step(four(), proportional(2.0), bucket_cap_mb=1).select(kind="allreduce").shifted(12)
    assert spans(step, "allreduce") == spans(once, "allreduce")


def test_a_gradient_that_never_comes_is_waited_for_by_no_bucket() -> None:
    local = dataclasses.replace(four(), ready_s=np.array([4.0, math.nan, 2.0, 1.0]))
    assert spans(simulate_step(local, proportional(2.0), buckets=[[3], [1, 2], [0]]), "allreduce") == [
        (0, 3, 3.5), (1, 4, 5), (2, 6, 6.5),
    ]  # fmt: skip
    assert sorted(place for bucket in default_buckets(local, 1) for place in bucket) == [0, 1, 2, 3]


def test_a_module_without_parameters_communicates_nothing() -> None:
    empty = LocalStep((), np.empty(0), 1.0, 2.0, 0.5)
    assert simulate_step(empty, proportional(1.0)).makespan_s == 3.5
    assert step_seconds(empty, proportional(1.0), [None, 1]).tolist() == [3.5, 3.5]


# ---- against SimPy


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    number = draw(st.integers(1, 12))
    seconds = st.floats(0, 10, allow_subnormal=False).map(lambda value: round(value, 3))
    backward_s = draw(seconds)
    share = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0, math.nan]))
    ready_s = [draw(share) * backward_s for _ in range(number)]
    order = draw(st.permutations(range(number)))
    cuts = sorted(draw(st.sets(st.integers(1, number), max_size=6)) | {number})
    buckets = [list(order[low:high]) for low, high in zip([0, *cuts], cuts, strict=False)]
    parameters = tuple(ParameterSpec(f"{n}", draw(st.integers(0, 1000))) for n in range(number))
    unpack = st.one_of(st.just(0.0), seconds)
    slow = st.one_of(st.just(1.0), st.floats(1, 5))
    return {
        "local": LocalStep(parameters, np.array(ready_s), draw(seconds), backward_s, draw(seconds), draw(unpack)),
        "buckets": [bucket for bucket in buckets if bucket],
        "alpha_s": draw(seconds),
        "beta": draw(st.floats(0, 0.01)),
        "contention": Contention(draw(slow), draw(slow)),
        "overlap": draw(st.booleans()),
        "accumulation": draw(st.integers(1, 3)),
    }


@settings(max_examples=400, deadline=None, derandomize=True)
@given(cases())
def test_it_is_what_simpy_finds(case: dict[str, Any]) -> None:
    local, buckets, contention, overlap = (case[name] for name in ("local", "buckets", "contention", "overlap"))

    def cost(num_bytes: Any) -> Any:
        return case["alpha_s"] + num_bytes * case["beta"]

    rounds = case["accumulation"]
    step = simulate_step(local, cost, buckets=buckets, contention=contention, overlap=overlap, accumulation=rounds)
    step.check()
    start_s = rounds * local.forward_s + (rounds - 1) * local.backward_s
    expected = {
        key: (start + start_s, stop + start_s)
        for key, (start, stop) in reference(local, buckets, cost, contention, overlap).items()
    }
    expected["backward", rounds - 1] = expected.pop(("backward", 0))
    found = {(span.kind, span.item): (span.start_s, span.stop_s) for span in step}
    for key, times in expected.items():
        if key[0] == "unpack" and times[1] - times[0] < 1e-9:
            continue  # nothing to show
        assert found[key] == pytest.approx(times, rel=1e-9, abs=1e-9), key
    end_s = max(stop for _, stop in expected.values())
    assert step.makespan_s == pytest.approx(end_s + local.optimizer_s, rel=1e-9, abs=1e-9)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(cases(), st.lists(st.one_of(st.none(), st.floats(1e-4, 1e-2)), max_size=4))
def test_a_curve_is_the_makespan_of_each_timeline(case: dict[str, Any], caps: list[float | None]) -> None:
    chosen = {name: case[name] for name in ("contention", "overlap", "accumulation")}
    curve = step_seconds(case["local"], proportional(1e-3), caps, **chosen)
    each = [simulate_step(case["local"], proportional(1e-3), bucket_cap_mb=cap, **chosen).makespan_s for cap in caps]
    np.testing.assert_allclose(curve, each, rtol=1e-12, atol=1e-12)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(cases(), st.one_of(st.none(), st.floats(0, 2e-3), st.just(0)))
def test_buckets_of_like_gradients_are_those_of_ddp(case: dict[str, Any], cap: float | None) -> None:
    local = case["local"]
    found, expected = default_launches(local, cap), launches(local, default_buckets(local, cap))
    np.testing.assert_array_equal(found.launch_s, expected.launch_s)
    np.testing.assert_array_equal(found.num_bytes, expected.num_bytes)


def test_what_is_not_alike_has_buckets_of_its_own() -> None:
    specs = [ParameterSpec("a", MIB), ParameterSpec("b", MIB, "bfloat16"), ParameterSpec("c", MIB, sparse=True)]
    local = LocalStep.modelled(specs, 3.0)
    assert not local.alike
    assert default_launches(local, 25).launch_s.tolist() == [1.0, 3.0, 3.0]


def test_a_cap_beyond_all_gradients_is_one_bucket() -> None:
    assert [len(default_launches(four(), cap).launch_s) for cap in (1e9, 1e308)] == [1, 1]
    assert len(ddp_buckets(four().parameters, 1e308).rebuilt) == 1


# ---- what is refused


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"buckets": [[0, 1], [3]]}, "buckets must hold each of 4 parameters once"),
        ({"buckets": [[0, 1], [2, 3, 3]]}, "buckets must hold each of 4 parameters once"),
        ({"buckets": [[0, 1, 2, 3], []]}, "buckets must hold at least one parameter each"),
        ({"buckets": [[0, 1, 2, 3]], "bucket_cap_mb": 25}, "bucket_cap_mb must be None where buckets are given"),
        ({"buckets": [0, 1]}, "buckets must be lists of places of parameters"),
        ({"buckets": [[0, 1], [2, 3.0]]}, "buckets must be a whole number of at least 0, got 3.0"),
        ({"bucket_cap_mb": -1}, "bucket_cap_mb must be"),
        ({"accumulation": 0}, "accumulation must be a whole number from 1 to 10000, got 0"),
        ({"accumulation": 10**30}, "accumulation must be a whole number from 1 to 10000, got 1000"),
        ({"overlap": "no"}, "overlap must be True or False"),
        ({"contention": 1.5}, "contention must be a Contention"),
        ({"cost": lambda b: -b}, "cost must give finite seconds of at least 0"),
        ({"cost": lambda b: [*b, 1.0, 2.0]}, "cost must give finite seconds of at least 0"),
        ({"cost": lambda b: b * math.nan}, "cost must give finite seconds of at least 0"),
        ({"cost": 3.0}, "cost must be a function of bytes"),
        ({"local": [1, 2]}, "local must be a LocalStep"),
    ],
)
def test_what_no_step_can_be_is_refused(wrong: dict[str, Any], problem: str) -> None:
    arguments: dict[str, Any] = {"local": four(), "cost": proportional(1.0)} | wrong
    with pytest.raises(ValueError, match=problem):
        simulate_step(**arguments)
