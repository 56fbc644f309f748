"""`Assignment`: which rank reads which sample, in which order, in one epoch; `assign` makes that of all ranks."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from ..common.checks import check_field, one_of, optional, several, truth, whole
from .elastic import MOST_RANKS, ElasticSampler, RankReads, check_same_recipes
from .kinds import SAMPLERS, EpochRecipe
from .permutation import SEEDS, IntArray, torch_order
from .reading import unmoved
from .wrapping import layers_of

if TYPE_CHECKING:
    import pandas as pd

MOST_SAMPLES = 1 << 28  # read by all ranks of an assignment: an order of 1 GiB, and about as much again for `audit`


class Loader(msgspec.Struct, frozen=True):
    """How a DataLoader on each rank groups that rank's indices.

    Worker ``b % num_workers`` makes batch b of its rank (torch/utils/data/dataloader.py, map-style dataset, in_order).
    If `num_workers` is 0, the training process makes all batches.
    """

    batch_size: int = 1
    drop_last: bool = False
    num_workers: int = 0

    def __post_init__(self) -> None:
        check_field(self, "batch_size", whole, 1)
        check_field(self, "drop_last", truth)
        check_field(self, "num_workers", whole, 0)


def _all_ranks(name: str, values: Iterable[ArrayLike]) -> tuple[IntArray, ...]:
    """Return read-only views of the ranks' indices, as signed integers.

    numpy would turn unsigned integers into floats when they are combined with signed ones.
    """
    values_of_ranks = several(name, values, "a rank's indices each")
    if not values_of_ranks:
        raise ValueError("an assignment needs at least one rank, got none")
    if len(values_of_ranks) > MOST_RANKS:
        raise ValueError(f"an assignment must have at most {MOST_RANKS} ranks, got more")
    views = []
    for rank, values_of_rank in enumerate(values_of_ranks):
        indices = np.asarray(values_of_rank)  # of floats if the list is empty
        if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
            kind = f"{indices.dtype} of shape {indices.shape}"
            raise ValueError(f"rank {rank} must read a 1-D array of integers, got {kind}")
        if indices.size and indices.dtype.kind == "u" and indices.max() > np.iinfo(np.int64).max:
            raise ValueError(f"rank {rank} must read indices below 2**63, got {indices.max()}")
        view = indices.view() if indices.dtype.kind == "i" else indices.astype(np.int64)
        view.flags.writeable = False
        views.append(view)
    return tuple(views)


class _Reads(NamedTuple):
    """What iterating a sampler returned; `batch_stops` is None if that was no batch."""

    indices: IntArray
    batch_stops: IntArray | None


def _read_all(rank: int, sampler: Iterable[Any]) -> _Reads:
    """Iterate a sampler of indices or of batches."""
    # `iter` also takes what has only __getitem__. An error of a sampler's own __iter__ is raised as it is.
    is_iterable = hasattr(sampler, "__iter__") or hasattr(sampler, "__getitem__")
    if not is_iterable or isinstance(sampler, type):  # a class has the methods of its objects
        raise ValueError(f"rank {rank}'s sampler must be iterable, got {sampler!r}")
    items = iter(sampler)
    try:
        first = next(items)
    except StopIteration:
        return _Reads(np.zeros(0, dtype=np.int64), None)
    items = chain([first], items)
    is_single_number = getattr(first, "ndim", 1) == 0  # 0-d arrays and tensors have an `__iter__`, which fails
    is_batched = isinstance(first, Iterable) and not is_single_number
    if not is_batched:
        return _Reads(_whole_numbers(rank, items), None)
    batch_sizes: list[int] = []

    def indices_of_batches() -> Iterator[Any]:
        """Yield the indices of all batches, and note each batch's size in `batch_sizes` on the way."""
        for batch in items:
            batch_sizes.append(0)
            for index in batch:
                batch_sizes[-1] += 1
                yield index

    indices = _whole_numbers(rank, indices_of_batches())  # which fills `batch_sizes`, too
    return _Reads(indices, np.cumsum(batch_sizes))


def _whole_numbers(rank: int, indices: Iterable[Any]) -> IntArray:
    try:
        return np.fromiter(map(operator.index, indices), dtype=np.int64)
    except TypeError as error:
        raise ValueError(f"rank {rank}'s sampler must yield whole numbers: {error}") from error
    except OverflowError as error:
        raise ValueError(f"rank {rank}'s sampler must yield whole numbers of 64 bits: {error}") from error


