"""`Assignment`: which rank reads which sample, in which order, in one epoch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.checks import check_field, several, whole
from .samplers.elastic import unmoved
from .samplers.permutation import IntArray
from .samplers.wrapping import layers_of

Key = Callable[[Any], Any]


class Loader(msgspec.Struct, frozen=True):
    """How a DataLoader on each rank groups that rank's indices.

    Worker ``b % num_workers`` makes batch b of its rank (torch/utils/data/dataloader.py, map-style dataset, in_order).
    If `num_workers` is 0, the training process makes all batches.
    """

    batch_size: int = 1
    drop_last: bool = False
    num_workers: int = 0

    def __post_init__(self) -> None:
        whole("batch_size", self.batch_size, 1)
        whole("num_workers", self.num_workers, 0)


def length_of(owner: Any) -> int | None:
    """Return ``len()`` of an object, and None if it has none."""
    try:
        return len(owner)
    except (TypeError, NotImplementedError):  # also if its class has a `__len__`, and what it wraps has none
        return None


def wrong_length(rank: int, owner: Any, items: Iterable[Any]) -> str:
    """Return how ``len()`` of a rank's sampler or loader differs from the number of its items; "" if it does not."""
    said = length_of(owner)
    if said is None:  # there may be no end of items
        return ""
    num_items = sum(1 for _ in items)
    return "" if said == num_items else f"rank {rank}'s {type(owner).__name__} says {said} and yields {num_items}"


