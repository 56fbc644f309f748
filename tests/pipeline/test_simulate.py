"""`simulate` against SimPy, item for item."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.pipeline import Exponential, Lognormal, Pipeline, Stage, Uniform, simulate
from rankscope.timeline import Timeline

from .simpy_reference import Times, reference


def passages(timeline: Timeline) -> Times:
    """When each item was taken, done and gone, read from the spans."""
    seen: Times = {}
    for span in timeline.work():
        seen[span.rank, span.kind, span.item] = span.start_s, span.stop_s, span.stop_s
    waits = {(w.rank, w.lane, w.item): w for w in timeline if w.kind in ("blocked", "barrier")}
    for span in timeline.work():
        wait = waits.get((span.rank, span.lane, span.item))
        if wait:
            assert wait.start_s == span.stop_s
            seen[span.rank, span.kind, span.item] = span.start_s, span.stop_s, wait.stop_s
    return seen


def assert_equal_times(found: Times, expected: Times) -> None:
    assert found.keys() == expected.keys()
    for key, times in expected.items():
        assert found[key] == pytest.approx(times, abs=1e-9, rel=0), key


services = st.one_of(
    st.floats(0.001, 1.0),
    st.builds(Lognormal, st.floats(0.001, 1.0), st.floats(0.0, 2.0)),
    st.builds(Exponential, st.floats(0.001, 1.0)),
    st.builds(Uniform, st.floats(0.0, 0.5), st.floats(0.5, 1.0)),
    st.lists(st.floats(0.0, 1.0), min_size=40, max_size=40),
)


@st.composite
def pipelines(draw, most_workers_last: int = 8) -> Pipeline:
    num_stages = draw(st.integers(1, 6))
    stages = []
    for place in range(num_stages):
        workers = draw(st.integers(1, most_workers_last if place == num_stages - 1 else 8))
        capacity, ordered = draw(st.integers(1, 16)), draw(st.booleans())
        stages.append(Stage(f"s{place}", draw(services), num_workers=workers, capacity=capacity, ordered=ordered))
    return Pipeline(stages)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(pipelines(), st.integers(0, 40), st.integers(0, 5))
def test_every_item_passes_every_stage_when_simpy_says(pipeline, num_items, seed):
    timeline = simulate(pipeline, num_items, seed)
    timeline.check()
    assert_equal_times(passages(timeline), reference(pipeline, num_items, seed))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(pipelines(most_workers_last=1), st.integers(0, 30), st.integers(2, 5))
def test_ranks_in_lock_step_meet_when_simpy_says(pipeline, num_items, num_ranks):
    timeline = simulate(pipeline, num_items, seed=3, num_ranks=num_ranks)
    timeline.check()
    assert_equal_times(passages(timeline), reference(pipeline, num_items, 3, num_ranks))


def test_the_comparison_sees_a_nanosecond_and_a_missing_item():
    pipeline = Pipeline([Stage("read", Exponential(0.1), num_workers=3), Stage("train", 0.1)])
    found, expected = passages(simulate(pipeline, 20)), reference(pipeline, 20)
    late = {**found, (0, "train", 7): tuple(time + 2e-9 for time in found[0, "train", 7])}
    with pytest.raises(AssertionError, match="'train', 7"):
        assert_equal_times(late, expected)
    with pytest.raises(AssertionError):
        assert_equal_times({key: found[key] for key in list(found)[1:]}, expected)
    other = pipeline.changed("read", capacity=1)
    with pytest.raises(AssertionError):
        assert_equal_times(passages(simulate(other, 20)), expected)


def test_a_slow_item_blocks_those_behind_it_only_where_order_is_kept():
    slow_first = [5.0, 1.0, 1.0, 1.0]
    kept = simulate(Pipeline([Stage("decode", slow_first, num_workers=2), Stage("train", 0.0)]), 4)
    blocked = kept.select(kind="blocked")
    assert [(span.item, span.start_s, span.stop_s) for span in blocked] == [(1, 1.0, 5.0)]
    assert kept.makespan_s == 6.0
    free = simulate(Pipeline([Stage("decode", slow_first, num_workers=2, ordered=False), Stage("train", 0.0)]), 4)
    assert free.makespan_s == 5.0
    assert free.select(kind="train").item.tolist() == [1, 2, 3, 0]
    assert not len(free.select(kind="blocked"))


def test_what_if_changes_nothing_but_what_is_asked():
    """More workers get the same times for the same items."""
    one = Pipeline([Stage("read", Lognormal(0.1, 1.0)), Stage("train", Exponential(0.1))])
    two = one.changed("read", num_workers=4, ordered=False)
    trains = [simulate(pipeline, 50, seed=4).select(kind="train") for pipeline in (one, two)]
    times = [{span.item: round(span.stop_s - span.start_s, 9) for span in train} for train in trains]
    assert times[0] == times[1]
    assert simulate(one, 50, seed=4).makespan_s != simulate(one, 50, seed=5).makespan_s


def test_ranks_draw_times_of_their_own():
    timeline = simulate(Pipeline([Stage("train", Exponential(1.0))]), 10, num_ranks=2)
    work = [timeline.select(rank=rank, kind="train") for rank in (0, 1)]
    assert (work[0].stop_s - work[0].start_s != work[1].stop_s - work[1].start_s).any()
    assert timeline.select(kind="barrier").busy_s > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1,), "num_items must be a whole number of at least 0, got -1"),
        ((2.5,), r"num_items must be a whole number of at least 0, got 2\.5"),
        ((3, 0, 0), "num_ranks must be a whole number from 1 to 65536, got 0"),
        ((3, 0, 10**30), "num_ranks must be a whole number from 1 to 65536, got 1000"),
        ((3, "a"), "seed must be a whole number from .*, got 'a'"),
        ((3, 0, 2), "in lock-step the last stage must have 1 worker, got 3 for 'train'"),
    ],
)
def test_a_wrong_question_is_refused(arguments, message):
    pipeline = Pipeline([Stage("read", 1.0), Stage("train", 1.0, num_workers=3)])
    with pytest.raises(ValueError, match=message):
        simulate(pipeline, *arguments)


def test_a_stage_whose_time_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="stage 'read' has no service_s"):
        simulate(Pipeline([Stage("read", fn=abs)]), 3)


def test_nothing_to_do_takes_no_time():
    assert len(simulate(Pipeline([Stage("read", 1.0), Stage("train", 1.0)]), 0)) == 0
    assert len(simulate(Pipeline([Stage("read", 1.0, num_workers=2, ordered=False)]), 0, num_ranks=1)) == 0
