"""`audit_loader`: the batches that a DataLoader makes of an epoch, and the random numbers that its workers draw."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from ..common.checks import count_of, of_type
from .audit import Finding, Findings
from .elastic import ElasticSampler
from .reading import unmoved
from .wrapping import DividingLayer, layers_of, shards_of, twice_sharded

_NUM_EPOCHS = 2  # enough to show numbers that are the same in every epoch
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_GLOBAL_GENERATORS = ("NumPy", "random", "torch")
_Numbers = tuple[tuple[str, float], ...]  # each with the name of the generator from which it is drawn


class LoaderAudit(Findings, msgspec.Struct, frozen=True, eq=False):
    """The result of `audit_loader`; ``str()`` is the report, `check` raises.

    `batch_sizes` are the numbers of samples in each batch of an epoch, `num_samples` is that of the dataset. `draws`
    contains, by (epoch, worker), the first numbers that a worker draws in an epoch from NumPy, random, torch and each
    generator that is an attribute of the dataset, as pairs of a name and a number.
    `shards` are the samplers and wrappers that divide the samples among ranks, the outermost first. `grouped_twice` is
    the name of a sampler that makes the batches, if the loader groups them again. `is_iterable` says whether the
    dataset is an iterable one, which each worker iterates. `reads_of_workers` are then the numbers of samples that
    each worker returns in the first epoch, and `num_dropped` is the number that `drop_last` drops of a whole dataset.
    """

    KINDS = (
        "nothing_read",
        "sharded_twice",
        "grouped_twice",
        "short_last_batch",
        "short_batch",
        "read_by_each_worker",
        "read_too_often",
        "same_random",
        "repeated_random",
    )
    batch_sizes: tuple[int, ...]
    num_samples: int
    num_workers: int
    draws: dict[tuple[int, int], _Numbers]
    shards: tuple[DividingLayer, ...] = ()
    grouped_twice: str = ""
    is_iterable: bool = False
    reads_of_workers: tuple[int, ...] = ()
    num_dropped: int = 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that changes, without an error, how a model is trained."""
        return (*self._findings_of_batches(), *self._findings_of_numbers())

    def _findings_of_batches(self) -> Iterator[Finding]:
        sizes = self.batch_sizes
        if not sizes:
            samples = count_of(self.num_samples, "sample")
            yield Finding("nothing_read", f"the loader returns no batches of {samples}")
        problem = twice_sharded(self.shards)
        if problem:
            yield Finding("sharded_twice", problem)
        if self.grouped_twice:
            problem = f"{self.grouped_twice} makes the batches, and the loader groups several of them into one"
            yield Finding("grouped_twice", f"{problem}: pass it as batch_sampler")
        if sizes and sizes[-1] < max(sizes):
            yield Finding("short_last_batch", self._short(len(sizes) - 1, f"the last of {len(sizes)} batches"))
        # Each worker of an iterable dataset may end with a short batch. Other datasets have one in the middle only if
        # their own batch sampler makes batches of different sizes.
        short = [batch for batch, size in enumerate(sizes[:-1]) if size < max(sizes)]
        if self.is_iterable and short:
            which = f"batch {short[0]} of {len(sizes)}"
            if len(short) > 1:
                which += f", like {len(short) - 1} more before the last,"
            yield Finding("short_batch", self._short(short[0], which))
        if self.is_iterable:
            yield from self._findings_of_reads(sum(sizes))

    def _short(self, batch: int, which: str) -> str:
        """Return what is wrong with a batch that is smaller than others; `which` are words for it."""
        size = self.batch_sizes[batch]
        largest = max(self.batch_sizes)
        effect = "a mean over it is not defined"
        if size > 0:
            effect = f"a mean over batches counts each {largest / size:.3g} times"
        return f"{which} has {count_of(size, 'sample')}, others {largest}: {effect}"

    def _findings_of_reads(self, num_reads: int) -> Iterator[Finding]:
        """Yield that workers together read more samples than an iterable dataset has without workers."""
        if not self.num_workers or num_reads <= self.num_samples:
            return
        reads = f"{count_of(self.num_workers, 'worker')} give {num_reads} samples of {self.num_samples}"
        in_all = set(self.reads_of_workers)
        if self.num_workers > 1 and in_all == {self.num_samples - self.num_dropped}:
            yield Finding("read_by_each_worker", f"{reads}: each reads all of them; ask get_worker_info()")
        else:
            yield Finding("read_too_often", f"{reads}: some are read more than once, or do not exist without workers")

    def _findings_of_numbers(self) -> Iterator[Finding]:
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
            is_repeated = False
            for (epoch, worker), number in number_of.items():
                # A worker that got no batch in the first epoch has no number there.
                if epoch > 0 and number_of.get((0, worker)) == number:
                    is_repeated = True
            if is_repeated:
                problem = f"a worker draws the same numbers from {name} in every epoch"
                yield Finding("repeated_random", f"{problem}: see worker_init_fn")

    def __str__(self) -> str:
        count = len(self.batch_sizes)
        batches = "1 batch" if count == 1 else f"{count} batches"
        return self.report(f"{batches}, {sum(self.batch_sizes)} samples", "nothing found")


