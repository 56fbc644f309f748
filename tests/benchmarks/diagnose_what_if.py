"""What another bucket cap would give, from traces of the default one, and what it then gives: a table with the errors.

    python -m tests.benchmarks.diagnose_what_if             # on loopback
    python -m tests.benchmarks.diagnose_what_if --emulate   # on an emulated network (root, Linux)
    python -m tests.benchmarks.diagnose_what_if --recordings FOLDER  # keep traces there, or use those

Each module trains on Gloo ranks under torch.profiler, in turns with DDP's default cap and with others. From the traces
of the default alone `what_if` predicts the others. The profiler's own cost is in all of them. Each round begins with
another cap. The rate of the emulated network is one at which allreduces take as long as a step computes.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import ctypes
import json
import os
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

from rankscope.diagnose import read_traces
from rankscope.diagnose.savings import SavingsForecast, what_if
from rankscope.train.ddp import Where, measure_local_step
from rankscope.train.ddp.buckets import Buckets
from rankscope.train.ddp.run import Loss
from rankscope.train.ddp.step import default_buckets
from tests.tools.emulate import emulated

from ._ddp_modules import MODULES
from .ddp_prediction import go_before_others

CAPS_MB = (1.0, 5.0, 10.0, 50.0, 200.0)
WARM_UP, STEPS, RECORDED = 2, 6, 12  # in a turn, and in one that is predicted from
ALONE = range(WARM_UP + 4, WARM_UP + 7)  # of the latter, recorded under no_sync


def trained(module: nn.Module, loss: Loss, rounds: int, folder: str) -> list[list[float]]:
    """Train with each cap in turn under the profiler; return the median step of each turn, a row for each round.

    Traces are left in a folder for each round and, in it, each cap. Each round begins with another cap.
    """
    keep_memory()
    os.environ["KINETO_LOG_LEVEL"] = "99"  # it says on stderr when it starts and stops
    found, rank = np.empty((rounds, 1 + len(CAPS_MB))), dist.get_rank()
    models = [DistributedDataParallel(copy.deepcopy(module), bucket_cap_mb=cap) for cap in (None, *CAPS_MB)]
    for turn, place in ((turn, (turn + n) % len(models)) for turn in range(rounds) for n in range(len(models))):
        ddp = models[place]
        optimizer, times_s = torch.optim.SGD(ddp.parameters(), lr=1e-9), [time.perf_counter()]
        steps, alone = (STEPS, range(0)) if place else (RECORDED, ALONE)
        options: dict[str, Any] = {
            "schedule": schedule(wait=0, warmup=WARM_UP, active=steps, repeat=1),
            "on_trace_ready": partial(save, f"{folder}/{turn}/{place}/rank{rank}.json.gz"),
        }
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True, **options) as profiler:
            for number in range(WARM_UP + steps):
                optimizer.zero_grad()
                with ddp.no_sync() if number in alone else nullcontext():
                    loss(ddp, rank, number).backward()
                optimizer.step()
                times_s.append(time.perf_counter())
                profiler.step()
        unused = [*range(WARM_UP), *alone, *(number + 1 for number in alone)]  # with the step that follows them
        found[turn, place] = np.median(np.delete(np.diff(times_s), unused))
    return found.tolist()


def keep_memory() -> None:
    """Have malloc return nothing to the system: how long fresh pages take is up to what else runs on its host."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for setting, value in ((-4, 0), (-1, 2**31 - 1), (-8, 1)):  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_ARENA_MAX
            mallopt(setting, value)


def save(path: str, profiler: Any) -> None:
    profiler.export_chrome_trace(path)


def recorded(folder: Path, name: str, num_ranks: int, rounds: int, where: Where) -> None:
    """Train, and leave in the folder the traces and, in measured.json, the steps: ranks by rounds by caps."""
    make, loss = MODULES[name]
    torch.manual_seed(0)
    for turn in range(rounds):
        for place in range(1 + len(CAPS_MB)):
            (folder / str(turn) / str(place)).mkdir(parents=True)
    ranks = where.launch(trained, (make(), loss, rounds, str(folder)), num_ranks)
    (folder / "measured.json").write_text(json.dumps([where.network and str(where.network), ranks]))


def compared(folder: Path, name: str) -> list[float]:
    """Print a row for each cap; return the errors, as shares of what was measured, medians over rounds.

    Next to them stands how far rounds, and caps that give equal buckets, differ: no prediction can come nearer.
    """
    network, ranks = json.loads((folder / "measured.json").read_text())
    each_s = np.max(ranks, axis=0)
    found = []
    for turn in range(len(each_s)):
        forecast = what_if(read_traces(folder / str(turn) / "0"), caps_mb=CAPS_MB)
        assert isinstance(forecast, SavingsForecast)
        found.append(forecast)
    measured_s = np.median(each_s, axis=0)
    predicted_s = np.median([[one.step_s for one in each.caps] for each in found], axis=0)
    print(f"{name}, {len(ranks)} ranks, {network or 'loopback'}: {found[0].contention}")
    equal: dict[Buckets, list[float]] = {}  # what was measured
    rows = zip(found[0].caps, predicted_s.tolist(), measured_s.tolist(), each_s.T, strict=True)
    for one, predicted, measured, each in rows:
        times = (
            f"predicted {predicted * 1e3:7.1f} ms, measured {measured * 1e3:7.1f} ms, {predicted / measured - 1:+.1%}"
            f" (rounds {each.min() / measured - 1:+.1%} to {each.max() / measured - 1:+.1%})"
        )
        cap = "default, recorded" if one.bucket_cap_mb is None else f"{one.bucket_cap_mb:g} MiB"
        print(f"  {cap:18} {one.num_buckets:3} buckets: {times}", flush=True)
        equal.setdefault(default_buckets(found[0].local, one.bucket_cap_mb), []).append(measured)
    alike = [max(times_s) / min(times_s) - 1 for times_s in equal.values() if len(times_s) > 1]
    print(f"  caps that give equal buckets differ by {', '.join(f'{one:.1%}' for one in alike) or 'nothing'}")
    return (predicted_s / measured_s - 1)[1:].tolist()


def network_of(name: str, num_ranks: int) -> AbstractContextManager[Any]:
    """A network on which allreduces take as long as a step computes."""
    make, loss = MODULES[name]
    alone = measure_local_step(make(), loss, num_ranks=num_ranks, iterations=8)
    sent_bytes = 2 * (num_ranks - 1) / num_ranks * alone.num_bytes
    return emulated(num_ranks, sent_bytes / (alone.forward_s + alone.backward_s))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2])
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--modules", nargs="*", default=list(MODULES), choices=list(MODULES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--recordings", type=Path)
    args = parser.parse_args()
    go_before_others()
    for num_ranks in args.ranks:
        errors: list[float] = []
        for name in args.modules:
            with tempfile.TemporaryDirectory() as folder:
                kept = (args.recordings or Path(folder)) / f"{name}, {num_ranks} ranks"
                if not kept.exists():
                    with network_of(name, num_ranks) if args.emulate else nullcontext() as network:
                        recorded(kept, name, num_ranks, args.rounds, Where(network=network, timeout_s=600.0))
                errors += compared(kept, name)
        off = np.abs(errors)
        print(f"{num_ranks} ranks: off by {np.median(off):.1%} (median), {off.max():.1%} (worst)", flush=True)


if __name__ == "__main__":
    main()
