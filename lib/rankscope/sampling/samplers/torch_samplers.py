"""torch's DistributedSampler, with the same order to the bit, streamed instead of listed, and resumable."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from torch.utils.data import DistributedSampler as TorchDistributedSampler

from ...common.checks import whole
from .elastic import ElasticSampler
from .interleaved import TorchOrderSampler


class DistributedSampler(TorchOrderSampler, TorchDistributedSampler[int]):
    """A drop-in replacement for `torch.utils.data.DistributedSampler`: same arguments, same order, same errors.

    It is a subclass, so trainers that check with `isinstance` accept it, but it streams an epoch. Unshuffled, an epoch
    needs O(1) memory; shuffled, one array of 4 bytes per sample (8 at 2**31 samples and above). The first index is
    available before the whole epoch has been shuffled. torch's sampler makes Python lists of the whole dataset in every
    rank.

    `dataset` is a dataset with a length, or the length itself. Raises ValueError for a rank, a number of ranks or a
    seed that is not a whole number in its range.

    As in torch, the order depends on ``seed + epoch`` alone, so (seed 0, epoch 1) and (seed 1, epoch 0) agree, and
    without `set_epoch` every epoch reads in the same order. Padding repeats the first samples of the order. With
    `drop_last` and fewer samples than ranks, no rank reads anything, without an error (`audit` reports it).

    In addition, `state_after` and `load_state_dict` continue an epoch where it was stopped, on any number of ranks.

    >>> sampler = DistributedSampler(10, num_replicas=4, rank=1, shuffle=False)
    >>> list(sampler), len(sampler)
    ([1, 5, 9], 3)
    >>> before = [DistributedSampler(10, 3, rank, shuffle=False) for rank in range(3)]  # stopped after one step
    >>> after = [DistributedSampler(10, 2, rank, shuffle=False) for rank in range(2)]
    >>> for sampler in after:
    ...     sampler.resume(before[0].state_after(1))
    >>> [list(sampler) for sampler in after]
    [[3, 5, 7, 9], [4, 6, 8, 0]]
    """

    def __init__(
        self,
        dataset: Sized | int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        items: Any = dataset
        if not isinstance(dataset, Sized):
            items = range(whole("dataset (its length)", dataset, 0, 2**63 - 1))
        TorchDistributedSampler.__init__(self, items, num_replicas, rank, shuffle, seed, drop_last)
        super().__init__(len(items), self.num_replicas, self.rank, shuffle, seed, drop_last)

    resume = ElasticSampler.load_state_dict
