"""`audit_loader`: the batches and rows that DataLoaders return in an epoch, and the random numbers of their workers."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import msgspec
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, WeightedRandomSampler

from ...common.checks import of_type, several, whole
from ...common.words import count_of
from ..assignment import Key
from ..samplers.elastic import ElasticSampler
from ..samplers.weighted import WeightedSampler
from ..samplers.wrapping import DividingLayer, layers_of, shards_of, twice_sharded
from .findings import Finding, Findings, some
from .probe import Numbers, ProbedBatch, install_probe, itself, left_alone, names_of, unnamed

_GLOBAL_GENERATORS = ("NumPy", "random", "torch")


class RankRows(NamedTuple):
    """The names of the rows that a rank's loader returns in an epoch, and of those that its dataset has."""

    read: Counter[Hashable]
    expected: Counter[Hashable]
    num_batches: int


class LoaderAudit(Findings, msgspec.Struct, frozen=True, eq=False):
    """The result of `audit_loader`; ``str()`` is the report, `check` raises.

    `epochs` are the batches that the first loader returns in each epoch, and `ranks` the rows of each rank. `is_whole`
    says that all ranks together should read each of `num_samples` samples once, as draws with replacement do not;
    `read_before` counts those that were read before. `shards` are the samplers and wrappers that divide the samples
    among ranks, the outermost first. `grouped_twice` is the name of a sampler that makes the batches, if the loader
    groups them again.
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
        "duplicates",
        "dropped",
        "unbalanced",
        "same_random",
        "repeated_random",
    )
    epochs: tuple[tuple[ProbedBatch, ...], ...]
    num_samples: int
    num_workers: int
    is_iterable: bool
    drop_last: bool
    ranks: tuple[RankRows, ...]
    is_whole: bool
    read_before: Counter[Hashable]
    shards: tuple[DividingLayer, ...]
    grouped_twice: str

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The numbers of samples in each batch of an epoch."""
        return tuple(len(batch.rows) for batch in self.epochs[0])

    @property
    def draws(self) -> dict[tuple[int, int], Numbers]:
        """The first numbers that each worker draws in an epoch, by (epoch, worker), with the names of generators."""
        draws: dict[tuple[int, int], Numbers] = {}
        for epoch, batches in enumerate(self.epochs):
            for batch in batches:
                if batch.worker is not None:
                    draws.setdefault((epoch, batch.worker), batch.numbers)
        return draws

    def _found(self) -> Iterator[Finding]:
        """Yield everything that changes, without an error, how a model is trained."""
        yield from self._found_in_batches()
        if self.is_iterable and self.num_workers:
            yield from self._found_in_workers()
        if self.is_whole:
            yield from self._found_in_reads()
        counts = [rank.num_batches for rank in self.ranks]
        if min(counts) < max(counts):
            yield Finding("unbalanced", f"ranks read from {min(counts)} to {max(counts)} batches")
        yield from self._found_in_numbers()

    def _found_in_batches(self) -> Iterator[Finding]:
        sizes = self.batch_sizes
        if not sizes and (self.num_samples > self.read_before.total() or not self.read_before):
            samples = count_of(self.num_samples, "sample")
            yield Finding("nothing_read", f"the loader returns no batches of {samples}")
        problem = twice_sharded(self.shards)
        if problem:
            yield Finding("sharded_twice", problem)
        if self.grouped_twice:
            problem = f"{self.grouped_twice} makes the batches, and the loader groups several of them into one"
            yield Finding("grouped_twice", f"{problem}: pass it as batch_sampler")
        short = [batch for batch, size in enumerate(sizes) if size < max(sizes)]
        last = len(sizes) - 1
        if last in short:
            yield Finding("short_last_batch", self._short(last, f"the last of {len(sizes)} batches"))
        # Each worker of an iterable dataset may end with a short batch. Other datasets have one in the middle only if
        # their own batch sampler makes batches of different sizes.
        if self.is_iterable and short and short[0] < last:
            yield Finding("short_batch", self._short(short[0], f"batch {short[0]} of {len(sizes)}"))

    def _short(self, batch: int, which: str) -> str:
        """Return what is wrong with a batch that is smaller than others; `which` are words for it."""
        size = self.batch_sizes[batch]
        largest = max(self.batch_sizes)
        effect = "a mean over it is not defined"
        if size > 0:
            effect = f"a mean over batches counts each {largest / size:.3g} times"
        return f"{which} has {count_of(size, 'sample')}, others {largest}: {effect}"

    def _found_in_workers(self) -> Iterator[Finding]:
        """Compare the rows of all workers of the first loader with those of its dataset without workers."""
        rows = self.ranks[0].read
        expected = self.ranks[0].expected
        reads = f"{count_of(self.num_workers, 'worker')} give {rows.total()} samples of {expected.total()}"
        of_workers = [0] * self.num_workers
        for batch in self.epochs[0]:
            of_workers[batch.worker or 0] += len(batch.rows)
        of_whole = expected.total()
        most_dropped = 0  # without a fault
        if self.drop_last:
            batch_size = max(self.batch_sizes, default=1)
            of_whole -= of_whole % batch_size
            most_dropped = self.num_workers * (batch_size - 1)
        if rows - expected and self.num_workers > 1 and set(of_workers) == {of_whole}:
            yield Finding("read_by_each_worker", f"{reads}: each reads all of them; ask get_worker_info()")
        elif rows - expected:
            problem = "some are read more than once, or do not exist without workers"
            yield Finding("read_too_often", f"{reads}: {problem}{_named(rows - expected)}")
        lost = expected - rows - self.read_before
        if lost.total() > most_dropped and not self.is_whole:
            yield Finding("lost_rows", f"{reads}: {lost.total()} of them are read by no worker{_named(lost)}")
        idle = [worker for worker, num_rows in enumerate(of_workers) if num_rows == 0]
        if idle and rows:
            yield Finding("idle_workers", f"{len(idle)} of {self.num_workers} workers yield nothing: {some(idle)}")

    def _found_in_reads(self) -> Iterator[Finding]:
        """Find rows that the ranks together do not read exactly once."""
        reads = sum((rank.read for rank in self.ranks), Counter(self.read_before))
        again = reads - Counter(reads.keys())
        if again:
            problem = f"{count_of(again.total(), 'read')} of a sample that was read already{_named(again)}"
            yield Finding("duplicates", problem)
        num_lost = self.num_samples - len(reads)
        if num_lost > 0:
            yield Finding("dropped", f"{count_of(num_lost, 'sample')} of {self.num_samples} read by no rank")

    def _found_in_numbers(self) -> Iterator[Finding]:
        by_generator: dict[str, dict[tuple[int, int], float]] = {}
        for epoch_and_worker, numbers in self.draws.items():
            for name, number in numbers:
                by_generator.setdefault(name, {})[epoch_and_worker] = number
        for name, number_of in by_generator.items():
            in_first_epoch = [number for (epoch, _), number in number_of.items() if epoch == 0]
            if len(set(in_first_epoch)) < len(in_first_epoch):
                is_global = name in _GLOBAL_GENERATORS
                hint = "see worker_init_fn" if is_global else "right only if they divide one order among themselves"
                yield Finding("same_random", f"workers draw the same numbers from {name}: {hint}")
            # A worker that got no batch in the first epoch has no number there.
            if any(epoch > 0 and number_of.get((0, worker)) == number for (epoch, worker), number in number_of.items()):
                problem = f"a worker draws the same numbers from {name} in every epoch"
                yield Finding("repeated_random", f"{problem}: see worker_init_fn")

    def __str__(self) -> str:
        read = f"{count_of(len(self.batch_sizes), 'batch')}, {count_of(sum(self.batch_sizes), 'sample')}"
        if len(self.ranks) > 1:
            read = f"rank 0 of {len(self.ranks)}: {read}"
        return self.report(read, "nothing found")

    __repr__ = __str__  # for a notebook, which shows the last value of a cell


