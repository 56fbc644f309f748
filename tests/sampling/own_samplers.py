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


def in_batches(dataset: Any, num_replicas: int, rank: int, batch_size: int, drop_last: bool) -> BatchSampler:
    """A batch sampler, which hides set_epoch."""
    return BatchSampler(DistributedSampler(dataset, num_replicas, rank), batch_size, drop_last)
