"""Timelines: their figures against time cut into quarter seconds and counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.timeline import Span, Tape, Timeline
from rankscope.timeline.timeline import WAITS

SPANS = st.lists(
    st.builds(
        lambda rank, lane, kind, item, start, length: Span(rank, lane, kind, item, start / 4, (start + length) / 4),
        st.integers(0, 2),
        st.sampled_from(["read", "gpu", "comm"]),
        st.sampled_from(["load", "step", "allreduce"]),
        st.integers(-1, 4),
        st.integers(-20, 40),
        st.integers(0, 12),
    ),
    max_size=25,
)
PAIR = [Span(0, "b", "y", 0, 0.0, 1.0), Span(0, "a", "x", 1, 1.0, 2.0)]


def busy(spans, *conditions):
    """Quarter seconds in which a span of each condition runs, counted one by one."""
    quarters = np.arange(-200, 400) / 4 + 0.125
    never = np.zeros(quarters.size, dtype=bool)
    running = []
    for wanted in conditions:
        each = [(s.start_s < quarters) & (quarters < s.stop_s) for s in spans if wanted(s)]
        running.append(np.any([never, *each], axis=0))
    return np.all(running, axis=0).sum() / 4


def overlap(spans, one, other):
    """The same for spans of two kinds at once on one rank, over all ranks."""
    return sum(
        busy([s for s in spans if s.rank == rank], lambda s: s.kind == one, lambda s: s.kind == other)
        for rank in range(3)
    )


# ---- figures


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(SPANS)
def test_figures_are_what_counting_gives(spans):
    timeline = Timeline.of(spans)
    assert list(timeline) == spans
    assert list(timeline.take(np.arange(-len(spans), 0))) == spans
    assert len(timeline) == len(spans)
    end = max((s.stop_s for s in spans), default=0.0)
    assert timeline.makespan_s == end - min((s.start_s for s in spans), default=0.0)
    assert timeline.busy_s == busy(spans, lambda s: True)
    assert timeline.overlap_s("step", "allreduce") == overlap(spans, "step", "allreduce")
    either = [s._replace(kind="step" if s.kind == "load" else s.kind) for s in spans]
    assert timeline.overlap_s(["load", "step"], "allreduce") == overlap(either, "step", "allreduce")
    for (rank, lane), share in timeline.utilisation().items():
        own = busy(spans, lambda s, rank=rank, lane=lane: (s.rank, s.lane) == (rank, lane))
        assert share == (own / timeline.makespan_s if timeline.makespan_s else 0)
    assert set(timeline.utilisation()) == {(s.rank, s.lane) for s in spans}
    loads = [s for s in spans if s.kind == "load"]
    if loads and timeline.makespan_s:
        assert timeline.throughput_per_s("load") == len(loads) / timeline.makespan_s


@settings(max_examples=200, deadline=None, derandomize=True)
@given(SPANS, st.integers(-20, 40), st.integers(0, 20))
def test_selecting_and_cutting(spans, low, width):
    timeline = Timeline.of(spans)
    assert list(timeline.select(rank=1, kind="load")) == [s for s in spans if s.rank == 1 and s.kind == "load"]
    assert list(timeline.select(lane="gpu", item=2)) == [s for s in spans if s.lane == "gpu" and s.item == 2]
    assert list(timeline.select(kind="nothing")) == []
    several = timeline.select(rank=(0, 2), lane=["gpu", "nothing", "comm"], kind={"load", "step"}, item=range(3))
    assert list(several) == [
        s for s in spans if s.rank != 1 and s.lane != "read" and s.kind != "allreduce" and s.item in (0, 1, 2)
    ]
    assert list(timeline.select(lane=[])) == []
    window = (low / 4, (low + width) / 4)
    cut = [
        s._replace(start_s=max(s.start_s, window[0]), stop_s=min(s.stop_s, window[1]))
        for s in spans
        if max(s.start_s, window[0]) < min(s.stop_s, window[1])
        or (s.start_s == s.stop_s and window[0] <= s.start_s <= window[1])
    ]
    assert list(timeline.select(between_s=window)) == cut


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(SPANS, max_size=4))
def test_concatenation_keeps_every_span(lists):
    whole = Timeline.concat([Timeline.of(spans) for spans in lists])
    assert list(whole) == [span for spans in lists for span in spans]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(SPANS)
def test_check_finds_exactly_the_overlaps_on_a_lane(spans):
    overlap = any(
        (a.rank, a.lane) == (b.rank, b.lane) and min(a.stop_s, b.stop_s) > max(a.start_s, b.start_s)
        for place, a in enumerate(spans)
        for b in spans[:place]
        if a.start_s < a.stop_s and b.start_s < b.stop_s  # a mark takes no time from anybody
    )
    if overlap:
        with pytest.raises(ValueError, match="spans overlap on one lane: Span"):
            Timeline.of(spans).check()
    else:
        Timeline.of(spans).check()


def test_lanes_and_kinds_can_be_put_in_an_order():
    timeline = Timeline.of(PAIR)
    assert timeline.rank_lanes() == [(0, "b"), (0, "a")]
    named = timeline.named(["c", "a"], ["x"])
    assert (named.lanes, named.kinds) == (("c", "a", "b"), ("x", "y"))
    assert named.rank_lanes() == [(0, "a"), (0, "b")]
    assert list(named) == PAIR


def test_waiting_is_not_work():
    timeline = Timeline.of([Span(0, "a", "step", 0, 0.0, 1.0), *(Span(0, "a", kind, 0, 1.0, 4.0) for kind in WAITS)])
    assert [span.kind for span in timeline.work()] == ["step"]
    assert timeline.utilisation() == {(0, "a"): 0.25}


def test_what_a_timeline_lacks_is_empty_and_takes_no_time():
    timeline = Timeline.of(PAIR)
    assert timeline.overlap_s(["allreduce", "broadcast"], "kernel") == 0.0
    assert timeline.select(kind=["allreduce", "broadcast"]).makespan_s == 0.0
    assert Timeline.of([]).overlap_s("a", "b") == Timeline.of([]).busy_s == 0.0
    assert len(Timeline.concat([])) == 0


def test_columns_are_read_only():
    for name in Span._fields:
        with pytest.raises(ValueError, match="read-only"):
            getattr(Timeline.of(PAIR), name)[0] = 5


def test_a_notebook_shows_a_drawing_unless_it_would_be_too_large():
    assert repr(Timeline.of(PAIR)) == "<Timeline: 2 spans, 1 rank, 2 lanes, 2 s>"
    svg = Timeline.of(PAIR)._repr_svg_()
    assert svg.startswith("<svg")
    assert svg.count(">x<") == 1, "the legend names each kind"
    assert Timeline.of(PAIR * 10_001)._repr_svg_() is None


# ---- the tape


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 9), st.booleans()), max_size=30))
def test_a_span_on_a_tape_begins_as_soon_as_it_can(steps):
    """In whole seconds: of all starts that leave the lane's earlier spans alone, it is the first one."""
    tape = Tape()
    taken = {lane: set() for lane in range(3)}  # the seconds in which each lane works or waits
    for lane, seconds, at, waits in steps:
        free = max(taken[lane], default=-1) + 1
        if waits:
            stop = tape.wait(0, str(lane), "wait", 0, at)
            assert stop == max(free, at)
        else:
            stop = tape.add(0, str(lane), "work", 0, seconds, after_s=at)
            assert stop == max(free, at) + seconds
        taken[lane].update(range(int(stop)))
    tape.timeline().check()
    assert list(tape.timeline()) == tape.spans
