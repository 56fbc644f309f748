"""`read_traces`: what profilers write becomes columns, and what cannot be read one clear error."""

from __future__ import annotations

import gzip
import json
import math
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.diagnose import diagnose, read_traces
from rankscope.diagnose.traces.kineto_events import kind_of_kernel
from rankscope.diagnose.traces.trace import CALL_KINDS, Trace

INFO = {"backend": "gloo", "rank": 1, "world_size": 2}


def event(name: str, ts: float, dur: float, cat: str = "user_annotation", tid: Any = 7, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": 1e15 + ts, "dur": dur, "args": args}


EVALUATE = "autograd::engine::evaluate_function: "


def gloo_step(start: float = 0, step: int = 3) -> list[dict[str, Any]]:
    """A step of 100 µs: two buckets, the second one is picked up when the first is done."""
    events = [
        event(f"ProfilerStep#{step}", 0, 100),
        event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1, 9),
        event("Optimizer.zero_grad#SGD.zero_grad", 11, 1),
        event("DistributedDataParallel.forward", 13, 7),
        event("aten::mm", 14, 2, "cpu_op"),
        event(EVALUATE + "AddmmBackward0", 25, 5, "cpu_op"),
        event(EVALUATE + "torch::autograd::AccumulateGrad", 30, 5, "cpu_op"),
        event("c10d::allreduce_", 33, 1, "cpu_op"),
        event(EVALUATE + "torch::autograd::AccumulateGrad", 40, 5, "cpu_op"),
        event("c10d::allreduce_", 43, 1, "cpu_op"),
        event("gloo:all_reduce", 35, 25, "user_annotation", 8),
        event("gloo:all_reduce", 60, 10, "user_annotation", 9),
        event("torch.distributed.ddp.reducer::copy_bucket_to_grad", 61, 1, "cpu_op"),
        event("torch.distributed.ddp.reducer::copy_bucket_to_grad", 71, 2, "cpu_op"),
        event("Optimizer.step#SGD.step", 80, 10),
        event("my range", 91, 5),
    ]
    return [event | {"ts": event["ts"] + start} for event in events]


def written(folder: Path, events: list[Any], name: str = "rank1.json", **info: Any) -> Path:
    content = json.dumps({"distributedInfo": INFO | info, "traceEvents": events, "traceName": name}).encode()
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def read(folder: Path, events: list[Any], **info: Any) -> Trace:
    (trace,) = read_traces(written(folder, events, **info))
    return trace


def spans(trace: Trace, lane: str) -> list[tuple[str, int, int, int]]:
    return [
        (span.kind, span.item, round(span.start_s * 1e6), round(span.stop_s * 1e6))
        for span in trace.timeline.select(lane=lane)
    ]


def test_a_folder_of_ranks_is_read_by_rank_packed_or_not(tmp_path: Path) -> None:
    for rank, name in ((1, "b.pt.trace.json.gz"), (0, "c.json")):
        written(tmp_path, gloo_step(), name, rank=rank)
    (tmp_path / "notes.txt").write_text("no trace")
    traces = read_traces(tmp_path)
    assert [(trace.rank, trace.source) for trace in traces] == [(0, "c.json"), (1, "b.pt.trace.json.gz")]


def test_gloos_work_that_was_launched_before_the_trace_does_not_take_the_next_launch(tmp_path: Path) -> None:
    events = [
        event("ProfilerStep#3", 0, 100),
        event("gloo:all_reduce", 5, 10, tid=8),
        event("c10d::allreduce_", 20, 1, "cpu_op"),
        event("gloo:all_reduce", 25, 10, tid=8),
    ]
    calls = read(tmp_path, events).calls
    np.testing.assert_allclose([call.launch_s for call in calls], [5e-6, 20e-6])
    np.testing.assert_allclose([call.start_s for call in calls], [5e-6, 25e-6])


# ---- GPUs


def gpu(name: str, ts: float, dur: float, stream: int, cat: str = "kernel", **args: Any) -> dict[str, Any]:
    return event(name, ts, dur, cat, stream, **args) | {"pid": 0}


