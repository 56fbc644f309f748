"""`audit_loader`: the batches and rows that the DataLoaders of all ranks return, and their workers' random numbers."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from itertools import chain
from typing import Any

import msgspec
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, WeightedRandomSampler

from ...common.checks import of_type, several, whole
from ...common.words import count_of
from ..assignment import Key, wrong_length
from ..samplers.elastic import ElasticSampler
from ..samplers.weighted import WeightedSampler
from ..samplers.wrapping import layers_of, shards_of, twice_sharded
from .dataset_rows import counted, differ, names_of_rows
from .findings import Finding, Findings, own_orders, some
from .loader_reads import LoaderReads, named
from .probe import Numbers, install_probe, left_alone, unnamed


class LoaderAudit(Findings, msgspec.Struct, frozen=True, eq=False):
    """The result of `audit_loader`; ``str()`` is the report, `check` raises.

    `ranks` are what each loader returns. `is_whole` says that all ranks together should read each of `size` samples
    once, as draws with replacement do not; `size` is None if nobody says how many there are. `existing` are the rows of
    all ranks' datasets, or None if a dataset has no length. `read_before` counts the rows that were read before the
    first epoch was resumed.
    """

    KINDS = (
        "nothing_read",
        "sharded_twice",
        "grouped_twice",
        "short_last_batch",
        "short_batch",
        "read_by_each_worker",
        "read_too_often",
        "lost_rows",
        "idle_workers",
        "same_random",
        "repeated_random",
        "wrong_length",
        "out_of_range",
        "duplicates",
        "dropped",
        "beyond_size",
        "unbalanced",
    )
    ranks: tuple[LoaderReads, ...]
    size: int | None
    is_whole: bool
    existing: set[Hashable] | None
    read_before: Counter[Hashable]

    @property
    def draws(self) -> dict[tuple[int, int], Numbers]:
        """The first numbers that each worker of rank 0 draws, by (epoch, worker), with the names of generators."""
        return self.ranks[0].draws

    def _found(self) -> Iterator[Finding]:
        """Yield everything that changes, without an error, how a model is trained: each kind where it comes first."""
        found: dict[str, Finding] = {}
        for place, findings in self._found_at_places():
            for kind, message in findings:
                found.setdefault(kind, Finding(kind, place + message))
        yield from found.values()

    def _found_at_places(self) -> Iterator[tuple[str, Iterable[Finding]]]:
        """Yield the findings of each rank and of each epoch, with words that say where that is."""
        for rank, reads in enumerate(self.ranks):
            place = f"rank {rank}: " if len(self.ranks) > 1 else ""
            yield place, reads.found(self.read_before, self.is_whole)
        wrong = [reads.wrong_length for reads in self.ranks if reads.wrong_length]
        if wrong:
            yield "", [Finding("wrong_length", f"len() is wrong: {some(wrong)}")]
        for epoch in range(len(self.ranks[0].epochs)):
            place = f"epoch {epoch}: " if epoch > 0 else ""
            yield place, self._found_in_rows(epoch)

    def _found_in_rows(self, epoch: int) -> Iterator[Finding]:
        """Compare the rows that the ranks read in an epoch with those that there are."""
        rows_of_ranks = [reads.rows(epoch) for reads in self.ranks]
        reads = Counter(chain.from_iterable(rows_of_ranks))
        types = {type(row) for row in reads}
        if epoch == 0:
            reads += self.read_before
        strays = self._strays(reads, types)
        if strays:
            yield Finding("out_of_range", f"the dataset does not have these rows{named(strays)}")
        if self.is_whole:
            yield from self._found_in_reads(reads, reads.keys() - set(strays), rows_of_ranks)
        counts = [len(one.epochs[epoch]) for one in self.ranks]
        if min(counts) < max(counts):
            yield Finding("unbalanced", f"ranks read from {min(counts)} to {max(counts)} batches")

    def _strays(self, rows: Iterable[Hashable], types: set[type]) -> list[Hashable]:
        """Return the rows that no dataset has; `types` are those of the rows that loaders return."""
        existing = self.existing
        is_stream = self.ranks[0].is_iterable
        if existing is None or is_stream or not types <= {type(row) for row in existing}:
            # A stream that was resumed itself has only the rest of its rows, and a sampler may ask for other things
            # than indices. Then only a type can be wrong.
            return [row for row in rows if types and type(row) not in types]
        return [row for row in rows if row not in existing]

    def _found_in_reads(
        self, reads: Counter[Hashable], different: set[Hashable], rows_of_ranks: list[list[Hashable]]
    ) -> Iterator[Finding]:
        """Find rows that the ranks together do not read exactly once."""
        num_lost = 0
        if self.size is not None:
            num_lost = self.size - len(different)
        again = reads - Counter(reads.keys())
        if again:
            problem = f"{count_of(again.total(), 'read')} of a sample that was read already{named(again)}"
            if not self.read_before:
                problem += own_orders(rows_of_ranks, num_lost)
            yield Finding("duplicates", problem)
        if num_lost > 0:
            lost = (self.existing or set()) - different
            names = named(lost) if len(lost) == num_lost else ""
            yield Finding("dropped", f"{count_of(num_lost, 'sample')} of {self.size} read by no rank{names}")
        if num_lost < 0:
            yield Finding("beyond_size", f"{len(different)} different samples are read, and size is {self.size}")

    def __str__(self) -> str:
        sizes = [reads.batch_sizes for reads in self.ranks]
        num_batches = sum(map(len, sizes))
        read = f"{count_of(num_batches, 'batch')}, {count_of(sum(map(sum, sizes)), 'sample')}"
        if len(self.ranks) > 1:
            read = f"{len(self.ranks)} ranks: {read}"
        return self.report(read, "nothing found")

    __repr__ = __str__  # for a notebook, which shows the last value of a cell


def audit_loader(
    loader: DataLoader[Any] | Iterable[DataLoader[Any]],
    *,
    key: Key | None = None,
    size: int | None = None,
    read_before: Iterable[Hashable] = (),
    epochs: int = 2,
) -> LoaderAudit:
    """Audit some epochs of a DataLoader: its batches, its rows, and the random numbers that its workers draw.

    A map-style dataset is not read; the loader's own sampler, workers and worker_init_fn run on its indices instead.
    An iterable dataset is read, with workers and without. `key` returns the name of a row, such as a number or a text
    (or a list of names, if a row is a batch). With a key, a map-style dataset is read, too, and rows are compared by
    name. Without one, they are compared by index, so the dataset must be the same on all ranks.

    From the loaders of all ranks, in a list, the audit also says which samples are read twice or never, unless a
    sampler draws with replacement. `size` is the number of samples that the ranks together should read, by default
    those of the dataset. `read_before` are the names of rows, or the indices, that were read before a stop, if the
    loaders have been resumed. Only the first epoch is then the rest of one.

    Random numbers are those of NumPy, random and torch, and of each generator that is an attribute of the dataset or of
    one that it wraps. Afterwards, the loader, its samplers and its dataset have the attributes that they had, and so
    are this process's random generators on the CPU and each generator of torch, NumPy or random that is an attribute of
    one of them. Raises ValueError for a wrong argument, and for a dataset that cannot be read without workers, and
    RuntimeError, as the loader itself does, if a worker dies or takes longer than the loader's `timeout`.

    Since version 1.9, torch also seeds NumPy in each worker, anew in each epoch; a worker_init_fn can undo that:

    >>> import numpy as np
    >>> def same_seed(worker):
    ...     np.random.seed(0)
    >>> options = {"num_workers": 2, "worker_init_fn": same_seed, "multiprocessing_context": "fork"}
    >>> print(audit_loader(DataLoader(range(10), batch_size=4, **options)))
    3 batches, 10 samples
      short last batch: the last of 3 batches has 2 samples, others 4: a mean over batches counts each 2 times
      same random: workers draw the same numbers from NumPy: see worker_init_fn
      repeated random: a worker draws the same numbers from NumPy in every epoch: see worker_init_fn
    """
    loaders = [loader] if isinstance(loader, DataLoader) else several("loader", loader, "DataLoaders")
    if not loaders:
        raise ValueError("loader must be at least one DataLoader, got none")
    for one in loaders:
        of_type("loader", one, DataLoader)
    if size is not None:
        whole("size", size, 0)
    whole("epochs", epochs, 1)
    layers = [layer for one in loaders for layer in layers_of(one)]
    is_whole = (len(loaders) > 1 or size is not None) and not any(map(_draws_with_replacement, layers))
    if key is None:
        _check_same_data(loaders)
        if isinstance(loaders[0].dataset, IterableDataset) and not is_whole:
            key = unnamed
    before = counted(read_before, unnamed if key is unnamed else None)
    with left_alone(layers), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about more workers than cores
        ranks = tuple(_read(rank, one, key, epochs) for rank, one in enumerate(loaders))
    existing = None
    if all(reads.dataset is not None for reads in ranks):
        existing = {row for reads in ranks for row in reads.dataset or ()}
        if size is None:
            size = len(existing)
            if ranks[0].is_iterable:  # a stream that was resumed itself has only the rest of its rows
                size = len(existing | before.keys())
    return LoaderAudit(ranks, size, is_whole, existing, before)


def _check_same_data(loaders: list[DataLoader[Any]]) -> None:
    """Raise ValueError if indices mean other rows on other ranks."""
    first = loaders[0].dataset
    for rank, one in enumerate(loaders):
        if not isinstance(first, IterableDataset) and differ(first, one.dataset):
            problem = f"the dataset of rank {rank} is not that of rank 0, so their indices cannot be compared"
            raise ValueError(f"{problem}: pass a key that names a row, for example by a number of its own")


def _read(rank: int, loader: DataLoader[Any], key: Key | None, epochs: int) -> LoaderReads:
    """Read the epochs of one rank's loader, and its dataset."""
    dataset: Any = loader.dataset
    install_probe(loader, key)
    batches = [tuple(loader) for _ in range(epochs)]
    wrong = wrong_length(rank, loader.sampler, loader.sampler) or wrong_length(rank, loader, batches[-1])
    return LoaderReads(
        epochs=tuple(batches),
        dataset=names_of_rows(dataset, key),
        num_workers=loader.num_workers,
        is_iterable=isinstance(dataset, IterableDataset),
        drop_last=loader.drop_last,
        made_wrong=tuple(_made_wrong(loader)),
        wrong_length=wrong if epochs > 1 else "",  # the first epoch may be resumed
    )


def _made_wrong(loader: DataLoader[Any]) -> Iterator[Finding]:
    """Yield what divides samples or makes batches a second time."""
    problem = twice_sharded(shards_of(loader))
    if problem:
        yield Finding("sharded_twice", problem)
    sampler = getattr(loader.batch_sampler, "sampler", None)
    if isinstance(sampler, ElasticSampler) and sampler.makes_batches:
        problem = f"{type(sampler).__name__} makes the batches, and the loader groups several of them into one"
        yield Finding("grouped_twice", f"{problem}: pass it as batch_sampler")


def _draws_with_replacement(layer: Any) -> bool:
    if isinstance(layer, RandomSampler | WeightedRandomSampler):
        return layer.replacement
    return isinstance(layer, WeightedSampler)
