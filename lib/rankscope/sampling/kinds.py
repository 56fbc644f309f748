"""`SAMPLERS`: one record for each kind of sampler that `assign` knows.

`assign`, the explorer of notebook 01 and the tests read these records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..common.checks import function, of_type, truth, whole
from ..common.frozen import ReadOnly, checked, frozen, mapping, optional
from .libtorch_samplers import libtorch_random_order
from .permutation import SEEDS, IntArray, share, torch_order

# The settings that a sampler need not have, with the values that `assign` gives them by default.
OPTIONAL_SETTINGS = ReadOnly(shuffle=True, seed=0, epoch=0, drop_last=False)


@frozen
class EpochRecipe:
    """The arguments of `assign` that decide what each rank reads; every field has been checked."""

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
        """The number of samples that all ranks read together."""
        return self.reads_per_rank * self.num_replicas


def _in_record(field: str, value: Any, check: Callable[..., Any], *limits: Any) -> Any:
    """Check a field of a `Sampler`; the error names the record and the field."""
    return check(f"{field} of Sampler", value, *limits)


def _reasons(name: str, value: Any) -> ReadOnly:
    return mapping(name, value, dict.fromkeys(OPTIONAL_SETTINGS, lambda place, reason: of_type(place, reason, str)))


@frozen
class Sampler:
    """A kind of sampler: its `title`, and `indices`, which returns the indices that each rank reads, in order.

    `always_shuffles` is None if the setting `shuffle` decides. `without_effect` gives, for each of `shuffle`, `seed`,
    `epoch` and `drop_last` that this sampler does not have, the reason. `assign` then accepts only its default.
    `indices` raises ValueError for a seed or an epoch outside the sampler's range.

    Raises ValueError, which names the field, for a value of another type.

    >>> Sampler("mine", None)
    Traceback (most recent call last):
    ValueError: indices of Sampler must be a function of an EpochRecipe that returns each rank's indices, got None
    """

    title: str = checked(_in_record, of_type, str)
    indices: Callable[[EpochRecipe], tuple[IntArray, ...]] = checked(
        _in_record, function, "of an EpochRecipe that returns each rank's indices"
    )
    always_shuffles: bool | None = checked(_in_record, optional, truth, default=None)
    without_effect: Mapping[str, str] = checked(_reasons, default=ReadOnly())

    def check(self, name: str, recipe: EpochRecipe) -> None:
        """Raise ValueError if a recipe for the sampler of this name changes a setting that the sampler does not have.

        `shuffle` may always be what the sampler does.
        """
        for setting, reason in self.without_effect.items():
            value = getattr(recipe, setting)
            default = OPTIONAL_SETTINGS[setting]
            agrees = setting == "shuffle" and value == self.always_shuffles
            if value != default and not agrees:
                raise ValueError(f"{setting} must be {default} for {name}, got {value}: {reason}")
        if self.always_shuffles and not recipe.shuffle:
            raise ValueError(f"{name} always shuffles: shuffle must be True, got False")


def _interleaved(order: IntArray, num_replicas: int) -> tuple[IntArray, ...]:
    """Rank r reads every `num_replicas`-th item of the order, beginning with item r."""
    return tuple(order[rank::num_replicas] for rank in range(num_replicas))


def _slices(order: IntArray, num_replicas: int) -> tuple[IntArray, ...]:
    """Rank r reads the r-th of equal, contiguous slices of the order."""
    count = order.size // num_replicas
    return tuple(order[rank * count : (rank + 1) * count] for rank in range(num_replicas))


def _unshuffled(recipe: EpochRecipe) -> IntArray:
    """Return the dataset in its order, and again from its start if there are more reads than samples."""
    return np.arange(recipe.reads) % max(recipe.size, 1)


def _torch(recipe: EpochRecipe) -> tuple[IntArray, ...]:
    """Return the indices of `torch.utils.data.DistributedSampler` (torch/utils/data/distributed.py)."""
    if not recipe.shuffle:
        return _interleaved(_unshuffled(recipe), recipe.num_replicas)
    seed = whole("seed + epoch", recipe.seed + recipe.epoch, *SEEDS)
    return _interleaved(torch_order(recipe.size, seed, recipe.reads), recipe.num_replicas)


def _libtorch_random(recipe: EpochRecipe) -> tuple[IntArray, ...]:
    """Return the indices of libtorch's `DistributedRandomSampler` (csrc/api/src/data/samplers/distributed.cpp)."""
    epoch = whole("epoch", recipe.epoch, 0)
    return _slices(libtorch_random_order(recipe.size, recipe.reads, epoch), recipe.num_replicas)


def _libtorch_sequential(recipe: EpochRecipe) -> tuple[IntArray, ...]:
    """Return the indices of libtorch's `DistributedSequentialSampler` (the same file)."""
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
