"""`SAMPLERS`, one record for each kind of sampler, and `assign`, which reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..common.checks import one_of, truth, whole
from .assignment import Assignment
from .samplers.balanced import BalancedSampler
from .samplers.elastic import MOST_RANKS, ElasticSampler, RankReads
from .samplers.interleaved import TorchOrderSampler
from .samplers.keyed_sampler import KeyedSampler
from .samplers.permutation import SEEDS, IntArray, libtorch_order, share
from .samplers.weighted import WeightedSampler

MOST_SAMPLES = 1 << 28  # read by all ranks of an assignment: an order of 1 GiB, and about as much again for `audit`

_NOTHING: Mapping[str, Any] = MappingProxyType({})
# The settings that a sampler need not have, with the values that `assign` gives them by default.
_OPTIONAL_SETTINGS = {"shuffle": True, "seed": 0, "epoch": 0, "drop_last": False}


class EpochRecipe(NamedTuple):
    """The arguments of `assign` that decide what each rank reads.

    `settings` contains those that only some samplers have, as `lengths` and `batch_size`.
    """

    size: int
    num_ranks: int
    shuffle: bool
    seed: int
    epoch: int
    drop_last: bool
    settings: Mapping[str, Any] = _NOTHING

    @property
    def reads(self) -> int:
        """The number of samples that all ranks read together, if that is the dataset once, padded or cut."""
        return self.num_ranks * share(self.size, self.num_ranks, self.drop_last)


class Sampler(msgspec.Struct, frozen=True, eq=False):
    """A kind of sampler: its `title`, and `reads`, which returns what each rank reads for a recipe.

    `always_shuffles` is None if the setting `shuffle` decides. `without_effect` maps each of `shuffle`, `seed`, `epoch`
    and `drop_last` that this sampler does not have to the reason. `assign` then accepts only its default, and for
    `shuffle` also what the sampler does.

    `values` is "lengths" or "weights" if the sampler needs to know one of them for each sample. `settings` are the
    other settings that only this sampler has, with values to begin with: explorers and tests use these. `make` returns
    the sampler of one rank, at the recipe's epoch, if the library has a class for it whose state is a position in the
    order of all ranks.
    """

    title: str
    reads: Callable[[EpochRecipe], RankReads]
    always_shuffles: bool | None = None
    without_effect: Mapping[str, str] = _NOTHING
    values: str | None = None
    settings: Mapping[str, Any] = _NOTHING
    make: Callable[[EpochRecipe, int], ElasticSampler] | None = None

    def check(self, name: str, recipe: EpochRecipe) -> None:
        """Raise ValueError unless this sampler, whose name is `name`, has the settings of a recipe."""
        for setting, reason in self.without_effect.items():
            value = getattr(recipe, setting)
            default = _OPTIONAL_SETTINGS[setting]
            says_what_it_does = setting == "shuffle" and value == self.always_shuffles
            if value != default and not says_what_it_does:
                raise ValueError(f"{setting} must be {default} for {name}, got {value}: {reason}")
        unknown = recipe.settings.keys() - {self.values, *self.settings}
        if unknown:
            hint = "assign returns what all ranks read, and its with_loader(batch_size) makes batches of that"
            raise ValueError(f"the sampler {name!r} has no {', '.join(unknown)}: {hint}")
        if self.values is not None and np.shape(recipe.settings.get(self.values, 0)) != (recipe.size,):
            raise ValueError(f"{self.values} must have a value for each of {recipe.size} samples for {name}")


def _slices(order: IntArray, num_ranks: int) -> RankReads:
    """Rank r reads the r-th of equal, contiguous slices of the order."""
    return RankReads(tuple(np.split(order, num_ranks)))


def _libtorch_random(recipe: EpochRecipe) -> RankReads:
    """Return the indices of libtorch's `DistributedRandomSampler` (csrc/api/src/data/samplers/distributed.cpp)."""
    return _slices(libtorch_order(recipe.size, recipe.reads, recipe.epoch), recipe.num_ranks)


def _libtorch_sequential(recipe: EpochRecipe) -> RankReads:
    """Return the indices of libtorch's `DistributedSequentialSampler` (the same file), whose padding starts over."""
    return _slices(np.arange(recipe.reads) % recipe.size, recipe.num_ranks)


