"""What another bucket cap would give, from traces of the default one, and what it then gives: a table with the errors.

    python -m tests.benchmarks.diagnose_what_if             # on loopback
    python -m tests.benchmarks.diagnose_what_if --emulate   # on an emulated network (root, Linux)

Each module trains on Gloo ranks under torch.profiler, in turns with DDP's default cap and with others. From the traces
of the default alone `what_if` predicts the others. The profiler's own cost is in all of them. The rate of the
emulated network is one at which allreduces take as long as a step computes.
"""

from __future__ import annotations

import argparse
import copy
import os
import tempfile
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

from rankscope.ddp import Where, measure_local_step
from rankscope.ddp.run import Loss
from rankscope.diagnose import read_traces
from rankscope.diagnose.what_if import what_if
from rankscope.machine.emulate import emulated

from ._ddp_modules import MODULES
from .ddp_prediction import go_before_others

CAPS_MB = (1.0, 5.0, 10.0, 50.0, 200.0)
WARM_UP, STEPS = 2, 10  # in a turn
ALONE = (WARM_UP + 3, WARM_UP + 7)  # steps that are recorded under no_sync
UNUSED = [*range(WARM_UP), *ALONE, *(number + 1 for number in ALONE)]  # they and those that follow them


def trained(module: nn.Module, loss: Loss, rounds: int, folder: str) -> list[list[float]]:
    """Train with each cap in turn under the profiler; return the median step of each turn, a row for each round.

    The turns with DDP's default leave traces in a folder for each round.
    """
    found, rank = [], dist.get_rank()
    models = [DistributedDataParallel(copy.deepcopy(module), bucket_cap_mb=cap) for cap in (None, *CAPS_MB)]
    for turn in range(rounds):
        found.append(list[float]())
        for place, ddp in enumerate(models):
            optimizer, ended_s = torch.optim.SGD(ddp.parameters(), lr=1e-9), list[float]()
            path = f"{folder}/{turn}/rank{rank}.json.gz" if place == 0 else os.devnull
            options: dict[str, Any] = {
                "schedule": schedule(wait=0, warmup=WARM_UP, active=STEPS, repeat=1),
                "on_trace_ready": partial(save, path),
            }
            with profile(activities=[ProfilerActivity.CPU], record_shapes=True, **options) as profiler:
                for number in range(WARM_UP + STEPS):
                    ended_s.append(time.perf_counter())
                    optimizer.zero_grad()
                    with ddp.no_sync() if number in ALONE else nullcontext():
                        loss(ddp, rank, number).backward()
                    optimizer.step()
                    profiler.step()
            found[-1].append(float(np.median(np.delete(np.diff(ended_s), UNUSED))))
    return found


def save(path: str, profiler: Any) -> None:
    if path != os.devnull:
        profiler.export_chrome_trace(path)


def compared(name: str, num_ranks: int, rounds: int, where: Where) -> list[float]:
    """Print a row for each cap; return the errors, as shares of what was measured, medians over rounds."""
    make, loss = MODULES[name]
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds):
            (Path(folder) / str(turn)).mkdir()
        ranks = where.launch(trained, (make(), loss, rounds, folder), num_ranks)
        found = [what_if(read_traces(Path(folder) / str(turn)), caps_mb=CAPS_MB) for turn in range(rounds)]
    measured_s = np.median(np.max(ranks, axis=0), axis=0)
    predicted_s = np.median([[one.step_s for one in each.caps] for each in found], axis=0)
    where_words = where.network or "loopback"
    print(f"{name}, {num_ranks} ranks, {where_words}: {found[0].contention}")
    for one, predicted, measured in zip(found[0].caps, predicted_s.tolist(), measured_s.tolist(), strict=True):
        times = (
            f"predicted {predicted * 1e3:7.1f} ms, measured {measured * 1e3:7.1f} ms, {predicted / measured - 1:+.1%}"
        )
        cap = "default, recorded" if one.bucket_cap_mb is None else f"{one.bucket_cap_mb:g} MiB"
        print(f"  {cap:18} {one.num_buckets:3} buckets: {times}", flush=True)
    return (predicted_s / measured_s - 1)[1:].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2])
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--modules", nargs="*", default=list(MODULES), choices=list(MODULES))
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    go_before_others()
    for num_ranks in args.ranks:
        errors: list[float] = []
        for name in args.modules:
            options: dict[str, Any] = {"num_ranks": num_ranks, "rounds": args.rounds}
            if not args.emulate:
                errors += compared(name, where=Where(timeout_s=600.0), **options)
                continue
            make, loss = MODULES[name]
            alone = measure_local_step(make(), loss, num_ranks=num_ranks, iterations=8)
            sent_bytes = 2 * (num_ranks - 1) / num_ranks * alone.num_bytes
            with emulated(num_ranks, sent_bytes / (alone.forward_s + alone.backward_s)) as network:
                errors += compared(name, where=Where(network=network, timeout_s=600.0), **options)
        off = np.abs(errors)
        print(f"{num_ranks} ranks: off by {np.median(off):.1%} (median), {off.max():.1%} (worst)", flush=True)


if __name__ == "__main__":
    main()
