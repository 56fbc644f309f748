"""DDP's step, predicted and measured over bucket caps: python -m tests.benchmarks.ddp_prediction --ranks 2.

The allreduce alone and the contention are measured first, once for all modules and caps, then each module's step
without allreduces and with them at each cap, in turns. With --output the sweeps are stored, next to those of other
ranks and networks that the file has; without --ranks the table of that file, or of the recorded one, is printed.
Ranks that share cores compute with one thread each. Root on Linux puts the session before all others (its autogroup's
nice value), and so leaves the ranks' threads their equal shares; real-time priority does not, and makes the step
another one, a fifth quicker on two cores, since a thread that computes then keeps Gloo's waiting.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from msgspec.structs import asdict, replace
from numpy.typing import NDArray
from torch import nn

from rankscope.box.measuring.plan import Protocol, collective_keys
from rankscope.box.measuring.rank import measure_keys
from rankscope.common.files import PathLike, write_json
from rankscope.train.ddp import Contention, DDPRun, Where, load_sweeps, measure
from rankscope.train.ddp.contention import fit_contention
from rankscope.train.ddp.cost import CostTable
from rankscope.train.ddp.run import Loss, calibration_runs
from rankscope.train.ddp.sweep import CapSweep, CapSweeps, MeasuredCap
from tests.tools.emulate import emulated

from ._ddp_modules import MODULES

COMMAND = "python -m tests.benchmarks.ddp_prediction"
RECORDED = Path(__file__).parents[2] / "notebooks" / "profiles" / "ddp_steps.json"
SIZES = tuple(2**power for power in range(14, 28))  # bytes of an allreduce
BUDGET_S, ITERATIONS = 1.5, 21  # of each of them
CAPS_MB = (None, 1.0, 5.0, 25.0, 100.0)  # None is DDP's default


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


class Round(NamedTuple):
    """One turn of all that sweeps are made of: the allreduce alone, runs to fit contention to, and the modules' runs.

    A module's runs are without allreduces first, and then at each cap.
    """

    cost: CostTable
    calibration: list[DDPRun]
    modules: dict[str, list[DDPRun]]


def measure_allreduce(num_ranks: int, where: Where, backend: str | None = None) -> CostTable:
    """Return what the allreduce of a backend, by default of `where`, takes of `SIZES`, medians while all else rests."""
    where = where if backend is None else replace(where, backend=backend)
    keys = [collective_keys(Protocol(), "allreduce", size, [num_ranks])[0] for size in SIZES]  # native, in place
    protocol = Protocol(iterations=ITERATIONS, budget_s=BUDGET_S)
    points = where.launch(measure_keys, (keys, [0] * num_ranks, protocol), num_ranks)[0]
    return CostTable(tuple(point.num_bytes for point in points), tuple(point.median_s for point in points))


def measure_round(
    modules: Mapping[str, tuple[nn.Module, Loss]],
    num_ranks: int,
    iterations: int,
    where: Where,
    caps_mb: Sequence[float | None] = CAPS_MB,
) -> Round:
    """Measure all that `sweeps_of` puts together, once."""
    cost = measure_allreduce(num_ranks, where)
    calibration = calibration_runs(num_ranks, 2 * iterations, where)
    runs = {}
    for name, (module, loss) in modules.items():
        steps = partial(measure, module, loss, num_ranks=num_ranks, where=where)
        alone = steps(iterations=2 * iterations, communicate=False)
        runs[name] = [alone, *(steps(iterations=iterations, bucket_cap_mb=cap) for cap in caps_mb)]
    return Round(cost, calibration, runs)


def joined(runs: Sequence[DDPRun]) -> DDPRun:
    """Return the iterations of several runs of the same module in the same setting as one run."""
    for run in runs:
        if (run.parameters, run.setting, run.num_ranks) != (runs[0].parameters, runs[0].setting, runs[0].num_ranks):
            raise ValueError(f"runs must be of one module, setting and number of ranks, got {runs[0]!r} and {run!r}")
        if run.steps and run.buckets != runs[0].buckets:
            raise ValueError(f"runs must end with the same buckets, got {runs[0].buckets} and {run.buckets}")
    names = ("step_s", "clean", "steps")
    return replace(runs[0], **{name: sum((getattr(run, name) for run in runs), ()) for name in names})


def sweeps_of(rounds: Sequence[Round]) -> list[CapSweep]:
    """Return a sweep for each module, with one cost and one contention, from all rounds."""
    seconds = np.median([one.cost.seconds for one in rounds], axis=0)
    cost = CostTable(rounds[0].cost.num_bytes, tuple(seconds.tolist()))
    alone, *overlapped = map(joined, zip(*(one.calibration for one in rounds), strict=True))
    contention = fit_contention([run.overlapped() for run in overlapped], alone.local_step(), cost)
    sweeps = []
    for name in rounds[0].modules:
        local, *runs = map(joined, zip(*(one.modules[name] for one in rounds), strict=True))
        measured = (MeasuredCap(run.setting.bucket_cap_mb, run.buckets, run.step_s, run.clean) for run in runs)
        sweeps.append(CapSweep(name, local.provenance, local.local_step(), cost, contention, tuple(measured)))
    return sweeps


def save_sweeps(path: PathLike, sweeps: Sequence[CapSweep], command: str) -> Path:
    """Write sweeps as `load_sweeps` reads them, seconds to seven digits; `command` says what has measured them."""
    last = sweeps[-1].provenance
    date = str(last["date"])[:10]
    return write_json(path, CapSweeps(last["torch"], date, command, tuple(map(shortened, sweeps))))


def shortened(sweep: CapSweep) -> CapSweep:
    """Return the sweep with seconds of seven digits."""

    def short(seconds: Any) -> Any:
        return float(f"{seconds:.7g}") if isinstance(seconds, float) else tuple(short(float(one)) for one in seconds)

    times = {name: short(value) for name, value in asdict(sweep.local).items() if name != "parameters"}
    return replace(
        sweep,
        local=replace(sweep.local, **times),
        cost=replace(sweep.cost, seconds=short(sweep.cost.seconds)),
        measured=tuple(replace(cap, step_s=short(cap.step_s)) for cap in sweep.measured),
    )


def measured(num_ranks: int, args: argparse.Namespace) -> list[CapSweep]:
    """Measure cost, contention and the modules, on one network."""
    rounds, modules = [], {}
    for name in args.modules:
        torch.manual_seed(0)
        make, loss = MODULES[name]
        modules[name] = make(), loss
    for _ in range(args.rounds):
        with turn(args.lock), network_of(args.mbit, num_ranks) as network:
            where = Where(network=network, timeout_s=600.0)
            rounds.append(measure_round(modules, num_ranks, args.iterations, where))
        print_table(sweeps_of(rounds[-1:]))
    return sweeps_of(rounds)


def errors(sweep: CapSweep, contention: Contention | None = None) -> NDArray[np.float64]:
    """How far the predictions are off what was measured, as shares of that."""
    return sweep.predicted_s(contention) / sweep.measured_s - 1


def print_table(sweeps: Sequence[CapSweep]) -> None:
    """Print a row a cap, in milliseconds; then, for each number of ranks and network, what is held to bars."""
    names = ("ranks, network", "module", "cap", "buckets", "alone", "measured", "predicted", "error", "free")
    print("{:28} {:12}{:>5}{:>8}{:>9}{:>9}{:>10}{:>8}{:>8}".format(*names))
    for sweep in sweeps:
        where, local = f"{sweep.num_ranks}, {sweep.network}", sweep.local
        alone_ms = 1e3 * (local.forward_s + local.backward_s + local.unpack_s)
        free = errors(sweep, Contention())
        for one, predicted_s, error, freely in zip(
            sweep.measured, sweep.predicted_s(), errors(sweep), free, strict=True
        ):
            times = f"{alone_ms:9.1f}{one.median_s * 1e3:9.1f}{predicted_s * 1e3:10.1f}"
            shape = f"{where:28} {sweep.name:12}{one.bucket_cap_mb or 'None':>5}{len(one.buckets):8}"
            print(f"{shape}{times}{error:+8.1%}{freely:+8.1%}")
    for key in dict.fromkeys((sweep.num_ranks, sweep.network) for sweep in sweeps):
        print_verdict([sweep for sweep in sweeps if (sweep.num_ranks, sweep.network) == key])


def print_verdict(sweeps: Sequence[CapSweep]) -> None:
    """Print how far the model is off, and what its choice among the caps would lose."""
    off = np.abs(np.concatenate([errors(sweep) for sweep in sweeps]))
    free = np.abs(np.concatenate([errors(sweep, Contention()) for sweep in sweeps]))
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
    parser.add_argument("--lock", type=Path, help="a file to lock for each round")
    args = parser.parse_args()
    if not args.ranks:
        print_table(load_sweeps(args.output or RECORDED))
        return
    go_before_others()
    found = load_sweeps(args.output) if args.output and args.output.exists() else []
    for num_ranks in args.ranks:
        sweeps = measured(num_ranks, args)
        print(f"\nall {args.rounds} rounds:")
        print_table(sweeps)
        new = {(sweep.num_ranks, sweep.network, sweep.name) for sweep in sweeps}
        found = [one for one in found if (one.num_ranks, one.network, one.name) not in new] + sweeps
        if args.output:
            save_sweeps(args.output, found, COMMAND)


if __name__ == "__main__":
    main()
