"""FSDP's predicted step time against real ranks: ``python -m tests.benchmarks.fsdp --ranks 2``.

Each module takes steps under `fully_shard` that reshards, on CPU ranks. What that run costs predicts the step of other
settings, which real ranks then take. Nothing is fitted to the steps that are predicted. Their collectives are the
observed ones, and so is the peak of live bytes on rank 0.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.train import fsdp


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
OTHERS: list[dict[str, Any]] = [{"reshard_after_forward": False}, {"prefetch": 1}, {"wrap": []}]


def main(ranks: list[int], num_steps: int) -> None:
    for num_ranks in ranks:
        errors = []
        print(f"\n{num_ranks} ranks: step predicted, measured (median), error")
        for name, (make, batch) in CASES.items():
            module = make()
            usual: dict[str, Any] = {"num_ranks": num_ranks, "wrap": ["*"]}
            cost = fsdp.run(module, partial(loss, batch), num_steps=num_steps, **usual).cost()
            for other in OTHERS:
                settings = usual | other
                step = fsdp.observe(module, partial(loss, batch), **settings)
                executed = fsdp.run(module, partial(loss, batch), num_steps=num_steps, timeout_s=600, **settings)
                assert executed.collectives == step.collectives
                assert executed.observed[0].peak_bytes == step.peak_bytes
                predicted_s = step.timeline(cost, overlap=False).makespan_s
                errors.append(predicted_s / executed.step_s - 1)
                times = f"{predicted_s * 1e3:7.1f} ms {executed.step_s * 1e3:7.1f} ms {errors[-1]:+6.1%}"
                print(f"  {name:28} {other!s:34} {times}", flush=True)
        absolute = [abs(error) for error in errors]
        print(f"  median error {median(absolute):.1%}, largest {max(absolute):.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    main(arguments.ranks, arguments.steps)
