"""torch's DistributedSampler, the same order to the bit, streamed instead of listed."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from itertools import chain
from numbers import Number
from typing import Any

from torch.utils.data import DistributedSampler as TorchDistributedSampler

from ..checks import whole
from .permutation import torch_order_blocks

_LOWEST_SEED, _HIGHEST_SEED = -(2**63), 2**64 - 1


class DistributedSampler(TorchDistributedSampler[int]):
    """A drop-in for `torch.utils.data.DistributedSampler`: same arguments, same order, same errors.

    It is one (`isinstance` holds, so trainers that look for torch's find it), but an epoch is streamed: unshuffled
    in O(1) memory, shuffled in one array of 4 bytes a sample (8 from 2**31 samples), and the first index comes
    before the epoch has been shuffled. torch's makes Python lists of the whole dataset in every rank.

    `dataset` is a dataset with a length, or the length itself. What torch lets through is refused with a
    ValueError: whole numbers that are not (a rank of 1.5 or True), a seed that the generator cannot take, and a
    dataset whose length changed since the sampler was made (torch then repeats, loses or invents samples).

    As in torch: the order depends on ``seed + epoch`` alone, so (seed 0, epoch 1) and (seed 1, epoch 0) agree, and
    without `set_epoch` every epoch reads in the same order; padding repeats the first samples of the order; with
    `drop_last` and fewer samples than ranks there is nothing to read, silently (`audit` says so).

    Source: torch/utils/data/distributed.py.

    >>> sampler = DistributedSampler(10, num_replicas=4, rank=1, shuffle=False)
    >>> list(sampler), len(sampler)
    ([1, 5, 9], 3)
    >>> list(DistributedSampler(10, num_replicas=4, rank=3, shuffle=False))  # padded with sample 1
    [3, 7, 1]
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
        if num_replicas is not None:
            num_replicas = whole("num_replicas", num_replicas, 1)
        if rank is not None:
            rank = whole("rank", rank)
        seed = whole("seed", seed, _LOWEST_SEED, _HIGHEST_SEED)
        items = dataset if hasattr(dataset, "__len__") else _range(dataset)
        super().__init__(items, num_replicas, rank, shuffle, seed, drop_last)  # type: ignore[arg-type]
        self._size = len(items)

    def __iter__(self) -> Iterator[int]:
        size = len(self.dataset)  # type: ignore[arg-type]
        if size != self._size:
            raise ValueError(
                f"the dataset had {self._size} samples when the sampler was made and has {size} now: make a new sampler"
            )
        if not self.shuffle:
            return self._in_order(size)
        seed = whole("seed + epoch", self.seed + self.epoch, _LOWEST_SEED, _HIGHEST_SEED)
        return chain.from_iterable(self._shuffled(size, seed))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration shuffles for. Raises ValueError where it is not a whole number."""
        self.epoch = whole("epoch", epoch)

    def _in_order(self, size: int) -> Iterator[int]:
        real = range(self.rank, min(size, self.total_size), self.num_replicas)
        padded = range(self.rank + len(real) * self.num_replicas, self.total_size, self.num_replicas)
        return chain(real, (position % size for position in padded))

    def _shuffled(self, size: int, seed: int) -> Iterator[list[int]]:
        """Yield this rank's indices in lists: its share of each block of the order, then its share of the padding."""
        padding = max(self.total_size - size, 0)
        head: list[int] = []
        first = 0
        for block in torch_order_blocks(size, seed, min(size, self.total_size)):
            yield block[(self.rank - first) % self.num_replicas :: self.num_replicas].tolist()
            head += block[: max(min(padding, size) - first, 0)].tolist()
            first += block.size
        start = size + (self.rank - size) % self.num_replicas
        yield [head[position % size] for position in range(start, self.total_size, self.num_replicas)]


def _range(length: Any) -> range:
    """A stand-in for a dataset of that many samples."""
    if isinstance(length, Number) or hasattr(length, "__index__"):
        return range(whole("dataset length", length, 0, 2**63 - 1))
    raise TypeError(
        f"the dataset has no length: pass a map-style dataset or its length, got {type(length).__name__}"
    )
