"""Timelines: their figures against time cut into quarter seconds and counted, and traces that come back whole."""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile, record_function

from rankscope.timeline import Span, Timeline
from rankscope.timeline.timeline import WAITS, TimelineError

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
    assert list(timeline[1:9:2]) == spans[1:9:2]
    assert len(timeline) == len(spans)
    end = max((s.stop_s for s in spans), default=0.0)
    assert timeline.makespan_s == end - min((s.start_s for s in spans), default=0.0)
    assert timeline.busy_s == busy(spans, lambda s: True)
    if {"step", "allreduce"} <= {s.kind for s in spans}:
        assert timeline.overlap_s("step", "allreduce") == overlap(spans, "step", "allreduce")
        either = [s._replace(kind="step" if s.kind == "load" else s.kind) for s in spans]
        assert timeline.overlap_s(["load", "step"], "allreduce") == overlap(either, "step", "allreduce")
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
        with pytest.raises(TimelineError, match="spans overlap on one lane: Span"):
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


# ---- columns


def test_columns_stay_as_they_were():
    with pytest.raises(ValueError, match="read-only"):
        Timeline.of(PAIR).start_s[0] = 5
    place, start_s = np.zeros(1, np.int64), np.array([0.0, 9.0])
    view = start_s[:1]
    view.flags.writeable = False  # what it is a view of is not
    timeline = Timeline(place, place, place, place, view, np.array([1.0]), ("a",), ("b",))
    place[0], start_s[0] = -1, 0.5
    assert timeline[0] == Span(0, "a", "b", 0, 0.0, 1.0)
    again = timeline.shifted(0.0)
    assert np.shares_memory(again.item, timeline.item), "what nobody can write to is not copied"


# ---- our own traces


def some_spans(count=200):
    draw = np.random.default_rng(0)
    words = ["read", "gpu", 'a "quoted" lane', "µ"]
    for _ in range(count):
        start = float(draw.uniform(0, 1e5))
        rank, item = int(draw.integers(4)), int(draw.integers(-1, 10))
        lane, kind = map(str, draw.choice(words, 2))
        length = float(draw.choice([0.0, 1e-9, draw.exponential()]))
        yield Span(rank, lane, kind, item, start, start + length)


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_our_own_trace_comes_back(tmp_path, name):
    timeline = Timeline.of(some_spans(2000)).named(["idle", "µ", "gpu"], ["none", "gpu"])
    again = Timeline.from_chrome_trace(timeline.to_chrome_trace(tmp_path / name))
    assert list(again) == list(timeline)
    assert (again.lanes, again.kinds) == (timeline.lanes, timeline.kinds)
    assert again.rank_lanes() == timeline.rank_lanes()
    assert list(Timeline.from_chrome_trace(Timeline.of([]).to_chrome_trace(tmp_path / "empty.json"))) == []


def test_the_trace_is_what_viewers_read(tmp_path):
    path = Timeline.of([Span(3, "gpu", "step", 7, 1.0, 1.5)]).to_chrome_trace(tmp_path / "run.json")
    events = json.loads(path.read_text())["traceEvents"]
    names = {(e["name"], e["pid"]): e["args"] for e in events if e["ph"] == "M"}
    assert names["process_name", 3] == {"name": "rank 3"}
    assert names["thread_name", 3] == {"name": "gpu"}
    (span,) = [e for e in events if e["ph"] == "X"]
    assert (span["name"], span["cat"]) == ("step 7", "step")
    assert (int(span["ts"] * 1000), int(span["dur"] * 1000)) == (10**9, 5 * 10**8)


def crossing_slices(path, whole):
    """The pairs of slices of a thread that cross, in nanoseconds made `whole` as a viewer does: Perfetto drops one."""
    threads = defaultdict(list)
    for event in json.loads(path.read_text())["traceEvents"]:
        if event["ph"] == "X":
            start_ns, length_ns = whole(event["ts"] * 1000.0), whole(event["dur"] * 1000.0)
            threads[event["pid"], event["tid"]].append((start_ns, -length_ns))
    crossing = []
    for slices in threads.values():
        open_stops_ns = []
        for start_ns, minus_length_ns in sorted(slices):
            stop_ns = start_ns - minus_length_ns
            while open_stops_ns and open_stops_ns[-1] <= start_ns:
                open_stops_ns.pop()
            if open_stops_ns and stop_ns > open_stops_ns[-1]:
                crossing.append((start_ns, stop_ns))
            open_stops_ns.append(stop_ns)
    return crossing


