"""The objects that notebook a6 examines: copy this file next to it, put in your own objects, and name the copy there.

Each function returns one of your objects, and is called without arguments, except `loss`. The file is imported as a
module, in this process and in the ranks, so nothing in it needs a ``__main__`` guard.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from rankscope.collectives import Schedule


def samplers() -> tuple[list[Iterable[int]], int]:
    """Return one sampler for each rank, and the number of samples in the dataset."""
    size = 50
    num_ranks = 4
    samples: Any = range(size)
    return [DistributedSampler(samples, num_ranks, rank) for rank in range(num_ranks)], size


def loader() -> DataLoader[Any]:
    """Return the loader of a rank."""
    return DataLoader(TensorDataset(torch.ones(256, 64, 64)), batch_size=16, num_workers=1)


def schedule() -> Schedule:
    """Return an allreduce: which rank sends which chunk to which rank, and whether it is added (+) or replaces (=).

    >>> schedule().num_ranks
    3
    """
    return Schedule.from_text("""allreduce exchange ranks=3 chunks=1 ports=2
0: 0>1:0+ 0>2:0+ 1>0:0+ 1>2:0+ 2>0:0+ 2>1:0+""")


def module() -> nn.Module:
    """Return the model, before it is wrapped in DistributedDataParallel."""
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(512, 512), nn.ReLU()]
    return nn.Sequential(*layers)


def loss(module: nn.Module, rank: int, number: int) -> Tensor:
    """Return the loss of a micro-batch, which is loaded or made here from its number."""
    value: Tensor = module(torch.ones(64, 512)).square().mean()
    return value
