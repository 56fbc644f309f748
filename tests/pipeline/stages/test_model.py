"""`simulate` against SimPy and against a recurrence, item for item."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.pipeline import Lognormal, Pipeline, Stage, simulate
from rankscope.timeline import Timeline

from .simpy_reference import Times, reference


def passages(timeline: Timeline) -> Times:
    """When each item was taken, done and gone, read from the spans."""
    timeline.check()
    waits = {(w.rank, w.lane, w.item): w for w in timeline if w.kind in ("blocked", "barrier")}
    seen: Times = {}
    for span in timeline.work():
        wait = waits.get((span.rank, span.lane, span.item))
        assert wait is None or wait.start_s == span.stop_s
        seen[span.rank, span.kind, span.item] = span.start_s, span.stop_s, wait.stop_s if wait else span.stop_s
    return seen


def assert_equal_times(simulated: Times, expected: Times) -> None:
    assert simulated.keys() == expected.keys()
    for key, times in expected.items():
        assert simulated[key] == pytest.approx(times, abs=1e-9, rel=0), key


services = st.one_of(
    st.floats(0.001, 1.0),
    st.builds(Lognormal, st.floats(0.001, 1.0), st.floats(0.0, 2.0)),
    st.lists(st.floats(0.0, 1.0), min_size=40, max_size=40),
)


@st.composite
def pipelines(draw: st.DrawFn, most_workers_last: int) -> Pipeline:
    num_stages = draw(st.integers(1, 6))
    stages = []
    for place in range(num_stages):
        workers = draw(st.integers(1, most_workers_last if place == num_stages - 1 else 8))
        numbers = {"num_workers": workers, "capacity": draw(st.integers(1, 16)), "ordered": draw(st.booleans())}
        stages.append(Stage(f"s{place}", draw(services), **numbers, batch_size=draw(st.none() | st.integers(1, 4))))
    return Pipeline(stages)


@pytest.mark.slow
@settings(max_examples=250, deadline=None, derandomize=True)
@given(st.data(), st.integers(0, 40), st.integers(1, 4), st.integers(0, 5))
def test_every_item_passes_every_stage_when_simpy_says(
    data: st.DataObject, num_items: int, num_ranks: int, seed: int
) -> None:
    """Several ranks take each step of the last stage together."""
    pipeline = data.draw(pipelines(8 if num_ranks == 1 else 1))
    simulated = passages(simulate(pipeline, num_items, seed, num_ranks))
    assert_equal_times(simulated, reference(pipeline, num_items, seed, num_ranks))


def recurrence(pipeline: Pipeline, num_items: int) -> Times:
    """The times of stages in order, each from its definition: max-plus, item by item through all stages."""
    times: Times = {}
    stages = pipeline.stages
    services = [stage.times_s(num_items, 0, 0, place).tolist() for place, stage in enumerate(stages)]
    for item in range(num_items):
        arrived = 0.0
        for place, stage in enumerate(stages):
            free = times.get((0, stage.name, item - stage.num_workers), (0, 0, 0.0))[2]
            taken = max(arrived, free)
            done = taken + services[place][item]
            before = times.get((0, stage.name, item - 1), (0, 0, 0.0))[2]
            slot = 0.0
            if place < len(stages) - 1:
                slot = times.get((0, stages[place + 1].name, item - stage.capacity), (0.0, 0, 0))[0]
            arrived = max(done, before, slot)
            times[0, stage.name, item] = taken, done, arrived
    return times


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.oracle)])
def test_random_pipelines_follow_the_recurrence(count: int) -> None:
    draw = random.Random(count)
    for _ in range(count):
        stages = []
        for place in range(draw.randint(1, 5)):
            service = draw.choice([draw.random(), Lognormal(draw.random(), 2 * draw.random())])
            numbers = {"num_workers": draw.randint(1, 5), "capacity": draw.randint(1, 5)}
            stages.append(Stage(f"s{place}", service, **numbers))
        pipeline, num_items = Pipeline(stages), draw.randint(0, 25)
        assert_equal_times(passages(simulate(pipeline, num_items)), recurrence(pipeline, num_items))


def test_the_comparison_sees_another_time_and_a_missing_item() -> None:
    pipeline = Pipeline([Stage("read", Lognormal(0.1, 1.0), num_workers=3), Stage("train", 0.1)])
    simulated, expected = passages(simulate(pipeline, 20)), reference(pipeline, 20)
    late = {**simulated, (0, "train", 7): tuple(time + 2e-9 for time in simulated[0, "train", 7])}
    for wrong in (late, {key: simulated[key] for key in list(simulated)[1:]}):
        with pytest.raises(AssertionError):
            assert_equal_times(wrong, expected)
