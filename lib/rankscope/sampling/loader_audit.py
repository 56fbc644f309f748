"""`audit_loader`: the batches that a DataLoader makes of an epoch, and the random numbers that its workers draw."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import attrs
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from ..common.checks import count_of, of_type
from .audit import Finding, Findings
from .elastic import ElasticSampler
from .reading import unmoved
from .wrapping import DividingLayer, layers_of, shards_of, twice_sharded

_NUM_EPOCHS = 2  # enough to show numbers that are the same in every epoch
_GENERATORS = ("NumPy", "random", "torch")
_Numbers = tuple[float, float, float]  # drawn from each of _GENERATORS


@attrs.frozen(eq=False)
class LoaderAudit(Findings):
    """The result of `audit_loader`; ``str()`` is the report, `check` raises.

    `batch_sizes` are the numbers of samples in each batch of an epoch, `num_samples` is that of the dataset. `draws`
    contains the first numbers that a worker draws in an epoch from NumPy, random and torch, by (epoch, worker).
    `shards` are the samplers and wrappers that divide the samples among ranks, the outermost first. `grouped_twice` is
    the name of a sampler that makes the batches, if the loader groups them again. `is_iterable` says whether the
    dataset is an iterable one, which each worker iterates.
    """

    KINDS = (
        "nothing_read",
        "sharded_twice",
        "grouped_twice",
        "short_last_batch",
        "read_by_each_worker",
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
            counts = f"the last of {len(sizes)} batches has {count_of(sizes[-1], 'sample')}, others {max(sizes)}"
            effect = "a mean over it is not defined"
            if sizes[-1] > 0:
                effect = f"a mean over batches counts each {max(sizes) / sizes[-1]:.3g} times"
            yield Finding("short_last_batch", f"{counts}: {effect}")
        num_reads = sum(sizes)
        # Several workers, each of which returns the whole dataset.
        if self.is_iterable and self.num_workers > 1 and 0 < num_reads == self.num_workers * self.num_samples:
            reads = f"{count_of(self.num_workers, 'worker')} give {num_reads} samples of {self.num_samples}"
            yield Finding("read_by_each_worker", f"{reads}: each reads all of them; ask get_worker_info()")

    def _findings_of_numbers(self) -> Iterator[Finding]:
        for index, name in enumerate(_GENERATORS):
            number_of = {epoch_and_worker: numbers[index] for epoch_and_worker, numbers in self.draws.items()}
            in_first_epoch = [number for (epoch, _), number in number_of.items() if epoch == 0]
            if len(set(in_first_epoch)) < len(in_first_epoch):
                yield Finding("same_random", f"workers draw the same numbers from {name}: see worker_init_fn")
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
    """Audit two epochs of a DataLoader: its batches, and its workers' random numbers from NumPy, random and torch.

    A map-style dataset is not read; the loader's own sampler, workers and worker_init_fn run on its indices instead.
    An iterable dataset is read. Afterwards, the library's own samplers are where they were, and so are this process's
    random generators on the CPU and each generator of torch, NumPy or random that is an attribute of the loader, a
    sampler or the dataset; one that is deeper inside has moved on. Raises ValueError if `loader` is not a DataLoader,
    and RuntimeError, as the loader itself does, if a worker dies or takes longer than the loader's `timeout`.

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
    return LoaderAudit(
        batch_sizes=tuple(batch.size for batch in epochs[0]),
        num_samples=num_samples,
        num_workers=loader.num_workers,
        draws=draws,
        shards=shards_of(loader),
        grouped_twice=_grouped_twice(loader),
        is_iterable=is_iterable,
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
            # from `__dict__`, because a property, or a wrapper's `__getattr__`, would execute code of the user's
            for value in getattr(layer, "__dict__", {}).values():
                _put_back(value, at_end)
        yield


def _put_back(value: Any, at_end: contextlib.ExitStack) -> None:
    """Have a generator be put back to its present state at the end; do nothing for any other value."""
    if isinstance(value, torch.Generator):
        at_end.callback(value.set_state, value.get_state())
    elif isinstance(value, np.random.Generator):
        at_end.callback(setattr, value.bit_generator, "state", value.bit_generator.state)
    elif isinstance(value, np.random.RandomState):  # NumPy's older generator
        at_end.callback(value.set_state, value.get_state())
    elif isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):  # that one has no state
        at_end.callback(value.setstate, value.getstate())


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
        dataset = _Indices()
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
    """A dataset whose samples are their indices, or whose batches are the lists of indices that are asked for."""

    def __getitem__(self, index: Any) -> Any:
        return index


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
            return _ProbedBatch(None, size, (0.0, 0.0, 0.0))
        # Floats of 64 bits: with torch's default of 32, many workers would soon draw equal numbers by chance.
        numbers = (float(np.random.random()), random.random(), float(torch.rand(1, dtype=torch.float64)))
        return _ProbedBatch(worker.id, size, numbers)
