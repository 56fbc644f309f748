"""DDP's step, predicted and measured over bucket caps: python -m tests.benchmarks.ddp_prediction --ranks 2.

The allreduce alone and the contention are measured first, once for all modules and caps, then each module's step
without allreduces and with them at each cap, in turns. With --output the sweeps are stored; without --ranks the table
of that file, or of the recorded one, is printed.
Root on Linux puts the session before all others (its autogroup's nice value), and so leaves the ranks' threads their
equal shares.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rankscope.common.files import write_json
from rankscope.networks import CostTable
from rankscope.provenance import of_machine, of_run
from rankscope.ranks.recorder import Recording, record
from rankscope.train.ddp import Contention, MeasuredSteps, fit_contention
from rankscope.train.ddp.measured import WARM_UP, steps_of, training
from rankscope.train.ddp.observed import gradients_of

from ._ddp_modules import CALIBRATION, MODULES
from ._ddp_sweeps import CapSweep, CapSweeps, load_sweeps

COMMAND = "python -m tests.benchmarks.ddp_prediction"
RECORDED = Path(__file__).parents[2] / "notebooks" / "profiles" / "ddp_steps.json"
SIZES = tuple(2**power for power in range(14, 28))  # bytes of an allreduce
FITTED_MB = (5.0, 20.0)  # at which contention is fitted, to a module of 40 MiB: five buckets, and two
CAPS_MB = (None, 1.0, 5.0, 25.0, 100.0)  # None is DDP's default


def go_before_others() -> None:
    """Let this session, its ranks included, have the cores before others do, where that is allowed."""
    with contextlib.suppress(OSError):
        os.setsid()
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("-20")
        os.setpriority(os.PRIO_PROCESS, 0, -20)


def recorded(make_step: Callable[[], Any], num_ranks: int, num_steps: int) -> Recording:
    return record(make_step, num_ranks, num_steps, WARM_UP, timeout_s=600.0)


def steps(case: tuple[Any, Any], *where: int, alone: bool = False, **options: Any) -> MeasuredSteps:
    """Measure the steps of a module, given with its loss; `alone` without allreduces."""
    module, loss = case
    make_step = partial(training, module, loss, None, not alone, options)
    return steps_of(recorded(make_step, *where), len(gradients_of(module)))


def _allreduces() -> Callable[[], None]:
    buffers = [torch.ones(size // 4) for size in SIZES]

    def step() -> None:
        for buffer in buffers:
            dist.barrier()
            dist.all_reduce(buffer)

    return step


def allreduce_s(*where: int) -> np.ndarray:
    """Return what an allreduce of each of `SIZES` takes while all else rests, from the last rank's start: medians."""
    timeline = recorded(_allreduces, *where).timeline.select(kind="allreduce")
    ranks = [timeline.select(rank=rank) for rank in range(where[0])]
    start_s = np.max([rank.start_s for rank in ranks], axis=0).reshape(-1, len(SIZES))
    stop_s = np.max([rank.stop_s for rank in ranks], axis=0).reshape(-1, len(SIZES))
    return np.asarray(np.median(stop_s - start_s, axis=0))


def joined(rounds: Sequence[MeasuredSteps]) -> MeasuredSteps:
    ready_s = np.concatenate([one.ready_s for one in rounds])
    return MeasuredSteps(sum((one.steps for one in rounds), ()), ready_s)


def measured(num_ranks: int, args: argparse.Namespace) -> list[CapSweep]:
    """Measure cost, contention and the modules, in turns: a sweep for each module."""
    torch.manual_seed(0)
    cases = {"": CALIBRATION, **{name: (MODULES[name][0](), MODULES[name][1]) for name in args.modules}}
    costs_s = []
    runs: dict[str, list[list[MeasuredSteps]]] = {name: [] for name in cases}
    for _ in range(args.rounds):
        where = num_ranks, args.iterations
        costs_s.append(allreduce_s(*where))
        for name, case in cases.items():
            at_caps = [steps(case, *where, bucket_cap_mb=cap) for cap in (CAPS_MB if name else FITTED_MB)]
            runs[name].append([steps(case, *where, alone=True), *at_caps])
    cost = CostTable(SIZES, tuple(np.median(costs_s, axis=0).tolist()))
    sweeps = []
    for name, (module, _) in cases.items():
        alone, *at_caps = [joined(one) for one in zip(*runs[name], strict=True)]
        local = alone.local_step(gradients_of(module).values())
        if not name:
            contention = fit_contention(local, cost, dict(zip(FITTED_MB, at_caps, strict=True)))
            continue
        rows = [(cap, tuple(run.step_s.tolist())) for cap, run in zip(CAPS_MB, at_caps, strict=True)]
        sweeps.append(CapSweep(name, num_ranks, "loopback", local, cost, contention, tuple(rows)))
    return sweeps


def print_table(sweeps: Sequence[CapSweep]) -> None:
    """Print a row a cap, in milliseconds; then, for each number of ranks and network, how far predictions are off."""
    print("ranks, network                  module        cap  measured  predicted    error    free")
    groups: dict[str, list[NDArray[np.float64]]] = {}
    for sweep in sweeps:
        where = f"{sweep.num_ranks}, {sweep.network}"
        errors = sweep.predicted_s() / sweep.measured_s - 1
        free = sweep.predicted_s(Contention()) / sweep.measured_s - 1
        groups.setdefault(f"{where}: {sweep.contention}", []).append(np.abs(errors))
        for row, (cap, _) in enumerate(sweep.measured):
            times = f"{sweep.measured_s[row] * 1e3:10.1f}{sweep.predicted_s()[row] * 1e3:11.1f}"
            print(f"{where:32}{sweep.name:12}{cap or 'None':>5}{times}{errors[row]:+9.1%}{free[row]:+8.1%}")
    for where, off in groups.items():
        print(f"{where}; off by {np.median(off):.1%} (median), {np.max(off):.1%} (worst)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[])
    parser.add_argument("--modules", nargs="*", default=list(MODULES), choices=list(MODULES))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    if not args.ranks:
        print_table(load_sweeps(args.output or RECORDED))
        return
    go_before_others()
    found = [sweep for num_ranks in args.ranks for sweep in measured(num_ranks, args)]
    print_table(found)
    if args.output:
        provenance = {**of_machine(), **of_run(name="", command=COMMAND, network="")}
        write_json(args.output, CapSweeps(provenance, tuple(found)))


if __name__ == "__main__":
    main()
