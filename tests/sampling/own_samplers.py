"""Samplers as people write them, for the panel that takes one's own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DistributedSampler


class Counting:
    """Strided shares in an order that its own generator shuffles anew for each iteration; no set_epoch."""

    def __init__(self, data_source: Any, num_replicas: int, rank: int) -> None:
        self.all = list(data_source)
        self.mine = slice(rank, None, num_replicas)
        self.random = random.Random(3)

    def __iter__(self) -> Iterator[int]:
        self.random.shuffle(self.all)
        return iter(self.all[self.mine])


class Derived(DistributedSampler[int]):
    """torch's, under another name."""


def in_batches(dataset: Any, num_replicas: int, rank: int, batch_size: int) -> BatchSampler:
    """A batch sampler, which hides set_epoch."""
    return BatchSampler(DistributedSampler(dataset, num_replicas, rank), batch_size, True)


def windows(n: int, rank: int, world_size: int, window: int) -> Iterator[int]:
    """Windows of neighbours in turn; it needs an argument that torch's samplers do not have."""
    return (sample for sample in range(n) if sample // window % world_size == rank)


def unseeded(dataset: Any, num_replicas: int, rank: int) -> list[int]:
    """Shares of an order that each rank draws from a generator that nobody has seeded."""
    return random.sample(dataset, len(dataset))[rank::num_replicas]


def refusing(dataset: Any, num_replicas: int, rank: int) -> list[int]:
    raise RuntimeError(f"{len(dataset)} samples & {num_replicas} ranks")
