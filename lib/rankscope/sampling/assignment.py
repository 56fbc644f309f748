"""`Assignment`: which rank reads which sample, in which order, for one epoch; all ranks made in one pass."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import attrs
import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.checks import of_type, one_of, several, truth, whole
from ..common.frozen import checked, evolve, frozen, optional
from ..common.storage import StorageError, StoredPart, decoded, read_arrays, read_bytes, write_atomically
from .kinds import SAMPLERS, EpochRecipe
from .permutation import SEEDS, IntArray, torch_order

if TYPE_CHECKING:
    import pandas as pd

MOST_SAMPLES, MOST_RANKS = 1 << 28, 1 << 16  # of an assignment: an order of 1 GiB, and what `audit` takes on top
_MOST_HEADER_BYTES = 1 << 16
_FORMAT, _VERSION = "rankscope.assignment", 1


@frozen
class Loader:
    """How a DataLoader on each rank groups that rank's indices.

    Batch b of a rank is made by its worker ``b % num_workers`` (torch/utils/data/dataloader.py, map-style dataset,
    in_order), by the training process itself where `num_workers` is 0.
    """

    batch_size: int = checked(whole, 1, default=1)
    drop_last: bool = checked(truth, default=False)
    num_workers: int = checked(whole, 0, default=0)


class _StoredLoader(StoredPart):
    batch_size: int
    drop_last: bool
    num_workers: int


class _StoredRecipe(StoredPart):
    size: int
    sampler: str
    shuffle: bool | None
    seed: int | None
    epoch: int
    drop_last: bool | None


class _StoredHeader(StoredPart):
    """What the file of an `Assignment` says in JSON next to its arrays."""

    format: str
    version: int
    loader: _StoredLoader | None
    recipe: _StoredRecipe


def _all_ranks(name: str, values: Iterable[ArrayLike]) -> tuple[IntArray, ...]:
    """Views that cannot be written through, of signed integers: unsigned ones turn into floats next to signed."""
    views = []
    for rank, indices in enumerate(several(name, values, "a rank's indices each")):
        given = np.asarray(indices)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise ValueError(f"rank {rank} must read a 1-D array of integers, got {given.dtype} of shape {given.shape}")
        if given.size and given.dtype.kind == "u" and given.max() > np.iinfo(np.int64).max:
            raise ValueError(f"rank {rank} must read indices below 2**63, got {given.max()}")
        view = given.view() if given.dtype.kind == "i" else given.astype(np.int64)
        view.flags.writeable = False
        views.append(view)
        if len(views) > MOST_RANKS:
            raise ValueError(f"an assignment must have at most {MOST_RANKS} ranks, got more")
    if not views:
        raise ValueError("an assignment needs at least one rank, got none")
    return tuple(views)


@frozen(eq=False)
class Assignment:
    """The indices that every rank reads in one epoch, and the recipe they came from.

    `size` is the dataset's length; ``ranks[r]`` holds what rank r reads, in order (ragged allowed). `loader` is the
    DataLoader on top, if one was put there with `with_loader`. The arrays are read-only.
    """

    size: int = checked(whole, 0, MOST_SAMPLES)
    ranks: tuple[IntArray, ...] = checked(_all_ranks)
    sampler: str = checked(str, default="custom")
    shuffle: bool | None = checked(optional, truth, default=None)
    seed: int | None = checked(optional, whole, default=None)
    epoch: int = checked(whole, default=0)
    drop_last: bool | None = checked(optional, truth, default=None)
    loader: Loader | None = checked(optional, of_type, Loader, default=None)

    @classmethod
    def collect(cls, samplers: Iterable[Iterable[int]], size: int, epoch: int = 0) -> Assignment:
        """Iterate one sampler a rank, after ``set_epoch(epoch)`` where it has one: any sampler can be audited.

        Raises ValueError where a sampler yields something else than whole numbers.

        >>> from torch.utils.data import DistributedSampler
        >>> samplers = [DistributedSampler(range(5), num_replicas=2, rank=r, shuffle=False) for r in range(2)]
        >>> [indices.tolist() for indices in Assignment.collect(samplers, size=5).ranks]
        [[0, 2, 4], [1, 3, 0]]
        """
        samplers, ranks = several("samplers", samplers, "a rank's sampler each"), []
        for sampler in samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        for rank, sampler in enumerate(samplers):
            try:
                ranks.append(np.fromiter(map(operator.index, sampler), dtype=np.int64))
            except TypeError as error:
                raise ValueError(f"rank {rank}'s sampler must yield whole numbers: {error}") from error
        shuffles = {getattr(sampler, "shuffle", None) for sampler in samplers}
        return cls(size, tuple(ranks), epoch=epoch, shuffle=False if shuffles == {False} else None)

    @property
    def num_ranks(self) -> int:
        """The world size."""
        return len(self.ranks)

    @property
    def num_steps(self) -> int:
        """The number of reads of the rank that reads most."""
        return max(indices.size for indices in self.ranks)

    def with_loader(self, batch_size: int, drop_last: bool = False, num_workers: int = 0) -> Assignment:
        """Put a DataLoader on every rank; its own `drop_last` cuts each rank's incomplete last batch.

        >>> assign(10, 2, shuffle=False).with_loader(batch_size=2, drop_last=True).ranks[1].tolist()
        [1, 3, 5, 7]
        """
        if self.loader is not None:
            raise ValueError(f"this assignment has a loader already: {self.loader}")
        loader = Loader(batch_size, drop_last, num_workers)
        size = loader.batch_size if loader.drop_last else 1
        return evolve(self, ranks=[indices[: indices.size // size * size] for indices in self.ranks], loader=loader)

    def batches(self, rank: int) -> list[IntArray]:
        """Return the batches that one rank's DataLoader makes (of one sample where there is no loader)."""
        indices = self.ranks[whole("rank", rank, 0, self.num_ranks - 1)]
        size = self.loader.batch_size if self.loader else 1
        return [indices[start : start + size] for start in range(0, indices.size, size)]

    def repeats(self) -> tuple[NDArray[np.bool_], ...]:
        """Mark each read of an index that was read before: at an earlier step, or at the same step by a lower rank.

        These are torch's and libtorch's padding, so the reads that a correct evaluation must not count. (It cannot even
        read the indices ≥ size that libtorch may give; `audit` finds those.)
        """
        ranks, steps = self.coordinates()
        indices = np.concatenate(self.ranks)
        in_time = np.lexsort((ranks, steps))
        _, first = np.unique(indices[in_time], return_index=True)
        repeated = np.ones(indices.size, dtype=bool)
        repeated[in_time[first]] = False
        return tuple(np.split(repeated, np.cumsum([i.size for i in self.ranks])[:-1]))

    def count_labels(self, labels: ArrayLike) -> NDArray[np.int64]:
        """Return how often each rank reads each label: shape (num_ranks, number of labels), labels sorted.

        `labels` has the dataset's length. Indices outside the dataset raise ValueError.
        """
        kinds, codes = np.unique(np.asarray(labels), return_inverse=True)
        if codes.shape != (self.size,):
            raise ValueError(f"labels must have the dataset's length {self.size}, got shape {np.shape(labels)}")
        for rank, indices in enumerate(self.ranks):
            if indices.size and (indices.min() < 0 or indices.max() >= self.size):
                raise ValueError(f"rank {rank} reads outside the dataset's {self.size} samples")
        return np.array([np.bincount(codes[indices], minlength=kinds.size) for indices in self.ranks])

    def to_frame(self) -> pd.DataFrame:
        """Return a row a read: rank, step, index, and with a loader batch and worker (-1: the training process)."""
        import pandas as pd

        ranks, steps = self.coordinates()
        columns = {"epoch": self.epoch, "rank": ranks, "step": steps, "index": np.concatenate(self.ranks)}
        if self.loader is not None:
            batches = steps // self.loader.batch_size
            columns["batch"] = batches
            columns["worker"] = batches % self.loader.num_workers if self.loader.num_workers else -1
        return pd.DataFrame(columns)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write an .npz, whole or not at all. Raises OSError where the folder cannot be written."""
        recipe = attrs.asdict(self)  # type: ignore[arg-type]  # to mypy it is a dataclass
        del recipe["ranks"]
        header = {"format": _FORMAT, "version": _VERSION, "loader": recipe.pop("loader"), "recipe": recipe}
        lengths = np.array([indices.size for indices in self.ranks])
        flat = np.concatenate(self.ranks)
        return write_atomically(
            path, lambda file: np.savez(file, header=np.array(json.dumps(header)), lengths=lengths, indices=flat)
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Assignment:
        """Read what `save` wrote. Raises ValueError naming the file where it is damaged, foreign or newer."""
        kind = f"not a readable {_FORMAT} of version {_VERSION}"
        try:
            content = read_bytes(path, 8 * (MOST_SAMPLES + MOST_RANKS) + _MOST_HEADER_BYTES)
        except ValueError as error:
            raise StorageError(path, f"{kind}: {error}") from error
        try:
            stored = read_arrays(content, len(content))  # `save` compresses nothing
            header = decoded(str(stored["header"]), _StoredHeader)
            lengths, flat = stored["lengths"], stored["indices"]
            if header.format != _FORMAT or header.version != _VERSION:
                raise ValueError(f"format {header.format!r} version {header.version!r}")
            if lengths.ndim != 1 or not lengths.size or lengths.dtype.kind != "i":
                raise ValueError(f"lengths of {lengths.dtype} in shape {lengths.shape}")
            whole("the number of ranks", lengths.size, 1, MOST_RANKS)
            total = sum(lengths.tolist())  # numpy's sum goes round at 2**63
            if total != flat.size or (lengths < 0).any():
                raise ValueError(f"lengths add up to {total}, with {flat.size} indices")
            loader = None
            if header.loader is not None:
                loader = Loader(**msgspec.structs.asdict(header.loader))
            ranks = tuple(np.split(flat, np.cumsum(lengths)[:-1]))
            return cls(ranks=ranks, loader=loader, **msgspec.structs.asdict(header.recipe))
        except Exception as error:  # a damaged file can fail in many ways
            raise StorageError(path, f"{kind}: {error}") from error

    def coordinates(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rank and the step of every read, in the order of ``np.concatenate(ranks)``."""
        lengths = np.array([indices.size for indices in self.ranks])
        ranks = np.repeat(np.arange(lengths.size), lengths)
        return ranks, np.arange(ranks.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def assign(
    size: int,
    num_replicas: int,
    *,
    sampler: str = "torch",
    shuffle: bool = True,
    seed: int = 0,
    epoch: int = 0,
    drop_last: bool = False,
) -> Assignment:
    """Return what every rank reads in one epoch, as `num_replicas` samplers of that kind would hand it out.

    `size` is the dataset's length. For libtorch's samplers `drop_last` is ``allow_duplicates=False``, and the
    shuffle is a matter of which sampler: `shuffle` concerns torch's alone. The ranks' arrays are views of one order.

    Raises ValueError for a size that is fractional or outside 0 … `MOST_SAMPLES`, which all ranks together must not
    read more of either, for replicas outside 1 … `MOST_RANKS`, an unknown sampler, and for a seed or ``shuffle=False``
    given to a libtorch sampler that does not take it.

    >>> [indices.tolist() for indices in assign(10, 4, shuffle=False).ranks]
    [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]
    >>> [indices.tolist() for indices in assign(10, 4, sampler="libtorch_sequential").ranks]
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 0, 1]]
    """
    size = whole("size", size, 0, MOST_SAMPLES)
    num_replicas = whole("num_replicas", num_replicas, 1, MOST_RANKS)
    kind = SAMPLERS[one_of("sampler", sampler, tuple(SAMPLERS))]
    seed = whole("seed", seed, *SEEDS)
    epoch = whole("epoch", epoch)
    shuffle = truth("shuffle", shuffle)
    if "seed" in kind.without_effect and seed != 0:
        raise ValueError(f"{sampler} has no seed, the epoch alone decides its order: seed must be 0, got {seed}")
    if kind.always_shuffles and not shuffle:
        raise ValueError(f"{sampler} always shuffles: shuffle must be True, got False")
    if kind.always_shuffles is not None:
        shuffle = kind.always_shuffles
    recipe = EpochRecipe(size, num_replicas, shuffle, seed, epoch, truth("drop_last", drop_last))
    whole(f"the samples that {num_replicas} ranks read together", recipe.reads, 0, MOST_SAMPLES)
    ranks = kind.indices(recipe)
    return Assignment(size, ranks, sampler, shuffle, seed, epoch, recipe.drop_last)


Name = TypeVar("Name", str, os.PathLike[str])


def shard_files(files: Iterable[Name], num_trainers: int, trainer_id: int, seed: int = 0) -> list[Name]:
    """Return the files of one trainer: those whose place in the shuffled list is `trainer_id` modulo `num_trainers`.

    The list is sorted before it is shuffled, because trainers list a folder in whatever order their file system
    gives, and shards of differently ordered lists overlap and lose files. For the same reason all trainers must
    pass the same `seed`. Shards are ragged: their lengths differ by at most one, and with fewer files than
    trainers some are empty. The shuffle is that of ``torch.randperm(len(files))`` after ``manual_seed(seed)``.

    Raises ValueError for a trainer_id outside [0, num_trainers - 1], for a file that is listed twice (two trainers
    would read it), and for one string in place of a list.

    >>> [shard_files(["a", "b", "c", "d", "e"], 2, trainer) for trainer in range(2)]
    [['e', 'b', 'c'], ['a', 'd']]
    """
    if isinstance(files, (str, bytes, os.PathLike)):
        raise ValueError(f"files must be a list of file names, got the single name {files!r}")
    num_trainers = whole("num_trainers", num_trainers, 1)
    trainer_id = whole("trainer_id", trainer_id, 0, num_trainers - 1)
    ordered = several("files", files, "file names")
    for file in ordered:
        if not isinstance(file, str | os.PathLike):
            raise ValueError(f"files must be names or paths of files, got {file!r}")
    ordered.sort(key=os.fspath)
    twice = next((one for one, other in pairwise(ordered) if os.fspath(one) == os.fspath(other)), None)
    if twice is not None:
        raise ValueError(f"files must differ from each other, got {os.fspath(twice)!r} twice")
    order = torch_order(len(ordered), whole("seed", seed, *SEEDS))
    return [ordered[i] for i in order[trainer_id::num_trainers].tolist()]
