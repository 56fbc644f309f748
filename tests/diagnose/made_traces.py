"""Traces of a job that went exactly as a model says, in the form of torch.profiler's files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.train.ddp import LocalStep
from rankscope.train.ddp.cost import Cost
from rankscope.train.ddp.step import default_buckets, last_backward, launches

OPTIMIZER_S, LOADER_S = 0.003, 0.002
_GRADIENT = "torch::autograd::AccumulateGrad"


def write_traces(
    folder: Path,
    local: LocalStep,
    cost: Cost,
    *,
    late_s: Sequence[float] = (0.0, 0.0),
    cap_mb: float | None = None,
    num_steps: int = 6,
    shapes: bool = True,
) -> Path:
    """Write a trace per rank of `late_s`, each of whose loaders takes so much longer; clocks differ by milliseconds.

    A step is that of `ddp.simulate`: each allreduce starts when the last rank has come, and ends everywhere at once.
    """
    launched = launches(local, default_buckets(local, cap_mb))
    last = last_backward(local, launched, cost)
    begin_s = local.forward_s + max(late_s)  # of the last rank's backward
    for rank, late in enumerate(late_s):
        events: list[dict[str, Any]] = []

        def add(name: str, start_s: float, stop_s: float, tid: int = 1, **args: Any) -> None:
            cat = "user_annotation" if tid == 2 or name.startswith(("Prof", "enum", "Dist", "Opt")) else "cpu_op"
            times = {"ts": (at_s + start_s) * 1e6, "dur": (stop_s - start_s) * 1e6}  # noqa: B023
            events.append({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, **times, "args": args})  # noqa: B023

        def sized(num_bytes: int, kind: str = "float") -> dict[str, Any]:
            dims = [num_bytes // 4]
            return {"Input type": [kind], "Input Dims": [[dims] if kind == "TensorList" else dims]} if shapes else {}

        for number in range(num_steps):
            at_s = 0.1 + 0.002 * rank + number * (begin_s + last.end_s + OPTIMIZER_S)
            own_s, end_s = local.forward_s + late, begin_s + last.end_s
            add(f"ProfilerStep#{number}", 0.0, end_s + OPTIMIZER_S)
            add("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0.0, LOADER_S + late)
            add("DistributedDataParallel.forward", LOADER_S + late, own_s)
            add(
                "autograd::engine::evaluate_function: MeanBackward0", own_s, own_s + float(np.nanmin(local.ready_s)) / 2
            )
            for place in local.ready_order:
                ready_s = own_s + float(local.ready_s[place])
                add(f"autograd::engine::evaluate_function: {_GRADIENT}", ready_s, ready_s)
                add(_GRADIENT, ready_s, ready_s, **sized(int(local.sizes[place])))
            free_s = 0.0
            for launch_s, num_bytes, (_, stop_s) in zip(*launched, last.allreduces, strict=True):
                asked_s = own_s + float(launch_s)
                add("c10d::allreduce_", asked_s, asked_s, **sized(int(num_bytes), "TensorList"))
                add("gloo:all_reduce", max(asked_s, free_s), begin_s + stop_s, 2, **sized(int(num_bytes)))
                free_s = begin_s + stop_s
            add("Optimizer.step#SGD.step", end_s, end_s + OPTIMIZER_S)
        info = {"backend": "gloo", "rank": rank, "world_size": len(late_s)}
        content = {"record_shapes": int(shapes), "distributedInfo": info, "traceEvents": events}
        (folder / f"rank{rank}.json").write_text(json.dumps(content))
    return folder
