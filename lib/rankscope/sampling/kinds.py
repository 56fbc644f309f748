"""`SAMPLERS`: one record for each kind of sampler that `assign` knows.

`assign`, the explorer of notebook 01 and the tests read these records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..common.checks import whole
from ..common.frozen import ReadOnly, frozen
from .libtorch_samplers import libtorch_random_order
from .permutation import SEEDS, IntArray, share, torch_order


@frozen
class EpochRecipe:
    """What an epoch is made from, as `assign` was given it; every field has been checked."""

    size: int
    num_replicas: int
    shuffle: bool
    seed: int
    epoch: int
    drop_last: bool

    @property
    def reads_per_rank(self) -> int:
        return share(self.size, self.num_replicas, self.drop_last)

    @property
    def reads(self) -> int:
        """The reads of all ranks."""
        return self.reads_per_rank * self.num_replicas


@frozen
class Sampler:
    """A kind of sampler: its `title`, and `indices`, which returns what each rank reads, in order.

    `always_shuffles` is None where `shuffle` decides. `without_effect` says for each setting that this sampler does not
    have why it changes nothing. `indices` raises ValueError for a seed or an epoch outside the sampler's range.
    """

    title: str
    indices: Callable[[EpochRecipe], tuple[IntArray, ...]]
    always_shuffles: bool | None = None
    without_effect: Mapping[str, str] = ReadOnly()


def _interleaved(order: IntArray, num_replicas: int) -> tuple[IntArray, ...]:
    """Rank r reads every `num_replicas`-th item of the order, from item r on."""
    return tuple(order[rank::num_replicas] for rank in range(num_replicas))


def _slices(order: IntArray, num_replicas: int) -> tuple[IntArray, ...]:
    """Rank r reads the r-th of equal, contiguous slices of the order."""
    count = order.size // num_replicas
    return tuple(order[rank * count : (rank + 1) * count] for rank in range(num_replicas))


def _unshuffled(recipe: EpochRecipe) -> IntArray:
    """The dataset in its order, and again from its start where there are more reads than samples."""
    return np.arange(recipe.reads) % max(recipe.size, 1)


def _torch(recipe: EpochRecipe) -> tuple[IntArray, ...]:
    """What `torch.utils.data.DistributedSampler` hands out (torch/utils/data/distributed.py)."""
    if not recipe.shuffle:
        return _interleaved(_unshuffled(recipe), recipe.num_replicas)
    seed = whole("seed + epoch", recipe.seed + recipe.epoch, *SEEDS)
    return _interleaved(torch_order(recipe.size, seed, recipe.reads), recipe.num_replicas)


def _libtorch_random(recipe: EpochRecipe) -> tuple[IntArray, ...]:
    """What libtorch's `DistributedRandomSampler` hands out (torch/csrc/api/src/data/samplers/distributed.cpp)."""
    epoch = whole("epoch", recipe.epoch, 0)
    return _slices(libtorch_random_order(recipe.size, recipe.reads, epoch), recipe.num_replicas)


def _libtorch_sequential(recipe: EpochRecipe) -> tuple[IntArray, ...]:
    """What libtorch's `DistributedSequentialSampler` hands out (torch/csrc/api/src/data/samplers/distributed.cpp)."""
    whole("epoch", recipe.epoch, 0)
    return _slices(_unshuffled(recipe), recipe.num_replicas)


_LIBTORCH = ReadOnly(
    seed="libtorch's samplers take no seed",
    shuffle="libtorch has one sampler that shuffles and one that does not",
)

SAMPLERS: dict[str, Sampler] = {
    "torch": Sampler("torch DistributedSampler", _torch),
    "libtorch_random": Sampler("libtorch DistributedRandomSampler", _libtorch_random, True, _LIBTORCH),
    "libtorch_sequential": Sampler("libtorch DistributedSequentialSampler", _libtorch_sequential, False, _LIBTORCH),
}
