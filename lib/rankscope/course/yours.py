"""What notebook 14 looks at: copy this file next to it, put your own things in, and name the copy there.

Each function gives one thing of yours, and is called without arguments, except `loss`. It is imported as a module, in
this process and in the ranks, so that nothing in it needs a ``__main__`` guard.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from rankscope.collectives import Schedule


def samplers() -> tuple[list[Iterable[int]], int]:
    """Return one sampler a rank, and how many samples the dataset has."""
    size, num_ranks = 50, 4
    samples: Any = range(size)
    return [DistributedSampler(samples, num_ranks, rank) for rank in range(num_ranks)], size


def loader() -> DataLoader[Any]:
    """Return the loader that a rank trains from."""
    return DataLoader(TensorDataset(torch.ones(256, 64, 64)), batch_size=16, num_workers=1)


def schedule() -> Schedule:
    """Return an allreduce: which rank sends which chunk where, and whether it is added (+) or replaces (=).

    >>> schedule().num_ranks
    3
    """
    return Schedule.from_text("""allreduce exchange ranks=3 chunks=1 ports=2
0: 0>1:0+ 0>2:0+ 1>0:0+ 1>2:0+ 2>0:0+ 2>1:0+""")


def module() -> nn.Module:
    """Return the model, as it is before DistributedDataParallel."""
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.ReLU())))


def loss(module: nn.Module, rank: int, number: int) -> Tensor:
    """Return the loss of a micro-batch, by its number, which is found or made here."""
    value: Tensor = module(torch.ones(64, 512)).square().mean()
    return value
