"""`KeyedSampler`: a shuffled epoch of any size in constant memory, on any rank and from any position at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..common.checks import whole
from .elastic import InterleavedSampler
from .keyed import MOST_KEYED_SAMPLES, KeyedPermutation, checked_positions
from .permutation import IntArray

_BLOCK = 1 << 14  # indices of an unshuffled epoch that are made at once


class KeyedSampler(InterleavedSampler):
    """A distributed sampler that computes each index from its position, instead of storing a permutation.

    An epoch of 10**12 samples needs as much memory as one of 10**5, and the first index at any position takes less than
    a millisecond. ``sampler[position]`` is the sample at a position of the order of all ranks together; rank r of N
    reads the positions r, r + N, r + 2N, …. As in torch's DistributedSampler, padding repeats the beginning of the
    order, and `drop_last` cuts the end instead; without `set_epoch` every epoch has the same order. Unlike there, no
    two pairs of seed and epoch have the same order, even if seed + epoch is equal.

    Without `num_replicas` and `rank`, those of torch's process group apply, or one rank if there is no group. Raises
    ValueError if the size is outside 0 … 2**63 - 1 or another value is out of range.

    >>> sampler = KeyedSampler(10**12, num_replicas=1024, rank=3)
    >>> next(iter(sampler)) == sampler[3]
    True
    >>> sampler.load_state_dict(sampler.state_after(400_000_000))
    >>> next(iter(sampler)) == sampler[3 + 400_000_000 * 1024]
    True
    """

    _TITLE = "KeyedSampler"
    _RECIPE: ClassVar = {"size": "size", "seed": "seed", "shuffle": "shuffle"}

    def __init__(
        self,
        size: int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.size = whole("size", size, 0, MOST_KEYED_SAMPLES)
        super().__init__(num_replicas, rank, shuffle, seed, drop_last)
        self._permutation: KeyedPermutation | None = None  # of the epoch that was read last
        self._start_from(self._first_progress())

    def __getitem__(self, position: int) -> int:
        """Return the sample at a position of the order of all ranks. Raises IndexError outside 0 … size - 1."""
        position = whole("position", position)
        if not 0 <= position < self.size:
            raise IndexError(f"position must be a whole number from 0 to {self.size - 1}, got {position}")
        if not self.shuffle:
            return position
        return int(self.permutation(np.array([position]))[0])

    @property
    def permutation(self) -> KeyedPermutation:
        """The order of this epoch, which also has the inverse: the position of a sample."""
        key = self._key("order")
        if self._permutation is None or self._permutation.key != key:
            self._permutation = KeyedPermutation(self.size, key)
        return self._permutation

    def positions(self, samples: IntArray) -> NDArray[np.int64]:
        """Return the positions at which samples are read in this epoch."""
        if not self.shuffle:
            return checked_positions(samples, self.size)
        return self.permutation.inverse(samples)

    def _order_length(self) -> int:
        return self.size

    def _order_blocks(self, start: int, stop: int, step: int) -> Iterator[NDArray[np.int64]]:
        if self.shuffle:
            yield from self.permutation.blocks(start, stop, step)
            return
        for first in range(start, stop, step * _BLOCK):  # without shuffle, an item is its position
            yield np.arange(first, min(stop, first + step * _BLOCK), step)
