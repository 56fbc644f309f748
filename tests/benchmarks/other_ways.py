"""What passing a tensor costs, and a parameter server on slow hosts: python -m tests.benchmarks.other_ways

The server and its workers are hosts of an emulated network, 100 Mbit/s and 5 ms, which takes root. What they take is
predicted from what calls of several sizes take there and from what the gradients took. With --record the figures are
kept for notebook 13. On a machine that others use, too, begin with ``chrt -r 5``: the processes inherit it.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rankscope import parameter_server
from rankscope.gradients import Work
from rankscope.machine.emulate import emulated
from rankscope.machine.provenance import of_machine
from rankscope.parameter_server import measure_calls, measure_passing
from rankscope.parameter_server.sharing import Passing
from rankscope.values.storage import write_atomically
from rankscope.values.units import bytes_words, rate_words, time_words

WORKERS = (1, 2, 4, 8)
STEPS = 20
BYTES_PER_S, LATENCY_S = 12.5e6, 0.005
CALLS = tuple(2**power for power in range(12, 20))  # bytes, as those below
PASSED = tuple(2**power for power in range(12, 27))
PROFILE = Path(__file__).parents[2] / "notebooks" / "profiles" / "other_ways.json"


def passing() -> list[Passing]:
    """Print a row a size and way."""
    found = list(measure_passing(PASSED, iterations=20, timeout_s=300))
    for one in found:
        rate = rate_words(one.bytes_per_s)
        print(f"{one.way:16} {bytes_words(one.num_bytes):>8} {time_words(one.median_s):>10} {rate:>10}")
    return found


def work() -> Work:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 10))  # 300 KiB
    inputs, labels = torch.randn(1024, 64), torch.randint(0, 10, (1024,))
    return Work(module, inputs, labels, nn.functional.cross_entropy)


def servers() -> list[dict[str, Any]]:
    """Print a row a number of workers and way."""
    rows = []
    for num_workers in WORKERS:
        with emulated(num_workers + 1, BYTES_PER_S, LATENCY_S) as network:
            link = measure_calls(CALLS, 20, network).link
            for how in ("synchronous", "asynchronous"):
                rows.append(row(how, num_workers, link, network))
        with emulated(num_workers, BYTES_PER_S, LATENCY_S) as network:
            rows.append(row("allreduce", num_workers, link, network))
    return rows


def row(how: str, num_workers: int, link: Any, network: Any) -> dict[str, Any]:
    num_batches = STEPS * num_workers
    run = parameter_server.train(work(), how, num_workers, num_batches=num_batches, network=network)
    twin = parameter_server.simulate(how, num_workers, num_batches, run.parameter_bytes, link, run.compute_s())
    seconds = [one.timeline.makespan_s / STEPS for one in (twin, run)]
    error = seconds[0] / seconds[1] - 1
    behind = [np.bincount(np.array(one.staleness, dtype=int)).tolist() for one in (twin, run)]
    both_ms = f"{seconds[0] * 1e3:6.1f} ms predicted, {seconds[1] * 1e3:6.1f} executed ({error:+.0%})"
    print(f"{how:13} {num_workers} workers: {both_ms}; behind: {behind[0]} predicted, {behind[1]}")
    told = {"how": how, "num_workers": num_workers, "num_batches": num_batches, "parameter_bytes": run.parameter_bytes}
    link_told = {"alpha_s": round(link.alpha_s, 6), "bytes_per_s": round(link.bytes_per_s)}
    compute = {"compute_s": [round(one, 6) for one in run.compute_s()]}
    moved = {"received_bytes": run.received_bytes, "sent_bytes": run.sent_bytes, "behind": behind[1]}
    return {**told, "link": link_told, **compute, **moved, "executed_s": round(run.timeline.makespan_s, 6)}


def record(points: list[Passing], rows: list[dict[str, Any]]) -> None:
    machine = of_machine()
    about = {name: machine[name] for name in ("torch", "python", "cpu", "num_cores", "system")}
    told = [[one.way, one.num_bytes, [float(f"{seconds:.4g}") for seconds in one.seconds]] for one in points]
    found = {
        **about,
        "date": datetime.now(UTC).date().isoformat(),
        "command": "python -m tests.benchmarks.other_ways --record",
        "real_time": os.sched_getscheduler(0) == os.SCHED_RR,
        "network": f"emulated: {BYTES_PER_S * 8 / 1e6:g} Mbit/s, {LATENCY_S * 1e3:g} ms",
    }
    head = "".join(f"{json.dumps(name)}: {json.dumps(value)},\n" for name, value in found.items())
    lists: dict[str, list[Any]] = {"passing": told, "servers": rows}
    bodies = (f'"{name}": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]" for name, rows in lists.items())
    text = "{\n" + head + ",\n".join(bodies) + "\n}\n"
    write_atomically(PROFILE, lambda file: file.write(text.encode()))


def main() -> None:
    points, rows = passing(), servers()
    if "--record" in sys.argv[1:]:
        record(points, rows)


if __name__ == "__main__":
    main()