NCCL = {"Collective name": "allreduce"}


def gpu_step() -> list[dict[str, Any]]:
    """Forward, backward on another thread, and a collective whose kind only the CPU's side says."""
    alltoall = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    return [
        event("ProfilerStep#4", 0, 100),
        event("DistributedDataParallel.forward", 10, 20),
        event("cudaLaunchKernel", 12, 1, "cuda_runtime", correlation=1),
        event("cudaMemcpyAsync", 14, 1, "cuda_runtime", correlation=2),
        event("cudaLaunchKernel", 32, 1, "cuda_runtime", correlation=3),
        event("cudaStreamSynchronize", 90, 5, "cuda_runtime", correlation=9),
        event(EVALUATE + "MmBackward0", 40, 10, "cpu_op", 8),
        event("cudaLaunchKernel", 41, 1, "cuda_runtime", 8, correlation=4),
        event("c10d::allreduce_", 43, 2, "cpu_op", 8),
        event("cudaLaunchKernelExC", 44, 1, "cuda_runtime", 8, correlation=5),
        event("c10d::alltoall_base_", 60, 5, "cpu_op"),
        event("record_param_comms", 61, 3, "cpu_op", **{"Collective name": "all_to_allv"}),
        event("cudaLaunchKernelExC", 62, 1, "cuda_runtime", correlation=6),
        gpu("gemm", 20, 10, 7, correlation=1),
        gpu("Memcpy HtoD (Pageable -> Device)", 25, 15, 9, "gpu_memcpy", correlation=2, bytes=4096),
        gpu("gemm", 45, 5, 7, correlation=3),
        gpu("gemm", 60, 20, 7, correlation=4),
        gpu("Memset (Device)", 85, 5, 7, "gpu_memset"),
        gpu("ncclDevKernel_AllReduce_Sum_f32_RING_LL(…)", 70, 30, 20, correlation=5, **NCCL),
        gpu(alltoall, 105, 5, 20, correlation=6),
        gpu("nccl:all_reduce", 70, 30, 20, "gpu_user_annotation"),
    ]


def test_a_step_on_a_gpu(tmp_path: Path) -> None:
    trace = read(tmp_path, gpu_step(), backend="nccl")
    assert spans(trace, "gpu") == [
        ("forward", 4, 20, 40),
        ("host", 4, 45, 50),
        ("backward", 4, 60, 80),
    ]
    assert spans(trace, "stream 9") == [("memcpy h2d", -1, 25, 40)]
    assert spans(trace, "stream 20") == [("allreduce", 0, 70, 100), ("alltoall", 1, 105, 110)]
    calls = trace.calls
    assert [call.kind for call in calls] == ["allreduce", "alltoall"]
    np.testing.assert_allclose([call.launch_s for call in calls], [44e-6, 62e-6])


def test_a_message_from_one_rank_to_another_is_no_collective(tmp_path: Path) -> None:
    """What states it as a message need not be the last event around its launch."""
    events = [
        event("ProfilerStep#4", 0, 100),
        event("record_param_comms", 10, 9, "cpu_op", **{"Collective name": "send"}),
        event("cudaLaunchKernelExC", 12, 1, "cuda_runtime", correlation=1),
        gpu("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 20, 5, 20, correlation=1),
    ]
    assert [call.kind for call in read(tmp_path, events, backend="nccl").calls] == ["send_recv"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "allreduce"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclWorkElem)", "reduce_scatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long)", "send_recv"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "nccl"),
        ("gemm_allreduce", "kernel"),
    ],
)
def test_nccl_kernels_alone_are_called_by_their_collective(name: str, kind: str) -> None:
    assert kind_of_kernel(name) == kind


# ---- published traces

TRACES = sorted((Path(__file__).parents[3] / "../shared/measurements/traces").glob("*.json.gz"))


