"""Traces of a million events, from files to overlap figures: seconds and memory, next to HTA in the same run.

`python -m tests.benchmarks.traces [--hta PYTHON] [--gigabytes 1] [--events 1000000]`: PYTHON is an interpreter that has
HolisticTraceAnalysis 0.5.0 (RANKSCOPE_HTA names one, too); without it only rankscope is measured. Neither's imports are
counted. Memory is the peak of the process that asks; 8 ranks are read by others, a piece of text at a time each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OURS = """
import json, resource, sys, time
from rankscope.diagnose import read_traces
from rankscope.diagnose.trace import gpu_times
begin = time.perf_counter()
times = [gpu_times(trace) for trace in read_traces(sys.argv[1:])]
seconds = time.perf_counter() - begin
overlap = [round(100 * one.overlap_s / one.communication_s, 2) for one in times]
print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, overlap]))
"""
THEIRS = """
import json, resource, sys, time, warnings, logging
warnings.simplefilter("ignore"); logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
begin = time.perf_counter()
found = TraceAnalysis(trace_files=dict(enumerate(sys.argv[1:])), trace_dir="/", include_last_profiler_step=True)
overlap = found.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].tolist()
seconds = time.perf_counter() - begin
print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, overlap]))
"""
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


def measured(python: str, code: str, paths: list[Path]) -> tuple[float, float, list[float]]:
    done = subprocess.run([python, "-c", code, *map(str, paths)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{python} failed:\n{done.stderr[-2000:]}")
    seconds, peak, overlap = json.loads(done.stdout.splitlines()[-1])
    return seconds, peak, overlap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hta", default=os.environ.get("RANKSCOPE_HTA", ""))
    parser.add_argument("--gigabytes", type=float, default=0.0)
    parser.add_argument("--events", type=int, default=1_000_000)
    chosen = parser.parse_args()
    if not chosen.hta:
        print("HTA is not measured: name an interpreter that has it with --hta or RANKSCOPE_HTA")
    print(f"{'':24}{'MB':>7}{'rankscope':>12}{'HTA':>10}{'ratio':>8}{'memory/file':>13}{'HTA':>6}  overlap %")
    with tempfile.TemporaryDirectory() as folder:
        one = Path(folder) / "rank0.json"
        sizes = [("1 rank", 1, chosen.events, chosen.hta), ("8 ranks", 8, chosen.events // 8, chosen.hta)]
        if chosen.gigabytes:
            per_event = write(one, 0, 20 * PER_STEP) / (20 * PER_STEP)
            sizes.append((f"{chosen.gigabytes:g} GB", 1, round(chosen.gigabytes * 1e9 / per_event), ""))
        for label, num_ranks, num_events, hta in sizes:
            paths = [one.with_name(f"rank{rank}.json") for rank in range(num_ranks)]
            num_bytes = sum(write(path, rank, num_events) for rank, path in enumerate(paths))
            seconds, peak, overlap = measured(sys.executable, OURS, paths)
            row = f"{f'{label}, {num_events:,} events':24}{num_bytes / 1e6:7.0f}{seconds:10.2f} s"
            if hta:
                slower, theirs, same = measured(hta, THEIRS, paths)
                assert all(abs(a - b) < 0.5 for a, b in zip(overlap, same, strict=True)), (overlap, same)
                row += f"{slower:8.2f} s{slower / seconds:7.1f}x"
            else:
                row, theirs = row + f"{'':18}", 0.0
            print(f"{row}{peak / num_bytes:13.2f}{theirs / num_bytes:6.2f}  {overlap[0]}", flush=True)


if __name__ == "__main__":
    main()
