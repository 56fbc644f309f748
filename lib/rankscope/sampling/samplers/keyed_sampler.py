"""`KeyedSampler`: a shuffled epoch of any size in constant memory, on any rank and from any position at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...common.checks import whole
from .interleaved import InterleavedSampler
from .keyed import MOST_KEYED_SAMPLES, KeyedPermutation, keyed_permutation


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

    def __init__(
        self,
        size: int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(whole("size", size, 0, MOST_KEYED_SAMPLES), num_replicas, rank, shuffle, seed, drop_last)

    def __getitem__(self, position: int) -> int:
        """Return the sample at a position of the order of all ranks. Raises IndexError outside 0 … size - 1."""
        sample = self.permutation[position]
        return sample if self.shuffle else position

    @property
    def permutation(self) -> KeyedPermutation:
        """The shuffled order of this epoch."""
        return keyed_permutation(self.size, self._key("order"))

    def _blocks(self, start: int, stop: int, step: int) -> Iterator[NDArray[np.int64]]:
        return self.permutation.blocks(start, stop, step)
