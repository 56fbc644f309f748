"""What a prediction needs of a machine, and its proof: the allreduce alone, the contention, and steps at some caps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..machine.measuring.plan import Protocol, collective_keys
from ..machine.profile import Point
from ..values.checks import number, several, whole
from .cap_sweep import CapSweep, MeasuredCap
from .contention import fit_contention
from .cost import Cost, CostTable, costs_s
from .ddp_run import DDPRun, joined
from .local_step import Contention
from .measure_rank import Loss
from .measure_steps import checked, launcher, measure_ddp

SIZES = tuple(2**power for power in range(14, 28))  # bytes; beyond them the cost goes on in a straight line
CAPS_MB = (None, 1.0, 5.0, 25.0, 100.0)  # None is DDP's default
_WIDTH, _DEPTH, _BATCH, _FITTED_MB = 1024, 10, 128, (5.0, 20.0)  # of the module that contention is fitted to: 40 MiB
_BUDGET_S, _ITERATIONS = 1.5, 21  # of an allreduce of one size
_MORE = 2  # times as many iterations of what all predictions hang on
_MOST_ITERATIONS = 10_000 // _MORE**2  # of which `measure_ddp` still takes as many times as many

Modules = Mapping[str, tuple[nn.Module, Loss]]
Runs = dict[float | str | None, DDPRun]  # by cap, and ALONE
ALONE = "without allreduces"


def measure_allreduce(num_ranks: int = 2, *, network: Any = None) -> CostTable:
    """Return what the backend's own allreduce of 16 KiB to 128 MiB takes on Gloo, while nothing else runs.

    The medians of iterations that start at one agreed instant, as in a Profile; one of the same ranks will do as well:
    see `allreduce_cost`.
    """
    return _cost([_allreduces(num_ranks, network)])


def measure_contention(cost: Cost, num_ranks: int = 2, *, iterations: int = 10, network: Any = None) -> Contention:
    """Return how much computing and communicating hold each other up where these ranks run.

    It is fitted to one module, ten linear layers of 1,024 by 1,024, at caps of 5 and 20 MiB, and is the machine's, for
    this number of ranks and this network: whatever is trained, with whatever cap, is then predicted with it.
    """
    costs_s(cost, np.array(SIZES, dtype=float))  # refuses now what would be refused once all is measured
    steps = whole("iterations", iterations, 1, _MOST_ITERATIONS)
    return _contention([_steps(*_calibration(), (ALONE, *_FITTED_MB), num_ranks, steps, network, {})], cost)


@dataclass(frozen=True)
class Round:
    """One turn of everything that sweeps are made of: allreduces alone, the module of the fit, the modules."""

    allreduces: tuple[Point, ...]
    calibration: Runs
    modules: Mapping[str, Runs]


def measure_round(
    modules: Modules, *, num_ranks: int = 2, caps_mb: Sequence[float | None] = CAPS_MB, iterations: int = 8,
    network: Any = None, **options: Any,
) -> Round:  # fmt: skip
    """Measure all that `sweeps_of` puts together, once; `options` are those of `measure_ddp`."""
    if options.get("accumulation", 1) != 1:
        raise ValueError(f"accumulation must be 1 in a sweep, got {options['accumulation']!r}")
    given = several("caps_mb", caps_mb, "caps")
    caps = [ALONE, *(None if cap is None else number("caps_mb", cap, above=0) for cap in given)]
    steps = whole("iterations", iterations, 1, _MOST_ITERATIONS)
    _check_modules(modules)
    return Round(
        _allreduces(num_ranks, network),
        _steps(*_calibration(), (ALONE, *_FITTED_MB), num_ranks, _MORE * steps, network, {}),
        {name: _steps(*what, caps, num_ranks, steps, network, options) for name, what in modules.items()},
    )


def _check_modules(modules: Any) -> None:
    pairs = list(modules.values()) if isinstance(modules, Mapping) else []
    if not pairs or not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        raise ValueError(f"modules must be a dict of one (module, loss) or more by name, got {modules!r}")
    for module, loss in pairs:
        checked(module, loss, None)


def sweeps_of(rounds: Sequence[Round]) -> list[CapSweep]:
    """Return a sweep for each module, with one cost and one contention, from all rounds."""
    cost = _cost([one.allreduces for one in rounds])
    contention = _contention([one.calibration for one in rounds], cost)
    sweeps = []
    for name in rounds[0].modules:
        runs = _joined([one.modules[name] for one in rounds])
        local = runs.pop(ALONE)
        measured = [
            MeasuredCap(run.setting["bucket_cap_mb"], run.buckets, run.step_s, run.clean) for run in runs.values()
        ]
        sweeps.append(CapSweep(name, local.provenance, local.local_step(), cost, contention, tuple(measured)))
    return sweeps


def sweep_caps(modules: Modules, *, num_ranks: int = 2, rounds: int = 2, **options: Any) -> list[CapSweep]:
    """Measure steps of some modules, name: (module, loss), at several bucket caps; return them beside predictions.

    All that counts takes turns, `rounds` times, so that what drifts hits everything alike. `options` are those of
    `measure_round`.
    """
    turns = range(whole("rounds", rounds, 1))
    return sweeps_of([measure_round(modules, num_ranks=num_ranks, **options) for _ in turns])


def _allreduces(num_ranks: int, network: Any) -> tuple[Point, ...]:
    ranks = whole("num_ranks", num_ranks, 2)
    keys = [key for size in SIZES for key in collective_keys("allreduce", size, [ranks], ["native"])]
    protocol = Protocol(iterations=_ITERATIONS, budget_s=_BUDGET_S)
    return tuple(launcher(num_ranks, "gloo", network, 300.0)(_points, (keys, ranks, protocol))[0])


def _points(keys: Any, num_ranks: int, protocol: Protocol) -> list[Point]:
    from ..machine.measuring.rank import measure_keys

    return measure_keys(keys, [0] * num_ranks, "cpu", protocol)


def _cost(rounds: Sequence[tuple[Point, ...]]) -> CostTable:
    sizes = [float(point.num_bytes) for point in rounds[0]]
    medians_s = [float(np.median(np.concatenate([p.used_s for p in points]))) for points in zip(*rounds, strict=True)]
    return CostTable(tuple(sizes), tuple(medians_s))


def _contention(rounds: Sequence[Runs], cost: Cost) -> Contention:
    runs = _joined(rounds)
    return fit_contention([runs[cap].overlapped() for cap in _FITTED_MB], runs[ALONE].local_step(), cost)


def _calibration() -> tuple[nn.Module, Loss]:
    layers = [layer for _ in range(_DEPTH) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.ReLU())]
    return nn.Sequential(*layers), partial(_mean_square, torch.ones(_BATCH, _WIDTH))


def _mean_square(batch: Tensor, module: nn.Module, rank: int, number: int) -> Tensor:
    loss: Tensor = module(batch).square().mean()
    return loss


def _steps(
    module: nn.Module, loss: Loss, caps: Sequence[float | str | None], num_ranks: int, iterations: int, network: Any,
    options: Mapping[str, Any],
) -> Runs:  # fmt: skip
    runs: Runs = {}
    for cap in caps:
        how: dict[str, Any] = {"bucket_cap_mb": cap, "iterations": iterations}
        if cap == ALONE:
            how = {"communicate": False, "iterations": _MORE * iterations}
        runs[cap] = measure_ddp(module, loss, num_ranks=num_ranks, network=network, **how, **options)
    return runs


def _joined(rounds: Sequence[Runs]) -> Runs:
    return {cap: joined([runs[cap] for runs in rounds]) for cap in rounds[0]}