@pytest.mark.parametrize("whole", [int, round])
def test_no_slices_of_the_trace_cross(tmp_path, whole):
    """Neither those of spans that run at once on a lane, nor those of spans that touch, by rounding."""
    at_once = Timeline.of(some_spans(400))
    rng = np.random.default_rng(0)
    starts_ns = 100 * (np.arange(1000) // 5) + rng.integers(0, 12, 1000)  # groups of five that may cross by nanoseconds
    stops_ns = starts_ns + rng.integers(0, 12, 1000)
    columns_ns = zip(starts_ns.tolist(), stops_ns.tolist(), strict=True)
    short = Timeline.of(Span(0, "loop", "step", -1, start * 1e-9, stop * 1e-9) for start, stop in columns_ns)
    edges = 21_497.18 + np.cumsum(np.random.default_rng(1).exponential(1e-3, 500))
    touching = Timeline.of(Span(0, "loop", "step", -1, start, stop) for start, stop in pairwise(edges.tolist()))
    for name, timeline in {"at_once": at_once, "short": short, "touching": touching}.items():
        path = timeline.to_chrome_trace(tmp_path / f"{name}.json")
        assert crossing_slices(path, whole) == []
        assert list(Timeline.from_chrome_trace(path)) == list(timeline)
        events = json.loads(path.read_text())["traceEvents"]
    assert {event["tid"] for event in events if event["ph"] == "X"} == {0}  # spans that only touch share a thread


def test_a_mark_has_its_time_in_microseconds(tmp_path):
    mark = {"ph": "i", "name": "here", "pid": 0, "tid": 0, "ts": 1.5}
    path = Timeline.of(PAIR).to_chrome_trace(tmp_path / "run.json", marks=[mark])
    assert json.loads(path.read_text())["traceEvents"][-1]["ts"] == pytest.approx(1.5, abs=1e-3)
    assert list(Timeline.from_chrome_trace(path)) == PAIR


# ---- traces of others


def read(folder, trace):
    (folder / "foreign.json").write_text(json.dumps(trace))
    return Timeline.from_chrome_trace(folder / "foreign.json")


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # torch 2.11
def test_a_trace_of_torch_profiler(tmp_path):
    with profile(activities=[ProfilerActivity.CPU]) as recorded, record_function("my step"):
        torch.randn(64, 64) @ torch.randn(64, 64)
    recorded.export_chrome_trace(str(tmp_path / "torch.json"))
    events = json.loads((tmp_path / "torch.json").read_text())["traceEvents"]
    timeline = Timeline.from_chrome_trace(tmp_path / "torch.json", kind="name")
    assert len(timeline) == sum(event["ph"] == "X" and event.get("cat") != "Trace" for event in events)
    assert timeline.begin_s == 0
    (step,) = timeline.select(kind="my step")
    (product,) = timeline.select(kind="aten::mm")
    assert step.start_s <= product.start_s <= product.stop_s <= step.stop_s
    ours = {event.name: event.time_range.elapsed_us() for event in recorded.events()}
    assert (product.stop_s - product.start_s) * 1e6 == pytest.approx(ours["aten::mm"], abs=0.01)
    assert "cpu_op" in Timeline.from_chrome_trace(tmp_path / "torch.json").kinds


def test_begin_and_end_pairs_and_the_bare_list(tmp_path):
    place = {"cat": "c", "pid": 1, "tid": 1}
    events = [
        {"ph": "B", "name": "outer", "ts": 1000, **place},
        {"ph": "B", "name": "inner", "ts": 1200, **place},
        {"ph": "E", "ts": 1500, **place},
        {"ph": "i", "name": "an instant", "ts": 1500, **place},
        {"ph": "E", "ts": 2000, **place},
        {"ph": "E", "ts": 2500, **place},
    ]
    with pytest.warns(match=r"foreign\.json: skipped 1 of 6 events, .* ts=2500,"):
        spans = list(read(tmp_path, events))
    assert [(s.kind, s.start_s, s.stop_s) for s in spans] == [
        ("c", pytest.approx(0.0002), pytest.approx(0.0005)),
        ("c", 0.0, 0.001),
    ]


def test_the_rank_that_the_profiler_names(tmp_path):
    trace = {"distributedInfo": {"rank": 3}, "traceEvents": [{"ph": "X", "name": "a", "ts": 1.7e15, "dur": 2}]}
    assert list(read(tmp_path, trace)) == [Span(3, "process 0, 0", "a", -1, 0.0, 2e-6)]


@pytest.mark.parametrize(
    ("name", "category", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "kernel", "allreduce"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclWorkElem)", "kernel", "reduce_scatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "Kernel", "reduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long)", "kernel", "send_recv"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "kernel", "nccl"),
        ("gemm_allreduce", "kernel", "kernel"),
        ("nccl:all_reduce", "user_annotation", "user_annotation"),
        ("nccl:all_reduce", "gpu_user_annotation", "gpu_user_annotation"),
        ("ncclAllReduce", "cpu_op", "cpu_op"),
    ],
)
def test_nccl_kernels_alone_are_called_by_their_collective(tmp_path, name, category, kind):
    event = {"ph": "X", "cat": category, "name": name, "ts": 1, "dur": 1}
    assert [span.kind for span in read(tmp_path, [event])] == [kind]