def _elastic(title: str, sampler_class: Callable[..., ElasticSampler], **fields: Any) -> Sampler:
    """Return the record of a sampler that the library has a class for."""

    def make(recipe: EpochRecipe, rank: int) -> ElasticSampler:
        arguments = dict(recipe.settings)
        if "values" not in fields:
            arguments["size"] = recipe.size
        if "always_shuffles" not in fields:
            arguments["shuffle"] = recipe.shuffle
        sampler = sampler_class(
            num_replicas=recipe.num_ranks, rank=rank, seed=recipe.seed, drop_last=recipe.drop_last, **arguments
        )
        sampler.set_epoch(recipe.epoch)
        return sampler

    def reads(recipe: EpochRecipe) -> RankReads:
        return make(recipe, 0).all_ranks()  # of any rank, because `all_ranks` is the same on all

    return Sampler(title, reads, make=make, **fields)


_LIBTORCH = {
    "seed": "libtorch's samplers take no seed",
    "shuffle": "libtorch has one sampler that shuffles and one that does not",
}

# The kinds of samplers that `assign` accepts, by name.
SAMPLERS: dict[str, Sampler] = {
    "torch": _elastic("torch DistributedSampler", TorchOrderSampler),
    "libtorch_random": Sampler(
        "libtorch DistributedRandomSampler", _libtorch_random, always_shuffles=True, without_effect=_LIBTORCH
    ),
    "libtorch_sequential": Sampler(
        "libtorch DistributedSequentialSampler", _libtorch_sequential, always_shuffles=False, without_effect=_LIBTORCH
    ),
    "keyed": _elastic("KeyedSampler", KeyedSampler),
    "balanced": _elastic(
        "BalancedSampler",
        BalancedSampler,
        values="lengths",
        settings={"batch_size": 1, "max_tokens": None, "cost": "linear", "window": 100},
    ),
    "weighted": _elastic(
        "WeightedSampler",
        WeightedSampler,
        always_shuffles=True,
        without_effect={"shuffle": "a weighted draw is always random"},
        values="weights",
        settings={"num_samples": None},
    ),
}


def assign(
    size: int,
    num_ranks: int,
    *,
    sampler: str = "torch",
    shuffle: bool = True,
    seed: int = 0,
    epoch: int = 0,
    drop_last: bool = False,
    **settings: Any,
) -> Assignment:
    """Return the indices that every rank reads in one epoch if it uses this kind of sampler.

    `size` is the dataset's length. For libtorch's samplers `drop_last` is ``allow_duplicates=False``. One of them
    always shuffles and rejects ``shuffle=False``; the other never does, and ignores `shuffle`. The ranks' arrays are
    views of one order. `settings` are those that only some samplers have, as the record in `SAMPLERS` lists them:
    `values`, which is `lengths` or `weights`, and `settings` with their defaults.

    Raises ValueError if the size is outside 0 … `MOST_SAMPLES`, if all ranks together read more samples than that, if
    the ranks are outside 1 … `MOST_RANKS`, if the sampler is unknown, or if it does not have one of the settings
    (such as a seed for libtorch's).

    >>> [indices.tolist() for indices in assign(10, 4, shuffle=False).ranks]
    [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]
    >>> [indices.tolist() for indices in assign(10, 4, sampler="libtorch_sequential").ranks]
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 0, 1]]
    >>> balanced = assign(4, 2, sampler="balanced", lengths=[9, 1, 8, 2], batch_size=2, shuffle=False)
    >>> [batch.tolist() for rank in range(2) for batch in balanced.batches(rank)]
    [[0, 1], [2, 3]]
    """
    kind = SAMPLERS[one_of("sampler", sampler, tuple(SAMPLERS))]
    recipe = EpochRecipe(
        size=whole("size", size, 0, MOST_SAMPLES),
        num_ranks=whole("num_ranks", num_ranks, 1, MOST_RANKS),
        shuffle=truth("shuffle", shuffle),
        seed=whole("seed", seed, *SEEDS),
        epoch=whole("epoch", epoch),
        drop_last=truth("drop_last", drop_last),
        # None stands for the sampler's default.
        settings={name: value for name, value in settings.items() if value is not None},
    )
    kind.check(sampler, recipe)  # before `shuffle` becomes what the sampler does anyway
    if kind.always_shuffles is not None:
        recipe = recipe._replace(shuffle=kind.always_shuffles)
    whole(f"the samples that {recipe.num_ranks} ranks read together", recipe.reads, 0, MOST_SAMPLES)
    reads = kind.reads(recipe)
    return Assignment(
        recipe.size,
        reads.indices,
        sampler=sampler,
        shuffle=recipe.shuffle,
        seed=recipe.seed,
        epoch=recipe.epoch,
        drop_last=recipe.drop_last,
        batch_stops=reads.batch_stops,
    )
