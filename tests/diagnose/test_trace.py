"""`read_traces`: what profilers write becomes columns, and what cannot be read one clear error."""

from __future__ import annotations

import gzip
import json
import math
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.diagnose import read_traces
from rankscope.diagnose.trace import Trace, gpu_times

INFO = {"backend": "gloo", "rank": 1, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}


def event(name: str, ts: float, dur: float, cat: str = "user_annotation", tid: Any = 7, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": 1e15 + ts, "dur": dur, "args": args}


def sized(name: str, ts: float, dur: float, num: int, cat: str = "cpu_op", tid: int = 7) -> dict[str, Any]:
    kind, dims = ("TensorList", [[num]]) if name.startswith("c10d") else ("float", [num])
    return event(name, ts, dur, cat, tid, **{"Input type": [kind, ""], "Input Dims": [dims, []]})


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
        sized("torch::autograd::AccumulateGrad", 31, 1, 50),
        sized("c10d::allreduce_", 33, 1, 50),
        event(EVALUATE + "torch::autograd::AccumulateGrad", 40, 5, "cpu_op"),
        sized("torch::autograd::AccumulateGrad", 41, 1, 25),
        sized("c10d::allreduce_", 43, 1, 25),
        sized("gloo:all_reduce", 35, 25, 50, "user_annotation", 8),
        sized("gloo:all_reduce", 60, 10, 25, "user_annotation", 9),
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


def test_a_step_on_gloo(tmp_path: Path) -> None:
    trace = read(tmp_path, [{"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}}, *gloo_step()])
    assert (trace.rank, trace.source) == (1, "rank1.json")
    assert spans(trace, "main") == [
        ("step", 3, 0, 100),
        ("loader", -1, 1, 10),
        ("zero_grad", -1, 11, 12),
        ("forward", -1, 13, 20),
        ("launch", 0, 33, 34),
        ("launch", 1, 43, 44),
        ("unpack", -1, 61, 62),
        ("unpack", -1, 71, 73),
        ("optimizer", -1, 80, 90),
        ("range: my range", -1, 91, 96),
    ]
    assert spans(trace, "backward") == [("backward", -1, 25, 45), ("gradient", 0, 30, 35), ("gradient", 1, 40, 45)]
    assert spans(trace, "gloo") == [("allreduce", 0, 35, 60), ("allreduce", 1, 60, 70)]
    calls = trace.calls
    assert (calls.groups, calls.kinds, calls.num_bytes.tolist()) == (("0",), ("allreduce",), [200, 100])
    np.testing.assert_allclose(calls.launch_s, [33e-6, 43e-6])
    np.testing.assert_allclose(calls.stop_s, [60e-6, 70e-6])


def test_a_wait_between_two_buckets_is_no_unpacking_though_its_end_is_recorded_late(tmp_path: Path) -> None:
    copy = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
    work = sized("gloo:all_reduce", 60, 1000, 25, "user_annotation", 9)  # ends at 1060, after the copy has begun
    events = [event("ProfilerStep#3", 0, 1100), event(copy, 61, 1, "cpu_op"), event(copy, 62, 2, "cpu_op"), work]
    trace = read(tmp_path, [*events, event(copy, 1058, 1, "cpu_op"), event("Optimizer.step#SGD.step", 1070, 10)])
    assert [span for span in spans(trace, "main") if span[0] == "unpack"] == [
        ("unpack", -1, 61, 64),
        ("unpack", -1, 1058, 1059),
    ]


def test_a_folder_of_ranks_is_read_by_rank_packed_or_not(tmp_path: Path) -> None:
    for rank, name in ((1, "b.pt.trace.json.gz"), (0, "c.json")):
        written(tmp_path, gloo_step(), name, rank=rank)
    (tmp_path / "notes.txt").write_text("no trace")
    lines: list[str] = []
    traces = read_traces(tmp_path, report=lines.append)
    assert [(trace.rank, trace.source) for trace in traces] == [(0, "c.json"), (1, "b.pt.trace.json.gz")]
    assert lines == ["read b.pt.trace.json.gz", "read c.json"]


def test_a_call_that_never_ended(tmp_path: Path) -> None:
    trace = read(tmp_path, [event for event in gloo_step() if event["tid"] != 9])
    assert len(trace.calls) == 2
    assert trace.calls.launch_s[1] == pytest.approx(43e-6)
    assert math.isnan(trace.calls.stop_s[1])


def test_a_step_of_fsdp_has_a_forward_and_gloos_reduce_scatter_is_an_allreduce(tmp_path: Path) -> None:
    events = [
        event("ProfilerStep#3", 0, 100),
        event("FSDP::root_pre_forward", 5, 2),
        event("FSDP::pre_forward (layer 0)", 8, 2),
        event("FSDP::all_gather (layer 0)", 9, 1),
        event("FSDP::post_forward (layer 0)", 20, 4),
        event(EVALUATE + "MmBackward0", 30, 20, "cpu_op"),
        event("FSDP::pre_forward (layer 0)", 35, 2),
        sized("c10d::_reduce_scatter_base_", 45, 2, 30),
        sized("gloo:all_reduce", 46, 9, 60, "user_annotation", 8),
        event("Optimizer.step#SGD.step", 60, 10),
    ]
    trace = read(tmp_path, events)
    assert [span for span in spans(trace, "main") if span[0] == "forward"] == [("forward", -1, 5, 24)]
    assert spans(trace, "gloo") == [("reduce_scatter", 0, 46, 55)]
    assert trace.calls.num_bytes.tolist() == [240]


# ---- GPUs


def gpu(name: str, ts: float, dur: float, stream: int, cat: str = "kernel", **args: Any) -> dict[str, Any]:
    return event(name, ts, dur, cat, stream, **args) | {"pid": 0}


NCCL = {"Collective name": "allreduce", "In msg nelems": 50, "dtype": "Float", "Process Group Name": "3"}


def gpu_step() -> list[dict[str, Any]]:
    """Forward, backward on another thread, and a collective whose size only the CPU's side says."""
    alltoall = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    sizes = {"Input Dims": [[6], []], "Input type": ["c10::Half", ""]}
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
        event("record_param_comms", 61, 3, "cpu_op", **{"Collective name": "all_to_allv", "Process Group Name": "7"}),
        event("nccl:all_to_all", 61.5, 2, **sizes),
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
    assert spans(trace, "stream 9") == [("memcpy h2d", 4096, 25, 40)]
    assert spans(trace, "stream 20") == [("allreduce", 0, 70, 100), ("alltoall", 1, 105, 110)]
    assert spans(trace, "thread 8") == [
        ("cuda_runtime", -1, 41, 42),
        ("launch", 0, 43, 45),
        ("cuda_runtime", -1, 44, 45),
    ]
    assert [span for span in spans(trace, "main") if span[0] in ("launch", "cuda_sync")] == [
        ("launch", 1, 60, 65),
        ("cuda_sync", -1, 90, 95),
    ]
    calls = trace.calls
    assert (calls.groups, calls.kinds, calls.num_bytes.tolist()) == (("3", "7"), ("allreduce", "alltoall"), [200, 12])
    np.testing.assert_allclose(calls.launch_s, [44e-6, 62e-6])


def test_a_message_from_one_rank_to_another_is_no_collective(tmp_path: Path) -> None:
    """What states it as a message need not be the last event around its launch."""
    events = [
        event("ProfilerStep#4", 0, 100),
        event("record_param_comms", 10, 9, "cpu_op", **{"Collective name": "send", "Process Group Name": "3"}),
        event("cudaLaunchKernelExC", 12, 1, "cuda_runtime", correlation=1),
        gpu("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 20, 5, 20, correlation=1),
    ]
    calls = read(tmp_path, events, backend="nccl").calls
    assert (calls.groups, calls.kinds) == (("3",), ("send_recv",))


def counted(*intervals: list[tuple[int, int]]) -> int:
    """Microseconds in which one of each runs, one by one."""
    return sum(all(any(a <= at < b for a, b in lane) for lane in intervals) for at in range(500))


@pytest.mark.parametrize("seed", range(5))
def test_times_of_a_gpu_are_what_counting_gives(tmp_path: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    lanes: dict[str, list[tuple[int, int]]] = {
        "gemm": [],
        "ncclDevKernel_Broadcast_RING_LL": [],
        "Memset (Unknown)": [],
    }
    events = []
    for place, (name, mine) in enumerate(lanes.items()):
        for start, length in zip(draw.integers(0, 400, 20).tolist(), draw.integers(0, 20, 20).tolist(), strict=True):
            mine.append((start, start + length))
            events.append(gpu(name, start, length, place % 2, "gpu_memset" if place == 2 else "kernel"))
    compute, communication, _ = lanes.values()
    everything = [interval for mine in lanes.values() for interval in mine]
    total = max(b for _, b in everything) - min(a for a, _ in everything)
    busy = counted(everything)
    expected = (total, busy, total - busy, counted(compute), counted(communication), counted(compute, communication))
    np.testing.assert_allclose(gpu_times(read(tmp_path, events)), np.array(expected) / 1e6, atol=1e-12)


TRACES = sorted((Path(__file__).parents[2] / "../shared/measurements/traces").glob("*.json.gz"))
HTA = os.environ.get("RANKSCOPE_HTA", "")  # an interpreter that has HolisticTraceAnalysis 0.5.0
ASK = """
import json, sys, warnings, logging
warnings.simplefilter("ignore"); logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/", include_last_profiler_step=True)
(times,) = analysis.get_temporal_breakdown(visualize=False).to_dict("records")
(overlap,) = analysis.get_comm_comp_overlap(visualize=False).to_dict("records")
print(json.dumps(times | overlap))
"""


@pytest.mark.slow
@pytest.mark.skipif(not TRACES or not HTA, reason="no published traces, or RANKSCOPE_HTA names no interpreter with HTA")
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.split("-")[1])
def test_hta_finds_the_same_times_in_published_traces(path: Path) -> None:
    environment = os.environ | {"HTA_DISABLE_NS_ROUNDING": "1"}
    command = [HTA, "-c", ASK, str(path)]
    theirs = json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    (trace,) = read_traces(path)
    ours = gpu_times(trace)
    close = partial(pytest.approx, rel=0.01)  # HTA takes waits for kernels, so that its first and last are others
    assert theirs["kernel_time(us)"] == close(ours.total_s * 1e6)
    assert theirs["idle_time(us)"] == close(ours.idle_s * 1e6)
    assert theirs["compute_time(us)"] == close(ours.compute_s * 1e6)
    if ours.communication_s:
        ratio = 100 * ours.overlap_s / ours.communication_s
        assert theirs["comp_comm_overlap_pctg"] == pytest.approx(ratio, abs=0.006)


# ---- damage, and what is odd


SAMPLE = [*gloo_step(), *gpu_step(), event('a "quoted" }, { name', 97, 1), event("user", 98, 1, nested=[{"a": 1}, {}])]


def same(trace: Trace, other: Trace) -> bool:
    return list(trace.timeline) == list(other.timeline)


@pytest.mark.parametrize("indent", [None, 1])
def test_what_stands_around_the_events_does_not_matter(tmp_path: Path, indent: int | None) -> None:
    trace = {"note": ['"traceEvents": [', {"traceEvents": [1]}], "traceEvents": SAMPLE, "after": [{}, {"a": "}, {"}]}
    path = tmp_path / "rank1.json"
    path.write_text(json.dumps(trace, indent=indent))
    (whole,) = read_traces(path)
    path.with_name("rank1_list.json").write_text(json.dumps(SAMPLE, indent=indent))
    (bare,) = read_traces(path.with_name("rank1_list.json"))
    assert same(bare, whole)


@pytest.mark.parametrize(
    "odd",
    [
        {"dur": -1},
        {"dur": None},
        {"ts": "soon"},
        {"ts": math.nan},
        {"ts": -math.inf},
        {"dur": 1e300},
        {"ts": 10**400},
        {"ph": "B"},
        {"ph": "E"},
    ],
    ids=str,
)
def test_odd_events_are_left_out(tmp_path: Path, odd: dict[str, Any]) -> None:
    trace = read(tmp_path, [*gloo_step(), event("my range", 1, 1) | odd, 3, "event", None, []])
    assert len(spans(trace, "main")) == 10


def test_pairs_of_b_and_e_are_ranges(tmp_path: Path) -> None:
    pairs = []
    for event in gloo_step():
        pairs += [event | {"ph": "B", "dur": None}, event | {"ph": "E", "ts": event["ts"] + event["dur"], "name": None}]
    pairs.sort(key=lambda event: event["ts"])
    trace, expected = read(tmp_path, pairs), read(tmp_path, gloo_step())
    assert same(trace, expected)


@pytest.mark.parametrize("events", [gloo_step(), gpu_step()], ids=["gloo", "gpu"])
def test_events_come_in_any_order(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    mixed = [events[place] for place in np.random.default_rng(0).permutation(len(events))]
    trace, expected = read(tmp_path, mixed), read(tmp_path, events)
    assert sorted(trace.timeline) == sorted(expected.timeline)
    for name in ("num_bytes", "launch_s", "start_s", "stop_s"):
        np.testing.assert_array_equal(getattr(trace.calls, name), getattr(expected.calls, name))


@pytest.mark.parametrize("sizes", [[None, 2], [2, None]])
def test_a_trace_that_does_not_state_the_size_of_the_job_fits_any(tmp_path: Path, sizes: list[int | None]) -> None:
    for rank, size in enumerate(sizes):
        written(tmp_path, gloo_step(), f"rank{rank}.json", rank=rank, world_size=size)
    assert [trace.rank for trace in read_traces(tmp_path)] == [0, 1]


def test_ranks_that_the_names_say(tmp_path: Path) -> None:
    for name in ("rank_7.json", "worker-rank3.1700.pt.trace.json", "5.json"):
        written(tmp_path, gloo_step(), name, rank=None)
    assert [trace.rank for trace in read_traces(tmp_path)] == [3, 5, 7]


def test_several_processes_read_as_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(3):
        written(tmp_path, SAMPLE, f"{rank}.json.gz", rank=rank, world_size=3)
    alone = read_traces(tmp_path)
    monkeypatch.setattr("rankscope.diagnose.kineto._IN_PARALLEL_BYTES", 0)
    monkeypatch.setattr("rankscope.diagnose.kineto.num_cores", lambda: 2)
    lines: list[str] = []
    together = read_traces(tmp_path, report=lines.append)
    assert all(same(trace, other) for trace, other in zip(alone, together, strict=True))
    assert sorted(lines) == ["read 0.json.gz", "read 1.json.gz", "read 2.json.gz"]
