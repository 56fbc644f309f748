"""`simulate` against SimPy, item for item."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.pipeline import Lognormal, Pipeline, Stage, simulate
from rankscope.sampling import Assignment, assign
from rankscope.timeline import Timeline

from ..distributions import Exponential
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


def assert_equal_times(simulated: Times, expected: Times) -> None:
    assert simulated.keys() == expected.keys()
    for key, times in expected.items():
        assert simulated[key] == pytest.approx(times, abs=1e-9, rel=0), key


services = st.one_of(
    st.floats(0.001, 1.0),
    st.builds(Lognormal, st.floats(0.001, 1.0), st.floats(0.0, 2.0)),
    st.builds(Exponential, st.floats(0.001, 1.0)),
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


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(pipelines(), st.integers(0, 40), st.integers(0, 5))
def test_every_item_passes_every_stage_when_simpy_says(pipeline, num_items, seed):
    timeline = simulate(pipeline, num_items, seed)
    timeline.check()
    assert_equal_times(passages(timeline), reference(pipeline, num_items, seed))


@st.composite
def assignments(draw) -> Assignment:
    """Ranks that read 0 to 12 of 40 samples each, in any order; with a loader or without one."""
    ranks = [draw(st.permutations(range(40)))[: draw(st.integers(0, 12))] for _ in range(draw(st.integers(1, 5)))]
    assignment = Assignment(40, ranks)
    if draw(st.booleans()):
        return assignment.with_loader(draw(st.integers(1, 4)), draw(st.booleans()))
    return assignment


@pytest.mark.slow
@settings(max_examples=100, deadline=None, derandomize=True)
@given(pipelines(most_workers_last=1), assignments())
def test_an_assignment_passes_as_simpy_says(pipeline, assignment):
    timeline = simulate(pipeline, assignment, seed=5)
    timeline.check()
    assert_equal_times(passages(timeline), reference(pipeline, assignment, 5))


def test_the_comparison_sees_a_nanosecond_and_a_missing_item():
    pipeline = Pipeline([Stage("read", Exponential(0.1), num_workers=3), Stage("train", 0.1)])
    simulated, expected = passages(simulate(pipeline, 20)), reference(pipeline, 20)
    late = {**simulated, (0, "train", 7): tuple(time + 2e-9 for time in simulated[0, "train", 7])}
    with pytest.raises(AssertionError, match="'train', 7"):
        assert_equal_times(late, expected)
    with pytest.raises(AssertionError):
        assert_equal_times({key: simulated[key] for key in list(simulated)[1:]}, expected)
    other = pipeline.changed("read", capacity=1)
    with pytest.raises(AssertionError):
        assert_equal_times(passages(simulate(other, 20)), expected)


def test_what_if_changes_nothing_but_what_is_asked():
    """More workers get the same times for the same items."""
    one_reader = Pipeline([Stage("read", Lognormal(0.1, 1.0)), Stage("train", Exponential(0.1))])
    four_readers = one_reader.changed("read", num_workers=4, ordered=False)

    def train_times(pipeline: Pipeline) -> dict[int, float]:
        spans = simulate(pipeline, 50, seed=4).select(kind="train")
        return {span.item: round(span.stop_s - span.start_s, 9) for span in spans}

    assert train_times(one_reader) == train_times(four_readers)
    assert simulate(one_reader, 50, seed=4).makespan_s != simulate(one_reader, 50, seed=5).makespan_s


def test_ranks_draw_times_of_their_own():
    timeline = simulate(Pipeline([Stage("train", Exponential(1.0))]), 10, num_ranks=2)
    work = [timeline.select(rank=rank, kind="train") for rank in (0, 1)]
    assert (work[0].stop_s - work[0].start_s != work[1].stop_s - work[1].start_s).any()
    assert timeline.select(kind="barrier").busy_s > 0


# ---- a batch index flows on


def items_of(timeline: Timeline, kind: str) -> list[list[int]]:
    """The items of each rank, in the order of their start."""
    spans = timeline.select(kind=kind)
    return [spans.select(rank=rank).item.tolist() for rank in range(int(spans.rank.max()) + 1)]


ROAD = Pipeline([Stage("read", Lognormal(0.01, 1.0), num_workers=2), Stage("train", Exponential(0.01))])


def test_items_are_the_indices_that_each_rank_reads():
    assignment = assign(42, 4, seed=3)
    timeline = simulate(ROAD, assignment, seed=1)
    assert items_of(timeline, "train") == [indices.tolist() for indices in assignment.ranks]
    counts = simulate(ROAD, 11, seed=1, num_ranks=4)
    assert (timeline.start_s.tolist(), timeline.stop_s.tolist()) == (counts.start_s.tolist(), counts.stop_s.tolist())
    assert items_of(simulate(ROAD, assign(42, 4, drop_last=True)), "train") != items_of(timeline, "train")
    assert len(simulate(ROAD, assign(42, 4, drop_last=True)).select(kind="train")) == 40
    assert simulate(ROAD, assign(9, 1)).select(kind="barrier").item.size == 0, "one rank waits for nobody"


@pytest.mark.parametrize(("drop_last", "num_batches"), [(False, 4), (True, 3)])
def test_with_a_loader_items_are_batches(drop_last, num_batches):
    timeline = simulate(ROAD, assign(42, 4).with_loader(3, drop_last), seed=1, num_ranks=4)
    assert items_of(timeline, "train") == [list(range(num_batches))] * 4
    assert list(timeline) == list(simulate(ROAD, num_batches, seed=1, num_ranks=4))


def test_a_sample_takes_its_own_time_on_whichever_rank_reads_it():
    size_s = [index / 100 for index in range(10)]
    assignment = assign(10, 2, seed=4)
    for service_s in (size_s, lambda index: size_s[index]):
        spans = simulate(Pipeline([Stage("read", service_s), Stage("train", 0.0)]), assignment).select(kind="read")
        assert (spans.stop_s - spans.start_s).tolist() == pytest.approx([size_s[index] for index in spans.item])
    path = Pipeline([Stage("read", lambda batch: sum(size_s[index] for index in batch))])
    spans = simulate(path, Assignment(10, [[9, 1, 2]]).with_loader(2))
    assert (spans.stop_s - spans.start_s).tolist() == pytest.approx([0.10, 0.02])


def test_a_sample_that_a_rank_reads_twice_is_two_items():
    spans = simulate(Pipeline([Stage("read", Exponential(1.0))]), Assignment(5, [[3, 3]]))
    assert spans.item.tolist() == [3, 3]
    assert len(set((spans.stop_s - spans.start_s).tolist())) == 2