class Assignment(msgspec.Struct, frozen=True, eq=False):
    """The indices that every rank reads in one epoch, and the recipe that produced them.

    `size` is the dataset's length; ``ranks[r]`` contains the indices that rank r reads, in order. Ranks may read
    different numbers of samples. `loader` is the DataLoader on top, if `with_loader` added one. If the sampler makes
    the batches, ``batch_stops[r]`` contains the positions in ``ranks[r]`` at which the batches of rank r end. The
    arrays are read-only. `wrong_lengths` says which of the samplers that `collect` has iterated have a wrong ``len()``.

    Raises ValueError if a rank's indices are not a 1-D array of integers, or if batches do not end with its reads.
    """

    size: int
    ranks: tuple[IntArray, ...]
    sampler: str = "custom"
    shuffle: bool | None = None
    seed: int | None = None
    epoch: int = 0
    drop_last: bool | None = None
    loader: Loader | None = None
    batch_stops: tuple[IntArray, ...] | None = None
    wrong_lengths: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_field(self, "size", whole, 0)
        check_field(self, "ranks", _arrays_of_ranks)
        if self.batch_stops is None:
            return
        check_field(self, "batch_stops", _arrays_of_ranks)
        if self.loader is not None:
            raise ValueError("this assignment's sampler makes the batches, so a loader cannot")
        for rank, (indices, stops) in enumerate(zip(self.ranks, self.batch_stops, strict=True)):
            edges = np.concatenate([[0], stops])  # a batch begins where the one before it ends
            if edges[-1] != indices.size or (np.diff(edges) < 0).any():
                raise ValueError(f"batch_stops of rank {rank} must rise to {indices.size}, its number of reads")

    @classmethod
    def collect(
        cls, samplers: Iterable[Iterable[Any]], size: int, epoch: int = 0, key: Key | None = None
    ) -> Assignment:
        """Iterate one sampler per rank and collect the indices, so that any sampler can be audited.

        If a sampler has `set_epoch`, it is called with `epoch` first. Batch samplers, which yield lists of indices, can
        also be collected. With a `key`, so can loaders and iterable datasets: it returns the index or the name of a
        row, or a list of those of a batch. Names, which are texts or tuples, get numbers in the order of their
        appearance. This library's samplers, wrapped or not, then go on where they were. Raises ValueError if a sampler
        yields anything else.

        >>> from torch.utils.data import DistributedSampler
        >>> samplers = [DistributedSampler(range(5), num_replicas=2, rank=r, shuffle=False) for r in range(2)]
        >>> [indices.tolist() for indices in Assignment.collect(samplers, size=5).ranks]
        [[0, 2, 4], [1, 3, 0]]
        >>> rows = [[{"id": "a"}, {"id": "b"}], [{"id": "b"}]]
        >>> [indices.tolist() for indices in Assignment.collect(rows, size=2, key=lambda row: row["id"]).ranks]
        [[0, 1], [1]]
        """
        samplers = several("samplers", samplers, "a rank's sampler each")
        for sampler in samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        # Our own samplers would otherwise go on as if the samples had been trained on. The random generators go on, so
        # that samplers which draw from them return another order for the next epoch, as in training.
        with unmoved(layer for sampler in samplers for layer in layers_of(sampler)):
            items_of_ranks = [
                several(f"rank {rank}'s sampler", sampler, "indices") for rank, sampler in enumerate(samplers)
            ]
            wrong = [wrong_length(rank, samplers[rank], items) for rank, items in enumerate(items_of_ranks)]
        if key is not None:
            items_of_ranks = [list(map(key, items)) for items in items_of_ranks]
        kinds = {_is_batch(items[0]) for items in items_of_ranks if items}
        if len(kinds) > 1:
            raise ValueError("the ranks' samplers must all yield indices or all yield batches")
        batch_stops = None
        if True in kinds:
            batch_stops = tuple(np.cumsum([len(batch) for batch in items], dtype=np.int64) for items in items_of_ranks)
            items_of_ranks = [list(chain.from_iterable(items)) for items in items_of_ranks]
        numbers: dict[Any, int] = {}  # of names, on all ranks
        ranks = tuple(_numbers_of(rank, items, numbers) for rank, items in enumerate(items_of_ranks))
        # Only False is certain: a sampler that says True may repeat an order all the same, and others say nothing.
        none_shuffles = {getattr(sampler, "shuffle", None) for sampler in samplers} == {False}
        return cls(
            size,
            ranks,
            epoch=epoch,
            shuffle=False if none_shuffles else None,
            batch_stops=batch_stops,
            wrong_lengths=tuple(filter(None, wrong)),
        )

    @property
    def num_ranks(self) -> int:
        """The world size."""
        return len(self.ranks)

    @property
    def num_steps(self) -> int:
        """The largest number of samples read by any rank."""
        return max(indices.size for indices in self.ranks)

    def with_loader(self, batch_size: int, drop_last: bool = False, num_workers: int = 0) -> Assignment:
        """Return the assignment with a DataLoader on every rank. `drop_last` cuts each rank's incomplete last batch.

        >>> from rankscope.sampling import assign
        >>> assign(10, 2, shuffle=False).with_loader(batch_size=2, drop_last=True).ranks[1].tolist()
        [1, 3, 5, 7]
        """
        if self.loader is not None:
            raise ValueError(f"this assignment has a loader already: {self.loader}")
        loader = Loader(batch_size, drop_last, num_workers)
        ranks = self.ranks
        if drop_last:
            ranks = tuple(indices[: indices.size // batch_size * batch_size] for indices in ranks)
        return msgspec.structs.replace(self, ranks=ranks, loader=loader)

    def stops(self, rank: int) -> IntArray:
        """Return the positions in a rank's reads at which its batches end; without batches, each sample is one."""
        if self.batch_stops is not None:
            return self.batch_stops[rank]
        num_reads = self.ranks[rank].size
        batch_size = self.loader.batch_size if self.loader else 1
        stops = np.arange(batch_size, num_reads + batch_size, batch_size)
        return np.minimum(stops, num_reads)  # the last batch may be smaller

    def batches(self, rank: int) -> list[IntArray]:
        """Return the batches of one rank, from its sampler or DataLoader, or one sample each if neither makes any."""
        whole("rank", rank, 0, self.num_ranks - 1)
        return np.split(self.ranks[rank], self.stops(rank))[:-1]  # without the empty part after the last stop

    def repeats(self) -> tuple[NDArray[np.bool_], ...]:
        """Mark each read of an index that was already read, at an earlier step or at the same step by a lower rank.

        These reads are torch's and libtorch's padding, so a correct evaluation must not count them. libtorch may also
        return indices ≥ size, which no evaluation can read; `audit` finds those.
        """
        lengths = [indices.size for indices in self.ranks]
        ranks = np.repeat(np.arange(self.num_ranks), lengths)
        steps = np.concatenate([np.arange(length) for length in lengths])
        indices = np.concatenate(self.ranks)
        # `np.unique` returns the first position of each index in the order that it gets.
        reading_order = np.lexsort((ranks, steps))  # the reads, by step and then by rank
        _, first_reads = np.unique(indices[reading_order], return_index=True)  # of each index, as a position in there
        is_repeat = np.ones(indices.size, dtype=bool)
        is_repeat[reading_order[first_reads]] = False
        return tuple(np.split(is_repeat, np.cumsum(lengths)[:-1]))

    def __repr__(self) -> str:
        counts = f"{self.size} samples, {self.num_ranks} ranks, {self.num_steps} steps"
        return f"<Assignment: {counts}, sampler {self.sampler}, epoch {self.epoch}>"

    def _repr_svg_(self) -> str:
        """Draw the reads in a notebook; of many, the first and the last."""
        from .picture import draw_assignment

        return draw_assignment(self)._repr_svg_()


def _arrays_of_ranks(name: str, values: Iterable[ArrayLike]) -> tuple[IntArray, ...]:
    """Return read-only arrays of signed integers.

    numpy would turn unsigned integers into floats when they are combined with signed ones.
    """
    arrays = []
    for rank, values_of_rank in enumerate(several(name, values, "a rank's indices each")):
        array = np.asarray(values_of_rank)  # of floats if the list is empty
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise ValueError(f"rank {rank} must read a 1-D array of integers, got {array.dtype} of shape {array.shape}")
        array = array.view() if array.dtype.kind == "i" else array.astype(np.int64)
        array.flags.writeable = False
        arrays.append(array)
    if not arrays:
        raise ValueError("an assignment needs at least one rank, got none")
    return tuple(arrays)


def _is_batch(item: Any) -> bool:
    is_several = isinstance(item, Iterable) and not isinstance(item, str | tuple | dict)
    return is_several and getattr(item, "ndim", 1) > 0  # 0-d arrays and tensors have an `__iter__`, which fails


def _numbers_of(rank: int, names: Iterable[Any], numbers: dict[Any, int]) -> NDArray[np.int64]:
    """Return whole numbers as they are, and the numbers of other names; new ones are added to `numbers`."""

    def number(name: Any) -> int:
        if isinstance(name, str | tuple):
            return numbers.setdefault(name, len(numbers))
        return operator.index(name)

    try:
        return np.fromiter(map(number, names), dtype=np.int64)
    except (TypeError, OverflowError) as error:
        problem = f"rank {rank}'s sampler must yield whole numbers of 64 bits, or names"
        raise ValueError(f"{problem}: {error}; for other rows, pass a key") from error
