"""Traces as torch.profiler writes them, of as many events as wanted, for `older`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LAYERS = 50
PER_STEP = 2 + LAYERS * 24 + LAYERS // 10 * 6


def event(name: str, cat: str, tid: int, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    pid = 0 if cat in ("kernel", "gpu_memcpy") else 4242
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def flow(correlation: int, ts: float) -> Iterator[dict[str, Any]]:
    """The arrow from a launch to its kernel."""
    for phase in "sf":
        yield {"ph": phase, "id": correlation, "pid": 4242, "tid": 4242, "ts": ts, "cat": "ac2g", "name": "ac2g"}


def step(number: int, correlation: int) -> Iterator[dict[str, Any]]:
    """A step of 100 ms: LAYERS layers of 4 kernels, and an allreduce every 10 layers that overlaps with them."""
    start = 4529275270954.0 + number * 100_000
    yield event(f"ProfilerStep#{number}", "user_annotation", 4242, start, 99_990.5, **{"External id": number})
    yield event("DistributedDataParallel.forward", "user_annotation", 4242, start + 5.25, 40_000.125)
    shapes: dict[str, Any] = {
        "Input Dims": [[64, 1024], [1024, 1024], [], []],
        "Input type": ["float", "float", "", ""],
    }
    shapes["Input Strides"] = [[1024, 1], [1024, 1], [], []]
    kernel_args = {"queued": 0, "device": 0, "context": 1, "stream": 7, "registers per thread": 96, "warps per SM": 9.4}
    kernel_args |= {"grid": [8, 16, 1], "block": [128, 1, 1], "shared memory": 49152, "est. achieved occupancy %": 38}
    for layer in range(LAYERS):
        for part in range(4):
            at, correlation = start + 10 + layer * 1900 + part * 400, correlation + 1
            number_of = {"External id": correlation, "Ev Idx": correlation}
            yield event("aten::linear", "cpu_op", 4242, at, 90.125, **number_of, **shapes)
            yield event("aten::addmm", "cpu_op", 4242, at + 10.5, 70.375, **number_of, **shapes)
            launch = {"External id": correlation, "cbid": 211, "correlation": correlation}
            yield event("cudaLaunchKernel", "cuda_runtime", 4242, at + 40.25, 8.5, **launch)
            name = f"ampere_sgemm_128x{64 + part}_tn(float const*, float const*, float*, int, int, int)"
            yield event(name, "kernel", 7, at + 60.75, 330.5, correlation=correlation, **kernel_args)
            yield from flow(correlation, at)
        if layer % 10 == 9:
            at, correlation = start + 10 + layer * 1900, correlation + 1
            yield event("c10d::allreduce_", "cpu_op", 4242, at + 300, 60.5, **shapes)
            nccl = {"Collective name": "allreduce", "In msg nelems": 6553600, "dtype": "Float", "Group size": 8}
            nccl |= {"Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]", "stream": 20}
            yield event("record_param_comms", "cpu_op", 4242, at + 305, 50.5, **nccl)
            launch = {"External id": correlation, "cbid": 430, "correlation": correlation}
            yield event("cudaLaunchKernelExC", "cuda_runtime", 4242, at + 320, 9.5, **launch)
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            yield event(name, "kernel", 20, at + 345.5, 3000.25, correlation=correlation, **(kernel_args | nccl))
            yield from flow(correlation, at)


def write(path: Path, rank: int, num_events: int) -> int:
    """Write a trace of about as many events as Kineto lays it out, and return its bytes."""
    info = {"backend": "nccl", "rank": rank, "world_size": 8}
    with open(path, "w") as file:
        file.write(f'{{\n  "schemaVersion": 1,\n  "distributedInfo": {json.dumps(info)},\n  "traceEvents": [\n')
        for number in range(max(3, num_events // PER_STEP)):
            text = ",\n".join("  " + json.dumps(one, indent=1) for one in step(number, number * PER_STEP))
            file.write((",\n" if number else "") + text)
        file.write(f'\n  ],"traceName": "{path.name}"\n}}\n')
    return path.stat().st_size
