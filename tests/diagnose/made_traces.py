"""Traces of a job that is made up, in the form of torch.profiler's files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write_traces(folder: Path, late_s: Sequence[float]) -> Path:
    """Write a trace of six steps per rank of `late_s`, each of whose loaders takes so much longer than 2 ms.

    An allreduce ends everywhere at once, 10 ms after the last rank has come; clocks differ by milliseconds.
    """
    last_s = max(late_s)
    for rank, late in enumerate(late_s):
        events: list[dict[str, Any]] = []
        for number in range(6):
            at_s = 0.1 + 0.002 * rank + number * (last_s + 0.06)

            def add(name: str, start_s: float, stop_s: float, tid: int = 1) -> None:
                cat = "cpu_op" if name.startswith(("autograd", "c10d")) else "user_annotation"
                times = {"ts": (at_s + start_s) * 1e6, "dur": (stop_s - start_s) * 1e6}  # noqa: B023
                events.append({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, **times})  # noqa: B023

            add(f"ProfilerStep#{number}", 0.0, last_s + 0.057)
            add("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0.0, 0.002 + late)
            add("DistributedDataParallel.forward", 0.002 + late, 0.014 + late)
            add("autograd::engine::evaluate_function: MeanBackward0", 0.014 + late, 0.044 + late)
            for bucket, ready_s in enumerate((0.03, 0.044)):
                add("c10d::allreduce_", late + ready_s, late + ready_s)
                add("gloo:all_reduce", late + ready_s, last_s + ready_s + 0.01, tid=2 + bucket)
            add("Optimizer.step#SGD.step", last_s + 0.054, last_s + 0.057)
        info = {"backend": "gloo", "rank": rank, "world_size": len(late_s)}
        (folder / f"rank{rank}.json").write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))
    return folder
