"""FSDP's predicted step time against real ranks: ``python -m tests.benchmarks.fsdp --ranks 2``.

Each module takes steps on CPU ranks under `fully_shard` that reshards, with the root alone, and in other ways, all in
turn, because other processes use a different share of the cores each time. What the first takes, alone and together
with the second, predicts the others. Nothing is fitted to the steps that are predicted. Their collectives are the
observed ones.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from rankscope.ranks import Recording, record
from rankscope.train import fsdp
from rankscope.train.fsdp.measured import Run
from rankscope.train.fsdp.observed import Sharding


def go_before_others() -> None:
    """Let this session, its ranks included, have the cores before others do, where that is allowed.

    Root on Linux puts the session before all others (its autogroup's nice value), and so leaves the ranks' threads
    their equal shares.
    """
    with contextlib.suppress(OSError):
        os.setsid()
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("-20")
        os.setpriority(os.PRIO_PROCESS, 0, -20)


def loss(batch: Tensor, module: nn.Module) -> Tensor:
    output: Tensor = module(batch)
    return output.square().mean()


def stack(width: int, depth: int) -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)])


def encoder() -> nn.Module:
    layers = [nn.TransformerEncoderLayer(256, 4, 1024, 0.0, batch_first=True) for _ in range(4)]
    return nn.Sequential(*layers)


def bottleneck() -> nn.Module:
    layers = (nn.Linear(1024, 300), nn.ReLU(), nn.Linear(300, 2000), nn.ReLU(), nn.Linear(2000, 100))
    return nn.Sequential(*layers)


CASES: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "8 layers of 512": (partial(stack, 512, 8), torch.randn(64, 512)),
    "6 layers of 1,024": (partial(stack, 1024, 6), torch.randn(64, 1024)),
    "4 transformer layers of 256": (encoder, torch.randn(4, 32, 256)),
    "bottleneck": (bottleneck, torch.randn(128, 1024)),
}
WARM_UP = 3
NAMES = ("as usual", "root alone", "no resharding", "every second", "every second, no resharding")


def ways_of(module: nn.Module) -> list[dict[str, Any]]:
    """The ways to shard a module, by `NAMES`."""
    every = {"wrap": ["*"]}
    second = {"wrap": [name for name, child in module.named_children() if list(child.parameters())][::2]}
    kept = {"reshard_after_forward": False}
    return [every, {"wrap": []}, every | kept, second, second | kept]


def runs_in_turn(module: nn.Module, loss: Any, steps: Sequence[fsdp.Step], ways: Any, *where: int) -> list[Run]:
    """Take steps of all ways in turn on real ranks, and return the run of each."""
    num_ranks, num_steps = where
    shardings = [Sharding(num_ranks, **way).checked(module, loss) for way in ways]

    def make_step() -> Callable[[], None]:
        modules = [copy.deepcopy(module) for _ in shardings]
        for sharding, copied in zip(shardings, modules, strict=True):
            sharding.apply(copied)
        turns = cycle(modules)

        def step() -> None:
            trained = next(turns)
            loss(trained).backward()
            trained.zero_grad()

        return step

    number = len(shardings)
    timeline, num_bytes = record(make_step, num_ranks, number * num_steps, number * WARM_UP, timeout_s=600)
    runs = []
    for turn, observed in enumerate(steps):
        own = np.flatnonzero(timeline.item % number == turn)
        spans = timeline.take(own)
        runs.append(Run(Recording(replace(spans, item=spans.item // number), num_bytes[own]), (observed,) * num_ranks))
    return runs


def main(ranks: list[int], num_steps: int) -> None:
    go_before_others()
    for num_ranks in ranks:
        errors: list[float] = []
        print(f"\n{num_ranks} ranks: step measured (median), and the error of the prediction from the first way")
        for name, (make, batch) in CASES.items():
            module = make()
            its_loss = partial(loss, batch)
            ways = ways_of(module)
            steps = [fsdp.observe(module, its_loss, num_ranks=num_ranks, **way) for way in ways]
            runs = runs_in_turn(module, its_loss, steps, ways, num_ranks, num_steps)
            cost = runs[0].cost()
            for way, step, run in zip(NAMES, steps, runs, strict=True):
                assert run.collectives == step.collectives
                error = step.timeline(cost, overlap=False).makespan_s / run.step_s - 1
                if way != NAMES[0]:  # from which the predictions come
                    errors.append(abs(error))
                print(f"  {name:28} {way:28} {run.step_s * 1e3:7.1f} ms {error:+7.1%}", flush=True)
        print(f"  median error {median(errors):.1%}, largest {max(errors):.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    main(arguments.ranks, arguments.steps)
