"""`SAMPLERS`: one record for each kind of sampler that `assign` knows.

`assign`, the explorer of notebook 01 and the tests read these records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from ..common.checks import check_field, function, of_type, one_of, optional, truth, whole
from .balanced import BalancedSampler
from .elastic import ElasticSampler, RankReads
from .keyed_sampler import KeyedSampler
from .libtorch_samplers import libtorch_random_order
from .permutation import SEEDS, IntArray, share, torch_order
from .weighted import WeightedSampler

VALUES = ("lengths", "weights")
"""What a sampler may need to know of each sample."""

# The settings that a sampler need not have, with the values that `assign` gives them by default.
OPTIONAL_SETTINGS = {"shuffle": True, "seed": 0, "epoch": 0, "drop_last": False}


class EpochRecipe(msgspec.Struct, frozen=True):
    """The arguments of `assign` that decide what each rank reads; every field has been checked.

    `settings` contains those that only some samplers have, as `lengths` and `batch_size`. Their values are checked by
    the sampler itself.
    """

    size: int
    num_replicas: int
    shuffle: bool
    seed: int
    epoch: int
    drop_last: bool
    settings: Mapping[str, Any] = {}

    @property
    def reads_per_rank(self) -> int:
        return share(self.size, self.num_replicas, self.drop_last)

    @property
    def reads(self) -> int:
        """The number of samples that all ranks read together."""
        return self.reads_per_rank * self.num_replicas


class Sampler(msgspec.Struct, frozen=True):
    """A kind of sampler: its `title`, and `indices`, which returns the indices that each rank reads, in order.

    A sampler that also decides which indices form a batch returns `RankReads` with them.

    `always_shuffles` is None if the setting `shuffle` decides. `without_effect` maps each of `shuffle`, `seed`, `epoch`
    and `drop_last` that this sampler does not have to the reason. `assign` then accepts only its default.
    `indices` raises ValueError if the seed or the epoch is outside the sampler's range.

    `values` is "lengths" or "weights" if the sampler needs to know one of them for each sample. `settings` are the
    other settings that only this sampler has, with values to begin with: explorers and tests use these. `make` returns
    the sampler of one rank, if the library has a class for it whose state is a position in the order of all ranks.

    Raises ValueError, which names the field, if a value has the wrong type.

    >>> Sampler("mine", None)
    Traceback (most recent call last):
    ValueError: indices must be a function of an EpochRecipe that returns each rank's indices, got None
    """

    title: str
    indices: Callable[[EpochRecipe], tuple[IntArray, ...] | RankReads]
    always_shuffles: bool | None = None
    without_effect: Mapping[str, str] = {}
    values: str | None = None
    settings: Mapping[str, Any] = {}
    make: Callable[[EpochRecipe, int], ElasticSampler] | None = None

    def __post_init__(self) -> None:
        check_field(self, "title", of_type, str)
        check_field(self, "indices", function, "of an EpochRecipe that returns each rank's indices")
        check_field(self, "always_shuffles", optional, truth)
        check_field(self, "values", optional, one_of, VALUES)
        check_field(self, "make", optional, function, "of an EpochRecipe and a rank that returns a sampler")

    def check(self, name: str, recipe: EpochRecipe) -> None:
        """Raise ValueError unless this sampler, whose name is `name`, has the settings of a recipe."""
        self._check_without_effect(name, recipe)
        self._check_settings(name, recipe)

    def _check_without_effect(self, name: str, recipe: EpochRecipe) -> None:
        """Raise ValueError if a recipe changes one of `OPTIONAL_SETTINGS` that the sampler does not have.

        `shuffle` may always be what the sampler does.
        """
        for setting, reason in self.without_effect.items():
            value = getattr(recipe, setting)
            default = OPTIONAL_SETTINGS[setting]
            says_what_it_does = setting == "shuffle" and value == self.always_shuffles
            if value != default and not says_what_it_does:
                raise ValueError(f"{setting} must be {default} for {name}, got {value}: {reason}")
        if self.always_shuffles and not recipe.shuffle:  # and `without_effect` has no reason for it
            raise ValueError(f"{name} always shuffles: shuffle must be True, got False")

    def _check_settings(self, name: str, recipe: EpochRecipe) -> None:
        """Raise ValueError for a setting that the sampler does not know, and unless each sample has its value."""
        known = list(self.settings)
        if self.values is not None:
            known = [self.values, *self.settings]
        for setting in recipe.settings:
            if setting not in known:
                expected = f"its settings are {', '.join(known)}" if known else "it has no further settings"
                raise ValueError(f"{setting} is not a setting of {name}: {expected}")
        if self.values is None:  # it needs neither lengths nor weights
            return
        if self.values not in recipe.settings:
            raise ValueError(f"{self.values} must have a value for each of {recipe.size} samples for {name}, got none")
        shape = np.shape(recipe.settings[self.values])
        if shape != (recipe.size,):
            raise ValueError(f"{self.values} must have the dataset's length {recipe.size}, got shape {shape}")


def _interleaved(order: IntArray, num_replicas: int) -> tuple[IntArray, ...]:
    """Rank r reads every `num_replicas`-th item of the order, beginning with item r."""
    return tuple(order[rank::num_replicas] for rank in range(num_replicas))


def _slices(order: IntArray, num_replicas: int) -> tuple[IntArray, ...]:
    """Rank r reads the r-th of equal, contiguous slices of the order."""
    count = order.size // num_replicas
    return tuple(order[rank * count : (rank + 1) * count] for rank in range(num_replicas))


def _unshuffled(recipe: EpochRecipe) -> IntArray:
    """Return the dataset in its order, and again from its start if there are more reads than samples."""
    return np.arange(recipe.reads) % recipe.size


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


def _keyed(recipe: EpochRecipe, rank: int) -> KeyedSampler:
    return KeyedSampler(recipe.size, recipe.num_replicas, rank, recipe.shuffle, recipe.seed, recipe.drop_last)


def _balanced(recipe: EpochRecipe, rank: int) -> BalancedSampler:
    settings = dict(recipe.settings)
    lengths = settings.pop("lengths")
    batch_size = settings.pop("batch_size", SAMPLERS["balanced"].settings["batch_size"])
    return BalancedSampler(
        lengths,
        recipe.num_replicas,
        rank,
        batch_size,
        **settings,
        shuffle=recipe.shuffle,
        seed=recipe.seed,
        drop_last=recipe.drop_last,
    )


def _weighted(recipe: EpochRecipe, rank: int) -> WeightedSampler:
    settings = dict(recipe.settings)
    weights = settings.pop("weights")
    return WeightedSampler(weights, recipe.num_replicas, rank, seed=recipe.seed, drop_last=recipe.drop_last, **settings)


def _elastic(title: str, make: Callable[[EpochRecipe, int], ElasticSampler], **fields: Any) -> Sampler:
    """Return the record of a sampler that the library has a class for."""

    def indices(recipe: EpochRecipe) -> RankReads:
        sampler = make(recipe, 0)  # of any rank, because `all_ranks` is the same on all
        sampler.set_epoch(recipe.epoch)
        return sampler.all_ranks()

    return Sampler(title, indices, make=make, **fields)


_LIBTORCH = {
    "seed": "libtorch's samplers take no seed",
    "shuffle": "libtorch has one sampler that shuffles and one that does not",
}

# The kinds of samplers that `assign` and `EpochRecipe` accept, by name.
SAMPLERS: dict[str, Sampler] = {
    "torch": Sampler("torch DistributedSampler", _torch),
    "libtorch_random": Sampler(
        "libtorch DistributedRandomSampler", _libtorch_random, always_shuffles=True, without_effect=_LIBTORCH
    ),
    "libtorch_sequential": Sampler(
        "libtorch DistributedSequentialSampler", _libtorch_sequential, always_shuffles=False, without_effect=_LIBTORCH
    ),
    "keyed": _elastic("KeyedSampler", _keyed),
    "balanced": _elastic(
        "BalancedSampler",
        _balanced,
        values="lengths",
        settings={"batch_size": 1, "cost": "linear", "window": 100},
    ),
    "weighted": _elastic(
        "WeightedSampler",
        _weighted,
        always_shuffles=True,
        without_effect={"shuffle": "a weighted draw is always random"},
        values="weights",
        settings={"num_samples": None},
    ),
}