def gpu_trace():
    """Two streams of a GPU for 20 µs, the profiler's own span of 50 µs, and labels, on the CPU and on a stream."""
    rows = [
        ("Trace", "Spans", "PyTorch Profiler", -10, 50, "PyTorch Profiler (0)"),
        ("user_annotation", 9, 1, 0, 20, "nccl:all_reduce"),
        ("gpu_user_annotation", 0, 20, 4, 10, "nccl:all_reduce"),
        ("cuda_sync", 0, 7, 6, 4, "Stream Wait Event"),
        ("kernel", 0, 7, 0, 6, "gemm"),
        ("kernel", 0, 7, 10, 4, "gemm"),
        ("kernel", 0, 20, 4, 3, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(…)"),
        ("kernel", 0, 20, 12, 2, "ncclDevKernel_Generic_4(…)"),
    ]
    names = [(0, 7, "stream 7"), (0, 20, "stream 20"), (9, 1, "main")]
    given = [{"ph": "M", "name": "thread_name", "pid": p, "tid": t, "args": {"name": name}} for p, t, name in names]
    fields = ("cat", "pid", "tid", "ts", "dur", "name")
    return given + [{"ph": "X"} | dict(zip(fields, row, strict=True)) for row in rows]


def test_communication_overlap_and_idle_streams_of_a_small_trace(tmp_path):
    timeline = read(tmp_path, gpu_trace())
    assert timeline.makespan_s == pytest.approx(20e-6)
    assert timeline.select(kind=Timeline.COMMUNICATION).busy_s == pytest.approx(5e-6)
    assert timeline.select(kind="kernel").busy_s == pytest.approx(10e-6)
    assert timeline.overlap_s(Timeline.COMMUNICATION, "kernel") == pytest.approx(4e-6)
    streams = timeline.select(lane=("process 0, stream 7", "process 0, stream 20"))
    assert streams.makespan_s - streams.work().busy_s == pytest.approx(3e-6)
    assert streams.utilisation()[0, "process 0, stream 20"] == pytest.approx(5 / 14)


TRACES = sorted((Path(__file__).parents[2] / "../shared/measurements/traces").glob("*.json.gz"))


def covered(*conditions):
    """Microseconds in which an interval of each list runs, an edge at a time."""
    edges = sorted(
        (at, way, place) for place, pairs in enumerate(conditions) for a, b in pairs for at, way in ((a, 1), (b, -1))
    )
    running, total = [0] * len(conditions), 0
    for (at, way, place), (then, *_) in pairwise(edges):
        running[place] += way
        total += (then - at) * all(running)
    return total


@pytest.mark.slow
@pytest.mark.skipif(not TRACES, reason="published traces are not here")
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.split("-")[1])
def test_published_traces_against_their_raw_events(path):
    timeline = Timeline.from_chrome_trace(path)
    events = json.loads(gzip.decompress(path.read_bytes()), parse_float=Fraction)["traceEvents"]
    spans = [e | {"stop": e["ts"] + e["dur"]} for e in events if e["ph"] == "X" and e["cat"] != "Trace"]
    kernels = [(e["name"].startswith("nccl"), e["ts"], e["stop"]) for e in spans if e["cat"] == "kernel"]
    nccl, compute = (
        [(start, stop) for is_nccl, start, stop in kernels if is_nccl == wanted] for wanted in (True, False)
    )
    close = partial(pytest.approx, rel=1e-9, abs=1e-9)  # seconds: float64 holds these clocks to a nanosecond
    assert timeline.select(kind=Timeline.COMMUNICATION).busy_s == close(covered(nccl) / 1e6)
    assert timeline.select(kind="kernel").busy_s == close(covered(compute) / 1e6)
    if nccl:
        assert timeline.overlap_s(Timeline.COMMUNICATION, "kernel") == close(covered(nccl, compute) / 1e6)
    streams = {e["tid"] for e in spans if e["cat"] == "kernel"}
    work = [
        (e["ts"], e["stop"])
        for e in spans
        if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset") and e["tid"] in streams
    ]
    lanes = {
        timeline.lanes[lane] for kind in ("kernel", *Timeline.COMMUNICATION) for lane in timeline.select(kind=kind).lane
    }
    assert timeline.select(lane=lanes).work().busy_s == close(covered(work) / 1e6)
    assert timeline.makespan_s == close((max(e["stop"] for e in spans) - min(e["ts"] for e in spans)) / 1e6)


