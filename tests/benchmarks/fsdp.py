"""FSDP's predicted step time and peak memory against real ranks: ``python -m tests.benchmarks.fsdp``.

The step of each module is measured alone, on as many ranks that compute and do not communicate, and the costs of the
machine with other modules. Nothing is fitted to the steps that are predicted.
"""

from __future__ import annotations

import sys
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.train import fsdp


def loss(batch: Tensor, module: nn.Module, rank: int, number: int) -> Tensor:
    output: Tensor = module(batch)
    return output.square().mean()


def stack(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers)


class Encoder(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        layers = [nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True) for _ in range(depth)]
        self.layers = nn.ModuleList(layers)

    def forward(self, batch: Tensor) -> Tensor:
        for layer in self.layers:
            batch = layer(batch)
        return batch


CASES: dict[str, tuple[nn.Module, Tensor, list[str]]] = {
    "8 layers of 512": (stack(512, 8), torch.randn(64, 512), ["*"]),
    "6 layers of 1,024": (stack(1024, 6), torch.randn(64, 1024), ["*"]),
    "4 transformer layers of 256": (Encoder(256, 4), torch.randn(4, 32, 256), ["layers.*"]),
    "bottleneck": (
        nn.Sequential(nn.Linear(1024, 300), nn.ReLU(), nn.Linear(300, 2000), nn.ReLU(), nn.Linear(2000, 100)),
        torch.randn(128, 1024),
        ["0", "2"],
    ),
}
SETTINGS: list[dict[str, Any]] = [{}, {"reshard_after_forward": False}, {"prefetch": 1}]


def names_of(module: nn.Module, wrap: list[str]) -> list[str]:
    """The entries of `wrap`, with "*" only for layers that have parameters."""
    if wrap != ["*"]:
        return wrap
    return [name for name, child in module.named_children() if any(True for _ in child.parameters())]


def main(ranks: tuple[int, ...] = (2, 4), iterations: int = 30) -> None:
    for num_ranks in ranks:
        costs = fsdp.measure_costs(num_ranks, iterations=iterations)
        errors = []
        memory_errors = []
        print(f"\n{num_ranks} ranks over loopback; step: predicted, measured (median), error; peak memory: error")
        for name, (module, batch, wrap) in CASES.items():
            step = fsdp.measure_step(module, partial(loss, batch), num_ranks=num_ranks, iterations=iterations)
            for settings in SETTINGS:
                options = {"num_ranks": num_ranks, "wrap": names_of(module, wrap), **settings}
                predicted = fsdp.predict(step, costs, overlap=False, optimizer=None, **options)
                observed = fsdp.run(module, partial(loss, batch), iterations=iterations, **options)
                error = predicted.step_s / observed.median_s - 1
                memory_error = predicted.memory.peak_bytes / observed.peak_bytes - 1
                errors.append(abs(error))
                memory_errors.append(abs(memory_error))
                print(
                    f"  {name:<28} {settings!s:<34} {predicted.step_s * 1e3:7.1f} ms {observed.median_s * 1e3:7.1f} ms "
                    f"{error:+6.1%}   {memory_error:+6.2%}"
                )
        print(
            f"  median error {median(errors):.1%}, largest {max(errors):.1%}; memory at most {max(memory_errors):.1%}"
        )


if __name__ == "__main__":
    main(*[(int(word),) for word in sys.argv[1:2]])