def audit_loader(loader: DataLoader[Any]) -> LoaderAudit:
    """Audit two epochs of a DataLoader: its batches, and the random numbers that its workers draw.

    A map-style dataset is not read; the loader's own sampler, workers and worker_init_fn run on its indices instead.
    An iterable dataset is read. Random numbers are those of NumPy, random and torch, and of each generator that is an
    attribute of the dataset or of one that it wraps. Afterwards, the library's own samplers are where they were, and so
    are this process's random generators on the CPU and each generator of torch, NumPy or random that is an attribute of
    the loader, a sampler or the dataset; one that is deeper inside has moved on. Raises ValueError if `loader` is not a
    DataLoader, and RuntimeError, as the loader itself does, if a worker dies or takes longer than the loader's
    `timeout`.

    Since version 1.9, torch also seeds NumPy in each worker, anew in each epoch; a worker_init_fn can undo that:

    >>> def same_seed(worker):
    ...     np.random.seed(0)
    >>> options = {"num_workers": 2, "worker_init_fn": same_seed, "multiprocessing_context": "fork"}
    >>> print(audit_loader(DataLoader(range(10), batch_size=4, **options)))
    3 batches, 10 samples
      short last batch: the last of 3 batches has 2 samples, others 4: a mean over batches counts each 2 times
      same random: workers draw the same numbers from NumPy: see worker_init_fn
      repeated random: a worker draws the same numbers from NumPy in every epoch: see worker_init_fn
    """
    of_type("loader", loader, DataLoader)
    num_epochs = _NUM_EPOCHS if loader.num_workers else 1  # without workers, no numbers are drawn
    layers = layers_of(loader)
    with unmoved(layers), _same_random_numbers(layers):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about more workers than cores
            probe = _probe(loader)
            epochs: list[list[_ProbedBatch]] = [list(probe) for _ in range(num_epochs)]
        dataset: Any = loader.dataset
        is_iterable = isinstance(dataset, IterableDataset)
        num_samples = sum(1 for _ in dataset) if is_iterable else len(dataset)
    draws: dict[tuple[int, int], _Numbers] = {}
    for epoch, batches in enumerate(epochs):
        for batch in batches:
            if batch.worker is not None:
                draws.setdefault((epoch, batch.worker), batch.numbers)  # of the worker's first batch only
    reads_of_workers = [0] * loader.num_workers
    for batch in epochs[0]:
        if batch.worker is not None:
            reads_of_workers[batch.worker] += batch.size
    num_dropped = 0
    if is_iterable and loader.drop_last and loader.batch_size is not None:
        num_dropped = num_samples % loader.batch_size
    return LoaderAudit(
        batch_sizes=tuple(batch.size for batch in epochs[0]),
        num_samples=num_samples,
        num_workers=loader.num_workers,
        draws=draws,
        shards=shards_of(loader),
        grouped_twice=_grouped_twice(loader),
        is_iterable=is_iterable,
        reads_of_workers=tuple(reads_of_workers),
        num_dropped=num_dropped,
    )


@contextlib.contextmanager
def _same_random_numbers(layers: Iterable[Any]) -> Iterator[None]:
    """Put this process's generators, and those that are attributes of these layers, back at the block's end.

    To iterate over a loader draws a seed for its workers, and to shuffle draws numbers, so a training that follows
    would read its samples in another order.
    """
    with contextlib.ExitStack() as at_end:
        at_end.enter_context(torch.random.fork_rng(devices=[]))  # no devices: samplers draw on the CPU
        at_end.callback(random.setstate, random.getstate())
        at_end.callback(np.random.set_state, np.random.get_state())
        for layer in layers:
            for generator in _generators(layer).values():
                _put_back(generator, at_end)
        yield


