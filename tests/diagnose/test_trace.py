"""`read_traces`: what profilers write becomes columns, and what cannot be read one clear error."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.diagnose import read_traces
from rankscope.diagnose.trace import Trace

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
    return [one | {"ts": one["ts"] + start} for one in events]


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
        (one.kind, one.item, round(one.start_s * 1e6), round(one.stop_s * 1e6))
        for one in trace.timeline.select(lane=lane)
    ]


def test_a_step_on_gloo(tmp_path: Path) -> None:
    trace = read(tmp_path, [{"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}}, *gloo_step()])
    assert (trace.rank, trace.source) == (1, "rank1.json")
    assert trace.num_others == {"cpu_op": 1, "metadata": 1}
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
    assert trace.gradient_bytes.tolist() == [200, 100]
    calls = trace.calls
    assert (calls.groups, calls.kinds, calls.num_bytes.tolist()) == (("0",), ("allreduce",), [200, 100])
    np.testing.assert_allclose(calls.launch_s, [33e-6, 43e-6])
    np.testing.assert_allclose(calls.stop_s, [60e-6, 70e-6])


def test_a_folder_of_ranks_is_read_by_rank_packed_or_not(tmp_path: Path) -> None:
    for rank, name in ((1, "b.pt.trace.json.gz"), (0, "c.json")):
        written(tmp_path, gloo_step(), name, rank=rank)
    (tmp_path / "notes.txt").write_text("no trace")
    lines: list[str] = []
    traces = read_traces(tmp_path, report=lines.append)
    assert [(trace.rank, trace.source) for trace in traces] == [(0, "c.json"), (1, "b.pt.trace.json.gz")]
    assert lines == ["read b.pt.trace.json.gz", "read c.json"]
    assert [trace.rank for trace in read_traces(tmp_path, ranks=[1])] == [1]


def test_a_call_that_never_ended(tmp_path: Path) -> None:
    trace = read(tmp_path, [one for one in gloo_step() if one["tid"] != 9])
    assert len(trace.calls) == 2
    assert trace.calls.launch_s[1] == pytest.approx(43e-6)
    assert math.isnan(trace.calls.stop_s[1])