def covered(*conditions: list[tuple[Any, Any]]) -> Any:
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
def test_published_traces_against_their_raw_events(path: Path) -> None:
    (trace,) = read_traces(path)
    streams = trace.timeline.select(lane=[lane for lane in trace.timeline.lanes if lane.startswith("stream ")])
    events = json.loads(gzip.decompress(path.read_bytes()), parse_float=Fraction)["traceEvents"]
    slices = [(e["cat"], e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X"]
    kernels = [(name.startswith("nccl"), start, stop) for cat, name, start, stop in slices if cat == "kernel"]
    nccl, compute = (
        [(start, stop) for is_nccl, start, stop in kernels if is_nccl == wanted] for wanted in (True, False)
    )
    close = partial(pytest.approx, rel=1e-9, abs=1e-9)  # seconds: float64 holds these clocks to a nanosecond
    assert streams.select(kind=CALL_KINDS).busy_s == close(covered(nccl) / 1e6)
    assert streams.select(kind="kernel").busy_s == close(covered(compute) / 1e6)
    if nccl:
        assert streams.overlap_s(CALL_KINDS, "kernel") == close(covered(nccl, compute) / 1e6)
    work = [slice_[2:] for slice_ in slices if slice_[0] in ("kernel", "gpu_memcpy", "gpu_memset")]
    assert streams.busy_s == close(covered(work) / 1e6)


# ---- damage, and what is odd


def test_a_trace_is_its_events_in_any_order_with_anything_around_them(tmp_path: Path) -> None:
    events = gpu_step()
    expected = read(tmp_path, events)
    mixed = [events[place] for place in np.random.default_rng(0).permutation(len(events))]
    around = {"note": ['"traceEvents": [', {"traceEvents": [1]}], "traceEvents": mixed, "after": [{}, {"a": "}, {"}]}
    for content in (around, mixed):  # the latter is a bare list of events
        (tmp_path / "rank1.json").write_text(json.dumps(content, indent=1))
        (trace,) = read_traces(tmp_path / "rank1.json")
        assert sorted(trace.timeline) == sorted(expected.timeline)
        assert sorted(trace.calls) == sorted(expected.calls)


@pytest.mark.parametrize(
    "odd",
    [{"dur": -1}, {"dur": None}, {"ts": "soon"}, {"ts": math.nan}, {"ts": -math.inf}, {"ph": "i"}, {"cat": "Trace"}],
    ids=str,
)
def test_odd_events_are_left_out(tmp_path: Path, odd: dict[str, Any]) -> None:
    trace = read(tmp_path, [*gloo_step(), event("my range", 1, 1) | odd, 3, "event", None, []])
    assert len(spans(trace, "main")) == 8


def test_ranks_that_the_names_say(tmp_path: Path) -> None:
    for name in ("rank_7.json", "worker-rank3.1700.pt.trace.json", "5.json"):
        written(tmp_path, gloo_step(), name, rank=None)
    assert [trace.rank for trace in read_traces(tmp_path)] == [3, 5, 7]


def test_a_damaged_file_among_good_ones_is_left_out_and_named(tmp_path: Path) -> None:
    for rank in range(3):
        written(tmp_path, gloo_step(), f"rank{rank}.json.gz", rank=rank, world_size=3)
    path = tmp_path / "rank1.json.gz"
    path.write_bytes(path.read_bytes()[:100])
    traces = read_traces(tmp_path)
    assert [trace.rank for trace in traces] == [0, 2]
    diagnosis = diagnose(traces)
    assert "rank1.json.gz" in diagnosis.problems[0]
    assert "no trace of rank 1" in str(diagnosis)


def test_a_trace_without_steps_is_one_step(tmp_path: Path) -> None:
    for rank in range(2):
        events = [event for event in gloo_step() if not event["name"].startswith("ProfilerStep")]
        written(tmp_path, events, f"rank{rank}.json", rank=rank)
    diagnosis = diagnose(read_traces(tmp_path))
    assert (diagnosis.steps, diagnosis.culprits) == ((0,), [])
    assert diagnosis.window_s == pytest.approx(69e-6)  # from the first event to the end of the last bucket
