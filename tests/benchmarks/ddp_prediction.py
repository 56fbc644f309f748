"""DDP's step, predicted and measured over bucket caps: python -m tests.benchmarks.ddp_prediction --ranks 2.

The allreduce alone and the contention are measured first, once for all modules and caps, then each module's step
without allreduces and with them at each cap, in turns. With --output the sweeps are stored, beside those of other
ranks and networks that the file has; without --ranks the table of a file is printed. Ranks that share cores compute
with one thread each. Root on Linux puts the session before all others (its autogroup's nice value), and so leaves the
ranks' threads their equal shares; real-time priority does not, and makes the step another one, a fifth quicker on two
cores, since a thread that computes then keeps Gloo's waiting.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rankscope.ddp.cap_sweep import CapSweep, load_sweeps, save_sweeps
from rankscope.ddp.ddp_run import DDPRun, joined
from rankscope.ddp.local_step import Contention
from rankscope.ddp.measure_steps import measure_ddp
from rankscope.ddp.measure_sweep import measure_round, sweeps_of
from rankscope.machine.emulate import emulated

from ._ddp_modules import MODULES

COMMAND = "python -m tests.benchmarks.ddp_prediction"


def go_before_others() -> None:
    """Let this session, its ranks included, have the cores before others do, where that is allowed."""
    with contextlib.suppress(OSError):
        os.setsid()
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("-20")
        os.setpriority(os.PRIO_PROCESS, 0, -20)


@contextlib.contextmanager
def network_of(mbit: float | None, num_ranks: int) -> Iterator[Any]:
    if mbit is None:
        yield None
        return
    with emulated(num_ranks, mbit * 1e6 / 8) as network:
        yield network


@contextlib.contextmanager
def turn(lock: Path | None) -> Iterator[None]:
    """Have the machine for one round, where several benchmarks agree on a file to lock."""
    if lock is None:
        yield
        return
    with open(lock, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def measured(num_ranks: int, args: argparse.Namespace) -> list[CapSweep]:
    """Measure cost, contention and the modules, on one network."""
    rounds, modules = [], {}
    for name in args.modules:
        torch.manual_seed(0)
        make, loss = MODULES[name]
        modules[name] = make(), loss
    for _ in range(args.rounds):
        with turn(args.lock), network_of(args.mbit, num_ranks) as network:
            options = {"num_ranks": num_ranks, "iterations": args.iterations, "network": network, "timeout_s": 600.0}
            rounds.append(measure_round(modules, **options))
        print_table(sweeps_of(rounds[-1:]))
    return sweeps_of(rounds)


def print_hook_cost(num_ranks: int, args: argparse.Namespace) -> None:
    """Print what steps take with the hooks that observe, and without them, in turns; a cap of 5 MiB, many buckets."""
    for name in args.modules:
        make, loss = MODULES[name]
        module, found = make(), dict[bool, list[DDPRun]]({True: [], False: []})
        for _ in range(args.rounds):
            with turn(args.lock):
                for observe, runs in found.items():
                    options = {"num_ranks": num_ranks, "iterations": args.iterations, "observe": observe}
                    runs.append(measure_ddp(module, loss, bucket_cap_mb=5.0, **options))
        observed, plain = (joined(found[one]).used_s * 1e3 for one in (True, False))
        times = f"observed {np.median(observed):.1f} ms, plain {np.median(plain):.1f} ms"
        print(f"{num_ranks} ranks, {name}: {times}, quartiles {np.percentile(plain, [25, 75]).round(1)}", flush=True)


def print_table(sweeps: Sequence[CapSweep]) -> None:
    """Print a row a cap, in milliseconds; then, for each number of ranks and network, what is held to bars."""
    names = ("ranks, network", "module", "cap", "buckets", "alone", "measured", "predicted", "error", "free")
    print("{:28} {:12}{:>5}{:>8}{:>9}{:>9}{:>10}{:>8}{:>8}".format(*names))
    for sweep in sweeps:
        where, local = f"{sweep.num_ranks}, {sweep.network}", sweep.local
        alone_ms = 1e3 * (local.forward_s + local.backward_s + local.unpack_s)
        free = sweep.predicted_s(Contention()) / sweep.measured_s - 1
        for one, predicted_s, error, freely in zip(
            sweep.measured, sweep.predicted_s(), sweep.errors, free, strict=True
        ):
            times = f"{alone_ms:9.1f}{one.median_s * 1e3:9.1f}{predicted_s * 1e3:10.1f}"
            shape = f"{where:28} {sweep.name:12}{one.bucket_cap_mb or 'None':>5}{len(one.buckets):8}"
            print(f"{shape}{times}{error:+8.1%}{freely:+8.1%}")
    for key in dict.fromkeys((sweep.num_ranks, sweep.network) for sweep in sweeps):
        print_verdict([sweep for sweep in sweeps if (sweep.num_ranks, sweep.network) == key])


def print_verdict(sweeps: Sequence[CapSweep]) -> None:
    """Print how far the model is off, and what its choice among the caps would lose."""
    off = np.abs(np.concatenate([sweep.errors for sweep in sweeps]))
    free = np.abs(np.concatenate([sweep.predicted_s(Contention()) / sweep.measured_s - 1 for sweep in sweeps]))
    lost = [sweep.measured_s[sweep.predicted_s().argmin()] / sweep.measured_s.min() - 1 for sweep in sweeps]
    first = sweeps[0]
    print(f"{first.num_ranks} ranks, {first.network}: {first.contention}")
    print(f"  off by {np.median(off):.1%} (median), {off.max():.1%} (worst); without contention {np.median(free):.1%}")
    print(f"  the cap with the best prediction takes up to {max(lost):.1%} longer than the best measured")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[])
    parser.add_argument("--mbit", type=float, help="on an emulated network of so many Mbit/s (root, Linux)")
    parser.add_argument("--modules", nargs="*", default=list(MODULES), choices=list(MODULES))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--hook-cost", action="store_true", help="only compare steps that are observed with plain ones")
    parser.add_argument("--lock", type=Path, help="a file to lock for each round")
    args = parser.parse_args()
    if not args.ranks:
        print_table(load_sweeps(args.output))
        return
    go_before_others()
    found = load_sweeps(args.output) if args.output and args.output.exists() else []
    for num_ranks in args.ranks:
        if args.hook_cost:
            print_hook_cost(num_ranks, args)
            continue
        sweeps = measured(num_ranks, args)
        print(f"\nall {args.rounds} rounds:")
        print_table(sweeps)
        new = {(sweep.num_ranks, sweep.network, sweep.name) for sweep in sweeps}
        found = [one for one in found if (one.num_ranks, one.network, one.name) not in new] + sweeps
        if args.output:
            save_sweeps(args.output, found, COMMAND)


if __name__ == "__main__":
    main()
