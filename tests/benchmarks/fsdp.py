"""FSDP's predicted step time and peak memory against real ranks: ``python -m tests.benchmarks.fsdp``.

``--ranks 2`` runs two ranks only, and ``--mbit 200`` puts each rank on a host of its own in an emulated network of
200 Mbit/s (root, Linux). The step of each module is measured alone, on as many ranks that compute and do not
communicate, and the costs of the machine with other modules. Nothing is fitted to the steps that are predicted.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.train import fsdp
from rankscope.train.fsdp.where import Where
from tests.tools.emulate import emulated


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


@contextmanager
def place(num_ranks: int, mbit: float | None) -> Iterator[tuple[str, Where]]:
    """Where the ranks run, in words and as `Where`: on this machine, or on an emulated network of so many Mbit/s."""
    if mbit is None:
        yield "over loopback", Where()
        return
    with emulated(num_ranks, mbit * 1e6 / 8) as network:
        yield str(network), Where(network=network, timeout_s=600.0)


def main(ranks: list[int], iterations: int, mbit: float | None) -> None:
    for num_ranks in ranks:
        with place(num_ranks, mbit) as (words, where):
            print(f"\n{num_ranks} ranks, {words}; step: predicted, measured (median), error; peak memory: error")
            compare(num_ranks, iterations, where)


def compare(num_ranks: int, iterations: int, where: Where) -> None:
    costs = fsdp.measure_costs(num_ranks, iterations=iterations, where=where)
    errors = []
    memory_errors = []
    for name, (module, batch, wrap) in CASES.items():
        step = fsdp.measure_step(module, partial(loss, batch), num_ranks=num_ranks, iterations=iterations, where=where)
        for settings in SETTINGS:
            options = {"num_ranks": num_ranks, "wrap": names_of(module, wrap), **settings}
            predicted = fsdp.predict(step, costs, overlap=False, optimizer=None, **options)
            observed = fsdp.run(module, partial(loss, batch), iterations=iterations, where=where, **options)
            error = predicted.step_s / observed.median_s - 1
            memory_error = predicted.memory.peak_bytes / observed.peak_bytes - 1
            errors.append(abs(error))
            memory_errors.append(abs(memory_error))
            print(
                f"  {name:<28} {settings!s:<34} {predicted.step_s * 1e3:7.1f} ms {observed.median_s * 1e3:7.1f} ms "
                f"{error:+6.1%}   {memory_error:+6.2%}",
                flush=True,
            )
    print(f"  median error {median(errors):.1%}, largest {max(errors):.1%}; memory at most {max(memory_errors):.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--mbit", type=float, help="on an emulated network of so many Mbit/s (root, Linux)")
    arguments = parser.parse_args()
    main(arguments.ranks, arguments.iterations, arguments.mbit)