def audit_loader(
    loader: DataLoader[Any] | Iterable[DataLoader[Any]],
    *,
    key: Key | None = None,
    size: int | None = None,
    read_before: Iterable[Hashable] = (),
) -> LoaderAudit:
    """Audit two epochs of a DataLoader: its batches, and the random numbers that its workers draw.

    A map-style dataset is not read; the loader's own sampler, workers and worker_init_fn run on its indices instead.
    These are compared, so it must be the same dataset on all ranks.
    An iterable dataset is read. `key` returns the name of one of its rows, such as a number or a text (or a list of
    names, if a row is a batch); then rows are compared by name, and else only counted.

    From the loaders of all ranks, in a list, the audit also says which samples are read twice or never, unless a
    sampler draws with replacement (for weights, see `audit`). `size` is the number of samples that the ranks together
    should read, by default those of the dataset. `read_before` are the names of
    rows, or the indices, that were read before a stop, if the loaders have been resumed.

    Random numbers are those of NumPy, random and torch, and of each generator that is an attribute of the dataset or of
    one that it wraps. Afterwards, the loader, its samplers and its dataset have the attributes that they had, and so
    are this process's random generators on the CPU and each generator of torch, NumPy or random that is an attribute of
    one of them. Raises ValueError for a wrong `loader` or `size`, and RuntimeError, as the loader itself does, if a
    worker dies or takes longer than the loader's `timeout`.

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
    first = loaders[0]
    is_iterable = isinstance(first.dataset, IterableDataset)
    layers = [layer for one in loaders for layer in layers_of(one)]
    is_whole = (len(loaders) > 1 or size is not None) and not any(map(_draws_with_replacement, layers))
    if key is None:
        key = itself if is_whole else unnamed
    with left_alone(layers), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about more workers than cores
        datasets: list[Any] = [one.dataset for one in loaders]
        for one in loaders:
            install_probe(one, key)
        epochs = [tuple(first)]
        if first.num_workers:  # otherwise, no numbers are drawn
            epochs.append(tuple(first))  # which shows numbers that are the same in every epoch
        ranks = []
        for rank, one in enumerate(loaders):
            batches = tuple(one) if rank > 0 else epochs[0]
            rows = (names_of(row, key) for row in datasets[rank])
            expected = _counted(rows if is_iterable else [range(len(datasets[rank]))])
            ranks.append(RankRows(_counted(batch.rows for batch in batches), expected, len(batches)))
    if size is None and is_whole:
        size = len({row for rank in ranks for row in rank.expected})
    return LoaderAudit(
        epochs=tuple(epochs),
        num_samples=ranks[0].expected.total() if size is None else size,
        num_workers=first.num_workers,
        is_iterable=is_iterable,
        drop_last=first.drop_last,
        ranks=tuple(ranks),
        is_whole=is_whole,
        read_before=_counted(names_of(name, itself) for name in read_before),
        shards=shards_of(first),
        grouped_twice=_grouped_twice(first),
    )


def _draws_with_replacement(layer: Any) -> bool:
    if isinstance(layer, RandomSampler | WeightedRandomSampler):
        return layer.replacement
    return isinstance(layer, WeightedSampler)


def _counted(names_of_rows: Iterable[Iterable[Hashable]]) -> Counter[Hashable]:
    """Count rows by their names."""
    try:
        return Counter(chain.from_iterable(names_of_rows))
    except TypeError as error:
        raise ValueError(f"key and read_before must name rows by numbers, texts or tuples: {error}") from error


def _named(rows: Counter[Hashable]) -> str:
    """Return some of the rows in words; nothing if they have no names."""
    if None in rows:
        return ""
    return f": {some(list(rows))}"


def _grouped_twice(loader: DataLoader[Any]) -> str:
    """Return the name of a sampler that yields batches, and that the loader takes for one that yields indices."""
    sampler = getattr(loader.batch_sampler, "sampler", None)
    if isinstance(sampler, ElasticSampler) and sampler.makes_batches:
        return type(sampler).__name__
    return ""