def _batch_stops(rank: int, reads: _Reads) -> IntArray:
    """Return where each batch of a rank ends, if some ranks' samplers yield batches.

    A rank that reads nothing has no batches. Raises ValueError if this rank's sampler yields indices instead.
    """
    if reads.batch_stops is not None:
        return reads.batch_stops
    if reads.indices.size:
        raise ValueError(f"the ranks' samplers must all yield indices or all yield batches, got indices on rank {rank}")
    return np.zeros(0, dtype=np.int64)


class Assignment(msgspec.Struct, frozen=True, eq=False):
    """The indices that every rank reads in one epoch, and the recipe that produced them.

    `size` is the dataset's length; ``ranks[r]`` contains the indices that rank r reads, in order. Ranks may read
    different numbers of samples. `loader` is the DataLoader on top, if `with_loader` added one. If the sampler makes
    the batches, ``batch_stops[r]`` contains the positions in ``ranks[r]`` at which the batches of rank r end. The
    arrays are read-only.
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

    def __post_init__(self) -> None:
        check_field(self, "size", whole, 0, MOST_SAMPLES)
        check_field(self, "ranks", _all_ranks)
        check_field(self, "seed", optional, whole)
        check_field(self, "epoch", whole)
        check_field(self, "batch_stops", optional, _all_ranks)
        if self.batch_stops is None:
            return
        if self.loader is not None:
            raise ValueError(f"an assignment with batches of its own must have no loader, got {self.loader}")
        if len(self.batch_stops) != len(self.ranks):
            raise ValueError(f"batch_stops must have {len(self.ranks)} ranks, got {len(self.batch_stops)}")
        for rank, stops in enumerate(self.batch_stops):
            edges = np.concatenate([[0], stops])  # a batch begins where the one before it ends
            if edges[-1] != self.ranks[rank].size or (np.diff(edges) < 0).any():
                raise ValueError(
                    f"batch_stops of rank {rank} must rise to {self.ranks[rank].size}, its number of reads"
                )

    @classmethod
    def collect(cls, samplers: Iterable[Iterable[int]], size: int, epoch: int = 0) -> Assignment:
        """Iterate one sampler per rank and collect the indices, so that any sampler can be audited.

        If a sampler has `set_epoch`, it is called with `epoch` first. Batch samplers, which yield lists of indices, can
        also be collected. This library's samplers, wrapped or not, then go on where they were. Raises ValueError if a
        sampler yields anything else, or if the samplers' `recipe` shows that they do not divide one common order.

        >>> from torch.utils.data import DistributedSampler
        >>> samplers = [DistributedSampler(range(5), num_replicas=2, rank=r, shuffle=False) for r in range(2)]
        >>> [indices.tolist() for indices in Assignment.collect(samplers, size=5).ranks]
        [[0, 2, 4], [1, 3, 0]]
        """
        samplers = several("samplers", samplers, "a rank's sampler each")
        for sampler in samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        if all(isinstance(sampler, ElasticSampler) for sampler in samplers):
            check_same_recipes(sampler.recipe() for sampler in samplers)
        # Our own samplers would otherwise go on as if the samples had been trained on. The random generators go on, so
        # that samplers which draw from them return another order for the next epoch, as in training.
        with unmoved(layer for sampler in samplers for layer in layers_of(sampler)):
            ranks = [_read_all(rank, sampler) for rank, sampler in enumerate(samplers)]
        batch_stops = None
        if any(reads.batch_stops is not None for reads in ranks):
            batch_stops = tuple(_batch_stops(rank, reads) for rank, reads in enumerate(ranks))
        # Only False is certain: a sampler that says True may repeat an order all the same, and others say nothing.
        none_shuffles = {getattr(sampler, "shuffle", None) for sampler in samplers} == {False}
        # Only True is certain: a sampler that says False may be around one that drops, and others say nothing.
        all_drop = {getattr(sampler, "drop_last", None) for sampler in samplers} == {True}
        return cls(
            size,
            tuple(reads.indices for reads in ranks),
            epoch=epoch,
            shuffle=False if none_shuffles else None,
            drop_last=True if all_drop else None,
            batch_stops=batch_stops,
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

        >>> assign(10, 2, shuffle=False).with_loader(batch_size=2, drop_last=True).ranks[1].tolist()
        [1, 3, 5, 7]
        """
        if self.loader is not None:
            raise ValueError(f"this assignment has a loader already: {self.loader}")
        if self.batch_stops is not None:
            raise ValueError("this assignment's sampler makes the batches, so a loader cannot")
        loader = Loader(batch_size, drop_last, num_workers)
        if not loader.drop_last:
            return replace(self, loader=loader)
        full_batches = []
        for indices in self.ranks:
            num_kept = indices.size // loader.batch_size * loader.batch_size
            full_batches.append(indices[:num_kept])
        return replace(self, ranks=full_batches, loader=loader)

    def batches(self, rank: int) -> list[IntArray]:
        """Return the batches of one rank, from its sampler or DataLoader, or one sample each if neither makes any."""
        indices = self.ranks[whole("rank", rank, 0, self.num_ranks - 1)]
        if self.batch_stops is not None:
            return np.split(indices, self.batch_stops[rank])[:-1]  # without the empty part after the last stop
        size = self.loader.batch_size if self.loader else 1
        return [indices[start : start + size] for start in range(0, indices.size, size)]

    def repeats(self) -> tuple[NDArray[np.bool_], ...]:
        """Mark each read of an index that was already read, at an earlier step or at the same step by a lower rank.

        These reads are torch's and libtorch's padding, so a correct evaluation must not count them. libtorch may also
        return indices ≥ size, which no evaluation can read; `audit` finds those.
        """
        ranks, steps = self.coordinates()
        indices = np.concatenate(self.ranks)
        # `np.unique` returns the first position of each index in the order that it gets.
        reading_order = np.lexsort((ranks, steps))  # the reads, by step and then by rank
        _, first_reads = np.unique(indices[reading_order], return_index=True)  # of each index, as a position in there
        is_repeat = np.ones(indices.size, dtype=bool)
        is_repeat[reading_order[first_reads]] = False
        stops = np.cumsum([indices.size for indices in self.ranks])
        return tuple(np.split(is_repeat, stops[:-1]))

    def count_labels(self, labels: ArrayLike) -> NDArray[np.int64]:
        """Count the reads of each label by each rank, as an array of shape (num_ranks, number of labels).

        The labels are sorted. `labels` must have the dataset's length. Raises ValueError if a rank reads indices
        outside the dataset.
        """
        different_labels, label_numbers = np.unique(np.asarray(labels), return_inverse=True)
        if label_numbers.shape != (self.size,):
            raise ValueError(f"labels must have the dataset's length {self.size}, got shape {np.shape(labels)}")
        for rank, indices in enumerate(self.ranks):
            if indices.size and (indices.min() < 0 or indices.max() >= self.size):
                raise ValueError(f"rank {rank} reads outside the dataset's {self.size} samples")
        num_labels = different_labels.size
        return np.array([np.bincount(label_numbers[indices], minlength=num_labels) for indices in self.ranks])

    def to_frame(self) -> pd.DataFrame:
        """Return a DataFrame with one row per read and the columns epoch, rank, step and index.

        If there is a loader, it also has the columns batch and worker, which is -1 for the training process. If the
        sampler makes the batches, it has the column batch alone.
        """
        import pandas as pd

        ranks, steps = self.coordinates()
        columns = {"epoch": self.epoch, "rank": ranks, "step": steps, "index": np.concatenate(self.ranks)}
        if self.batch_stops is not None:
            batch_numbers = []
            for stops in self.batch_stops:
                batch_sizes = np.diff(stops, prepend=0)
                batch_numbers.append(np.repeat(np.arange(stops.size), batch_sizes))
            columns["batch"] = np.concatenate(batch_numbers)
        if self.loader is not None:
            batches = steps // self.loader.batch_size
            columns["batch"] = batches
            if self.loader.num_workers:
                columns["worker"] = batches % self.loader.num_workers
            else:
                columns["worker"] = -1
        return pd.DataFrame(columns)

    def coordinates(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rank and the step of every read, in the order of ``np.concatenate(ranks)``."""
        lengths = np.array([indices.size for indices in self.ranks])
        ranks = np.repeat(np.arange(lengths.size), lengths)
        first_read = np.cumsum(lengths) - lengths  # of each rank, as a position among all reads
        steps = np.arange(ranks.size) - np.repeat(first_read, lengths)
        return ranks, steps


def assign(
    size: int,
    num_replicas: int,
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
    the replicas are outside 1 … `MOST_RANKS`, if the sampler is unknown, if it does not have one of the settings (such
    as a seed for libtorch's), or if it does not return indices for each rank.

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
        num_replicas=whole("num_replicas", num_replicas, 1, MOST_RANKS),
        seed=whole("seed", seed, *SEEDS),
        epoch=whole("epoch", epoch),
        shuffle=truth("shuffle", shuffle),
        drop_last=truth("drop_last", drop_last),
        # None stands for the sampler's default.
        settings={name: value for name, value in settings.items() if value is not None},
    )
    kind.check(sampler, recipe)  # before `shuffle` becomes what the sampler does anyway
    if kind.always_shuffles is not None:
        recipe = replace(recipe, shuffle=kind.always_shuffles)
    _check_number_of_reads(recipe)
    reads = kind.indices(recipe)
    if not isinstance(reads, RankReads):  # a sampler without batches may return the indices alone
        reads = RankReads(reads)
    ranks = several(f"the indices of sampler {sampler!r}", reads.indices, "arrays")
    if len(ranks) != recipe.num_replicas:
        raise ValueError(
            f"sampler {sampler!r} must return an array of indices for each of {recipe.num_replicas} ranks, "
            f"got {len(ranks)}"
        )
    return Assignment(
        size=recipe.size,
        ranks=tuple(ranks),
        sampler=sampler,
        shuffle=recipe.shuffle,
        seed=recipe.seed,
        epoch=recipe.epoch,
        drop_last=recipe.drop_last,
        batch_stops=reads.batch_stops,
    )


def _check_number_of_reads(recipe: EpochRecipe) -> None:
    """Raise ValueError if all ranks together read too many samples: those of the dataset, or draws by weight."""
    whole(f"the samples that {recipe.num_replicas} ranks read together", recipe.reads, 0, MOST_SAMPLES)
    if "num_samples" in recipe.settings:
        whole("num_samples", recipe.settings["num_samples"], 0, MOST_SAMPLES)


Name = TypeVar("Name", bound=str | os.PathLike[str])


def shard_files(files: Iterable[Name], num_trainers: int, trainer_id: int, seed: int = 0) -> list[Name]:
    """Return the files of one trainer, whose positions in the shuffled list are `trainer_id` modulo `num_trainers`.

    The list is sorted before it is shuffled, because file systems list a folder in different orders, and shards of
    differently ordered lists overlap and lose files. For the same reason all trainers must pass the same `seed`. The
    lengths of the shards differ by at most one; with fewer files than trainers, some shards are empty. The shuffle is
    that of ``torch.randperm(len(files))`` after ``manual_seed(seed)``.

    Raises ValueError if `trainer_id` is outside 0 … num_trainers - 1, if a file is listed twice (two trainers would
    read it), or if `files` is a string instead of a list.

    >>> [shard_files(["a", "b", "c", "d", "e"], 2, trainer) for trainer in range(2)]
    [['e', 'b', 'c'], ['a', 'd']]
    """
    ordered = sorted_files(files)
    num_trainers = whole("num_trainers", num_trainers, 1)
    trainer_id = whole("trainer_id", trainer_id, 0, num_trainers - 1)
    return shard_of_sorted(ordered, num_trainers, trainer_id, seed)


def sorted_files(files: Iterable[Name]) -> list[Name]:
    """Return the files, sorted. Raises ValueError for a string instead of a list, and for equal files."""
    if isinstance(files, (str, bytes, os.PathLike)):
        raise ValueError(f"files must be a list of file names, got the single name {files!r}")
    ordered = several("files", files, "file names")
    for file in ordered:
        if not isinstance(file, str | os.PathLike):
            raise ValueError(f"files must be names or paths of files, got {file!r}")
    ordered.sort(key=os.fspath)
    for file, next_file in pairwise(ordered):
        if os.fspath(file) == os.fspath(next_file):
            raise ValueError(f"files must differ from each other, got {os.fspath(file)!r} twice")
    return ordered


def shard_of_sorted(ordered: list[Name], num_trainers: int, trainer_id: int, seed: int) -> list[Name]:
    """Return what `shard_files` does, of files that `sorted_files` returned. Raises ValueError for the seed only."""
    order = torch_order(len(ordered), whole("seed", seed, *SEEDS))
    return [ordered[index] for index in order[trainer_id::num_trainers].tolist()]
