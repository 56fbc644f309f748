"""The explorers of `sampling`, for the battery in `tests/explorers`; and samplers of one's own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DistributedSampler

from tests.explorers.cases import Case


class Counting:
    """Strided shares in an order that its own generator shuffles anew for each iteration; no set_epoch."""

    def __init__(self, data_source: Any, num_replicas: int, rank: int) -> None:
        self.all = list(data_source)
        self.mine = slice(rank, None, num_replicas)
        self.random = random.Random(3)

    def __iter__(self) -> Iterator[int]:
        self.random.shuffle(self.all)
        return iter(self.all[self.mine])


def in_batches(dataset: Any, num_replicas: int, rank: int, batch_size: int) -> BatchSampler:
    """A batch sampler, which hides set_epoch."""
    return BatchSampler(DistributedSampler(dataset, num_replicas, rank), batch_size, False)


CASES = {
    "samplers": Case("samplers", start={"epoch": 1}),
    "samplers of yours": Case("samplers", ([in_batches, Counting],), {"epoch": 2}),
    "unequal_lengths": Case("unequal_lengths", start={"sampler": "balanced", "size": 500, "window": 1}),
}
