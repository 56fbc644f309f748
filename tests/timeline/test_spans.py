"""Timeline's figures against a second method: time cut into its smallest pieces and counted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.timeline import Span, Timeline, TimelineError
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


def test_a_timeline_is_told_in_a_line():
    spans = [Span(rank, "gpu", "step", n, n, n + 0.5) for rank in (0, 3) for n in range(20)]
    assert repr(Timeline.of([*spans, Span(0, "read", "read", 0, 0.0, 1.25)])) == (
        "<Timeline: 41 spans, 2 ranks, 3 lanes, 19.5 s>"
    )
    assert repr(Timeline.of(spans[:1])) == "<Timeline: 1 span, 1 rank, 1 lane, 0.5 s>"
    assert repr(Timeline.of([])) == "<Timeline: 0 spans, 0 ranks, 0 lanes, 0 s>"


@settings(max_examples=300, deadline=None, derandomize=True)
@given(SPANS)
def test_figures_are_what_counting_gives(spans):
    timeline = Timeline.of(spans)
    assert list(timeline) == spans
    assert len(timeline) == len(spans)
    end = max((s.stop_s for s in spans), default=0.0)
    assert timeline.makespan_s == end - min((s.start_s for s in spans), default=0.0)
    assert timeline.busy_s == busy(spans, lambda s: True)
    assert timeline.idle_s == timeline.makespan_s - timeline.busy_s
    if {"step", "allreduce"} <= {s.kind for s in spans}:
        assert timeline.overlap_s("step", "allreduce") == overlap(spans, "step", "allreduce")
    for (rank, lane), share in timeline.utilisation().items():
        own = busy(spans, lambda s, rank=rank, lane=lane: (s.rank, s.lane) == (rank, lane))
        assert share == (own / timeline.makespan_s if timeline.makespan_s else 0)
    assert set(timeline.utilisation()) == {(s.rank, s.lane) for s in spans}
    loads = [s for s in spans if s.kind == "load"]
    finished = len({(s.rank, s.item) for s in loads if s.item != -1}) + sum(s.item == -1 for s in loads)
    if loads and timeline.makespan_s:
        assert timeline.throughput_per_s("load") == finished / timeline.makespan_s


@settings(max_examples=200, deadline=None, derandomize=True)
@given(SPANS, st.integers(-20, 40), st.integers(0, 20))
def test_selecting_and_cutting(spans, low, width):
    timeline = Timeline.of(spans)
    assert list(timeline.select(rank=1, kind="load")) == [s for s in spans if s.rank == 1 and s.kind == "load"]
    assert list(timeline.select(lane="gpu", item=2)) == [s for s in spans if s.lane == "gpu" and s.item == 2]
    assert list(timeline.select(kind="nothing")) == []
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
        with pytest.raises(TimelineError, match="spans overlap on one lane: Span"):
            Timeline.of(spans).check()
    else:
        Timeline.of(spans).check()


def test_the_frame_and_the_shift():
    timeline = Timeline.of([Span(1, "gpu", "step", 3, 0.5, 1.0)]).shifted(2.0)
    frame = timeline.to_frame()
    assert list(frame.columns) == list(Span._fields)
    assert frame.iloc[0].tolist() == [1, "gpu", "step", 3, 2.5, 3.0]
    assert Timeline.of([]).to_frame().empty


def test_a_slice_is_a_timeline():
    spans = pipeline([1] * 5, [1] * 5)
    assert list(Timeline.of(spans)[2:7:2]) == spans[2:7:2]


def test_a_kind_that_is_not_there_is_refused():
    timeline = Timeline.of(pipeline([1], [1]))
    with pytest.raises(ValueError, match="kind must be one of 'read', 'step', got 'stop'"):
        timeline.overlap_s("read", "stop")
    with pytest.raises(ValueError, match="got 'stop'"):
        timeline.throughput_per_s("stop")
    with pytest.raises(ValueError, match="rank and item must be a whole number, got '0'"):
        timeline.select(rank="0")


def test_columns_cannot_be_written():
    with pytest.raises(ValueError, match="read-only"):
        Timeline.of([Span(0, "a", "b", 0, 0, 1)]).start_s[0] = 5


def test_what_a_timeline_was_made_of_may_change_it_may_not():
    place, start_s = np.zeros(1, np.int64), np.array([0.0, 9.0])
    view = start_s[:1]
    view.flags.writeable = False  # what it is a view of is not
    timeline = Timeline(place, place, place, place, view, np.array([1.0]), ("a",), ("b",))
    place[0], start_s[0] = -1, 0.5
    assert timeline[0] == Span(0, "a", "b", 0, 0.0, 1.0)
    again = timeline.shifted(0.0)
    assert np.shares_memory(again.item, timeline.item), "what nobody can write to is not copied"


def test_an_item_that_does_not_fit_is_refused():
    assert Timeline.of([Span(0, "a", "b", 2**63 - 1, 0.0, 1.0)])[0].item == 2**63 - 1
    for wrong in (2**63, 2**64):
        with pytest.raises(ValueError, match="item must "):
            Timeline.of([Span(0, "a", "b", wrong, 0.0, 1.0)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": [0, 0]}, "must be of one length"),
        ({"lane": [1]}, "lane must hold places from 0 to 0 in lanes, got 1"),
        ({"kind": [-1]}, "kind must hold places from 0 to 0 in kinds, got -1"),
        ({"stop_s": [0.5]}, r"must end at or after its start.*start_s=1\.0, stop_s=0\.5"),
        ({"start_s": [float("nan")]}, "at finite times"),
        ({"stop_s": [float("inf")]}, "at finite times"),
        ({"item": [0.5]}, "item must be a column of int64, got float64"),
        ({"start_s": [["a"]]}, "start_s must be a column of float64"),
    ],
)
def test_bad_columns(change, message):
    columns = {"rank": [0], "lane": [0], "kind": [0], "item": [0], "start_s": [1.0], "stop_s": [2.0]}
    with pytest.raises(ValueError, match=message):
        Timeline(**columns | change, lanes=("a",), kinds=("b",))


def test_a_window_must_not_end_before_it_starts():
    with pytest.raises(ValueError, match="between_s must be a window"):
        Timeline.of([]).select(between_s=(2, 1))
    assert len(Timeline.of([Span(0, "a", "b", 0, 0, 1)]).select(between_s=(-math.inf, math.inf))) == 1
    for wrong, message in ((3, "a list, got 3"), ((math.nan, 1), "got nan"), (("0", 1), "got '0'")):
        with pytest.raises(ValueError, match=f"between_s must be .*{message}"):
            Timeline.of([]).select(between_s=wrong)


def test_lanes_and_kinds_are_texts():
    with pytest.raises(ValueError, match="lanes must be a str, got 3"):
        Timeline.of([Span(0, 3, "b", 0, 0.0, 1.0)])
    with pytest.raises(ValueError, match="kinds must be a str, got None"):
        Timeline.of([Span(0, "a", None, 0, 0.0, 1.0)])


def test_a_tolerance_that_would_let_all_pass_is_refused():
    twice = Timeline.of([Span(0, "a", "b", 0, 0.0, 2.0), Span(0, "a", "b", 1, 1.0, 3.0)])
    for wrong in (math.nan, math.inf, -1.0, None, "0"):
        with pytest.raises(ValueError, match="tolerance_s must be a finite number of at least 0, got"):
            twice.check(wrong)
    with pytest.raises(ValueError, match="seconds must be a finite number, got None"):
        twice.shifted(None)


def pipeline(reads, steps):
    """Two lanes with a queue between them that never fills: step i waits for read i and for step i - 1."""
    spans, read_end, step_end = [], 0.0, 0.0
    for item, (read, step) in enumerate(zip(reads, steps, strict=True)):
        spans.append(Span(0, "read", "read", item, read_end, read_end + read))
        read_end += read
        start = max(read_end, step_end)
        spans.append(Span(0, "gpu", "step", item, start, start + step))
        step_end = start + step
    return spans


def test_lanes_and_kinds_can_be_put_in_an_order():
    timeline = Timeline.of([Span(0, "b", "y", 0, 0.0, 1.0), Span(0, "a", "x", 1, 1.0, 2.0)])
    assert timeline.rank_lanes() == [(0, "b"), (0, "a")]
    named = timeline.named(["c", "a"], ["x"])
    assert (named.lanes, named.kinds) == (("c", "a", "b"), ("x", "y"))
    assert named.rank_lanes() == [(0, "a"), (0, "b")]
    assert list(named) == list(timeline)


def test_waiting_is_no_work():
    timeline = Timeline.of([Span(0, "a", "step", 0, 0.0, 1.0), *(Span(0, "a", kind, 0, 1.0, 4.0) for kind in WAITS)])
    assert [span.kind for span in timeline.work()] == ["step"]
    assert timeline.utilisation() == {(0, "a"): 0.25}
