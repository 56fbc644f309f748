"""Chrome traces: our own come back whole, those of torch's profiler and published ones against their raw events."""

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
from torch.profiler import ProfilerActivity, profile, record_function

from rankscope.common.files import FileError
from rankscope.timeline import Span, Timeline

PAIR = [Span(0, "b", "y", 0, 0.0, 1.0), Span(0, "a", "x", 1, 1.0, 2.0)]

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
    timeline = Timeline.from_chrome_trace(tmp_path / "torch.json")
    assert len(timeline) == sum(event["ph"] == "X" and event.get("cat") != "Trace" for event in events)
    assert timeline.begin_s == 0
    (step,) = timeline.select(kind="user_annotation")
    calls = timeline.select(kind="cpu_op")
    assert step.start_s <= calls.begin_s <= calls.end_s <= step.stop_s
    ours = {event.name: event.time_range.elapsed_us() for event in recorded.events()}
    assert (step.stop_s - step.start_s) * 1e6 == pytest.approx(ours["my step"], abs=0.01)


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


@pytest.mark.oracle
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
NAME = {"ph": "M", "name": "thread_name", "pid": 0, "tid": 0, "args": {"name": "main"}}


@pytest.mark.parametrize(
    "odd",
    [
        GOOD | {"dur": -1},
        GOOD | {"dur": None},
        GOOD | {"ts": None},
        GOOD | {"ts": "soon"},
        GOOD | {"ts": math.nan},
        GOOD | {"dur": math.inf},
        GOOD | {"ts": 10**400},
        GOOD | {"ph": "B"},
        None,
        [],
    ],
    ids=lambda odd: str(odd)[:60],
)
def test_odd_events_are_skipped_and_counted(tmp_path, odd):
    flow = {"ph": "s", "id": 1, "ts": 3, "args": 7}
    trace = {"distributedInfo": {"rank": None}, "traceEvents": [NAME, odd, GOOD, odd, {}, flow]}
    with pytest.warns(match=r"foreign\.json: skipped 2 of 6 events$") as said:
        timeline = read(tmp_path, trace)
    assert said[0].filename == __file__
    assert list(timeline) == [Span(0, "process 0, main", "a", -1, 0.0, 2e-6)]


def test_slices_that_cross_and_a_list_without_an_object_are_read(tmp_path):
    spans = read(tmp_path, [GOOD, GOOD | {"ts": GOOD["ts"] + 1, "tid": 1}, GOOD | {"ts": GOOD["ts"] + 1}])
    assert [(span.lane, span.start_s) for span in spans] == [
        ("process 0, 0", 0.0),
        ("process 0, 1", 1e-6),
        ("process 0, 0", 1e-6),
    ]


@pytest.mark.parametrize("rank", ["3", 0.5, 2**70])
def test_a_rank_that_is_none_is_an_error_with_the_path(tmp_path, rank):
    with pytest.raises(FileError, match=r"foreign\.json: "):
        read(tmp_path, {"distributedInfo": {"rank": rank}, "traceEvents": [GOOD]})


def test_a_damaged_trace_is_one_error_with_its_path(tmp_path):
    whole = Timeline.of(some_spans(20)).to_chrome_trace(tmp_path / "run.json").read_bytes()
    texts = [b"", b"[1, 2", b'{"events": []}', b"null", b"[" * 100_000, b"\xff\xfe\x00"]
    damaged = [whole[:-20], whole.replace(b'"args"', b'"arms"'), gzip.compress(whole)[:-20], b"\x1f\x8b" + b"0" * 50]
    for content in texts + damaged:
        (tmp_path / "run.json").write_bytes(content)
        with pytest.raises(FileError, match=r"run\.json: "):
            Timeline.from_chrome_trace(tmp_path / "run.json")
    with pytest.raises(FileNotFoundError):
        Timeline.from_chrome_trace(tmp_path / "nowhere.json")