GOOD = {"ph": "X", "name": "a", "ts": 1.7e15, "dur": 2}
GIVEN = {"ph": "M", "name": "thread_name", "pid": 0, "tid": 0, "args": {"name": "main"}}


@pytest.mark.parametrize(
    "odd",
    [
        GOOD | {"dur": -1},
        GOOD | {"dur": None},
        GOOD | {"ts": None},
        GOOD | {"ts": math.nan},
        GOOD | {"ph": "B"},
        GOOD | {"ph": "E"},
        GIVEN | {"args": {}},
        None,
    ],
    ids=lambda odd: str(odd)[:80],
)
def test_odd_events_are_skipped_and_counted(tmp_path, odd):
    trace = {"distributedInfo": {"rank": None}, "traceEvents": [GIVEN, odd, GOOD, odd, {}]}
    with pytest.warns(match=r"^\S+foreign\.json: skipped 2 of 5 events, the first: ") as said:
        timeline = read(tmp_path, trace)
    assert list(timeline) == [Span(0, "process 0, main", "a", -1, 0.0, 2e-6)]
    assert len(said) == 1
    with pytest.raises(ValueError, match="no event that can be read"):
        read(tmp_path, [odd])


def test_a_damaged_trace_is_one_clear_error(tmp_path):
    whole = Timeline.of(some_spans(20)).to_chrome_trace(tmp_path / "run.json").read_bytes()
    newer = whole.replace(b'"version": 1', b'"version": 2')
    shapes = [b"", b"[1, 2]", b'{"events": []}', b"null", b"[" * 100_000]
    for content in [*shapes, whole[:-20], gzip.compress(whole)[:-20], newer, b"\x1f\x8b" + b"0" * 50, b"\xff\xfe\x00"]:
        (tmp_path / "run.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"run\.json: not a usable trace: "):
            Timeline.from_chrome_trace(tmp_path / "run.json")
    with pytest.raises(FileNotFoundError):
        Timeline.from_chrome_trace(tmp_path / "nowhere.json")