def _put_back(generator: Any, at_end: contextlib.ExitStack) -> None:
    """Have a generator be put back to its present state at the end."""
    if isinstance(generator, torch.Generator):
        at_end.callback(generator.set_state, generator.get_state())
    elif isinstance(generator, np.random.Generator):
        at_end.callback(setattr, generator.bit_generator, "state", generator.bit_generator.state)
    elif isinstance(generator, np.random.RandomState):  # NumPy's older generator
        state = generator.get_state(legacy=False)  # the other form is only of a Mersenne Twister
        at_end.callback(generator.set_state, state)
    else:
        with contextlib.suppress(NotImplementedError):  # random.SystemRandom, for example, has no state
            at_end.callback(generator.setstate, generator.getstate())


def _grouped_twice(loader: DataLoader[Any]) -> str:
    """Return the name of a sampler that yields batches, and that the loader takes for one that yields indices."""
    sampler = getattr(loader.batch_sampler, "sampler", None)
    if isinstance(sampler, ElasticSampler) and sampler.makes_batches:
        return type(sampler).__name__
    return ""


class _ProbedBatch(NamedTuple):
    """What the probe returns in the place of a batch; `worker` is None in the training process."""

    worker: int | None
    size: int
    numbers: _Numbers


def _probe(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a loader like this one that yields a `_ProbedBatch` for each batch.

    Pinned memory and `in_order` are left out: what is read and drawn does not depend on them.
    """
    dataset: Any = loader.dataset
    options: dict[str, Any]
    is_iterable = isinstance(dataset, IterableDataset)
    if is_iterable:
        options = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    else:
        dataset = _Indices(dataset)
        options = {"batch_sampler": loader.batch_sampler}
        if loader.batch_sampler is None:  # the loader was made with batch_size=None, so it makes no batches
            options = {"batch_size": None, "sampler": loader.sampler}
    return DataLoader(
        dataset,
        **options,
        num_workers=loader.num_workers,
        collate_fn=_Draw(
            is_single=loader.batch_size is None and loader.batch_sampler is None, has_indices=not is_iterable
        ),
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
        multiprocessing_context=loader.multiprocessing_context,
        persistent_workers=loader.persistent_workers,
        prefetch_factor=loader.prefetch_factor,
    )


class _Indices(Dataset[Any]):
    """A dataset whose samples are their indices, or whose batches are the lists of indices that are asked for.

    Its attributes are those of another dataset, so that a worker_init_fn can set that one's generators.
    """

    def __init__(self, dataset: Any) -> None:
        self.__dict__["audited_dataset"] = dataset

    def __getitem__(self, index: Any) -> Any:
        return index

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "audited_dataset":  # as pickle asks for them before the latter is set
            raise AttributeError(name)
        return getattr(self.audited_dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.audited_dataset, name, value)


def _generators(owner: Any) -> dict[str, Any]:
    """Return the random generators that are attributes of an object, by name."""
    # from `__dict__`, because a property, or a wrapper's `__getattr__`, would execute code of the user's
    attributes = getattr(owner, "__dict__", {})
    return {name: value for name, value in attributes.items() if isinstance(value, _GENERATORS)}


class _Draw:
    """A collate_fn that returns which worker it runs in, the size of the batch, and the numbers it draws there."""

    def __init__(self, is_single: bool, has_indices: bool) -> None:
        self.is_single = is_single  # whether it is called with one sample instead of a list
        self.has_indices = has_indices  # whether the samples are those of `_Indices`

    def __call__(self, samples: Any) -> _ProbedBatch:
        if self.is_single:
            samples = [samples]
        size = 0
        for sample in samples:
            is_batch = self.has_indices and isinstance(sample, list)  # the sampler yields batches
            size += len(sample) if is_batch else 1
        worker = get_worker_info()
        if worker is None:  # this is the training process, whose generators must not be touched
            return _ProbedBatch(None, size, ())
        # Floats of 64 bits: with torch's default of 32, many workers would soon draw equal numbers by chance.
        numbers = [("NumPy", float(np.random.random())), ("random", random.random())]
        numbers.append(("torch", float(torch.rand(1, dtype=torch.float64))))
        dataset: Any = worker.dataset
        if self.has_indices:
            dataset = dataset.audited_dataset
        for layer in layers_of(dataset):
            for name, generator in _generators(layer).items():
                if isinstance(generator, torch.Generator):
                    number = float(torch.rand(1, dtype=torch.float64, generator=generator))
                else:
                    number = float(generator.random())
                numbers.append((f"the {name} of {type(layer).__name__}", number))
        return _ProbedBatch(worker.id, size, tuple(numbers))
