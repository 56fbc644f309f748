"""`audit_loader`: how a DataLoader cuts an epoch into batches, and which random numbers its workers draw."""

from __future__ import annotations

import random
import warnings
from typing import Any

import attrs
import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ..common.checks import count_of, of_type
from .audit import Finding, Findings

_EPOCHS = 2
_GENERATORS = ("NumPy", "random", "torch")


@attrs.frozen(eq=False)
class LoaderAudit(Findings):
    """What `audit_loader` found; ``str()`` is the report, `check` raises.

    `batch_sizes` are the samples of each batch of an epoch, `num_samples` those that the dataset has. `draws` holds the
    first number that a worker draws in an epoch from NumPy, random and torch, by (epoch, worker).
    """

    KINDS = ("nothing_read", "short_last_batch", "read_by_each_worker", "same_random", "repeated_random")
    batch_sizes: tuple[int, ...]
    num_samples: int
    num_workers: int
    draws: dict[tuple[int, int], tuple[float, float, float]]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that changes what a model learns without an error."""
        sizes, found = self.batch_sizes, []
        if not sizes:
            found.append(
                Finding("nothing_read", f"the loader gives no batch of {count_of(self.num_samples, 'sample')}")
            )
        elif sizes[-1] < max(sizes):
            counts = f"the last of {len(sizes)} batches has {count_of(sizes[-1], 'sample')}, others {max(sizes)}"
            more = f"a mean over batches counts each {max(sizes) / sizes[-1]:.3g} times"
            found.append(Finding("short_last_batch", f"{counts}: {more}"))
        if self.num_samples and sum(sizes) > self.num_samples and sum(sizes) % self.num_samples == 0:
            reads = f"{count_of(self.num_workers, 'worker')} give {sum(sizes)} samples of {self.num_samples}"
            found.append(Finding("read_by_each_worker", f"{reads}: each reads all of them; ask get_worker_info()"))
        for place, name in enumerate(_GENERATORS):
            drawn = {key: numbers[place] for key, numbers in self.draws.items()}
            first = [number for (epoch, _), number in drawn.items() if not epoch]
            if len(set(first)) < len(first):
                found.append(Finding("same_random", f"workers draw the same numbers from {name}: see worker_init_fn"))
            if any(drawn.get((0, worker)) == drawn[epoch, worker] for epoch, worker in drawn if epoch):
                says = f"a worker draws the same numbers from {name} in every epoch: see worker_init_fn"
                found.append(Finding("repeated_random", says))
        return tuple(found)

    def __str__(self) -> str:
        count = len(self.batch_sizes)
        batches = f"{count} batch{'es' if count != 1 else ''}"
        return self.report(f"{batches}, {sum(self.batch_sizes)} samples", "nothing found")


def audit_loader(loader: DataLoader[Any]) -> LoaderAudit:
    """Audit two epochs of a DataLoader: its batches, and what its workers draw from NumPy, random and torch.

    A map-style dataset is not read: its indices take its place, with the loader's own sampler, workers and
    worker_init_fn. An iterable one is read. Raises ValueError for anything but a DataLoader.

    Since 1.9 torch seeds NumPy in each worker, too, anew in each epoch; a worker_init_fn can undo that:

    >>> def same_seed(worker):
    ...     np.random.seed(0)
    >>> how = {"num_workers": 2, "worker_init_fn": same_seed, "multiprocessing_context": "fork"}
    >>> print(audit_loader(DataLoader(range(10), batch_size=4, **how)))
    3 batches, 10 samples
      short last batch: the last of 3 batches has 2 samples, others 4: a mean over batches counts each 2 times
      same random: workers draw the same numbers from NumPy: see worker_init_fn
      repeated random: a worker draws the same numbers from NumPy in every epoch: see worker_init_fn
    """
    of_type("loader", loader, DataLoader)
    iterable = isinstance(loader.dataset, IterableDataset)
    dataset: Any = loader.dataset if iterable else range(len(loader.dataset))  # type: ignore[arg-type]
    options: dict[str, Any] = {"batch_sampler": loader.batch_sampler}
    if iterable:
        options = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_sampler is None:
        options = {"batch_size": None, "sampler": loader.sampler}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of more workers than cores
        probe: DataLoader[Any] = DataLoader(
            dataset,
            **options,
            num_workers=loader.num_workers,
            collate_fn=_Draw(loader.batch_size is None and loader.batch_sampler is None),
            worker_init_fn=loader.worker_init_fn,
            generator=loader.generator,
            multiprocessing_context=loader.multiprocessing_context,
            persistent_workers=loader.persistent_workers,
            prefetch_factor=loader.prefetch_factor,
        )
        epochs = [list(probe) for _ in range(_EPOCHS if loader.num_workers else 1)]
    draws: dict[tuple[int, int], tuple[float, float, float]] = {}
    for number, batches in enumerate(epochs):
        for worker, _, numbers in batches:
            if worker is not None:
                draws.setdefault((number, worker), numbers)
    samples: Any = loader.dataset
    num_samples = sum(1 for _ in samples) if iterable else len(dataset)
    return LoaderAudit(tuple(size for _, size, _ in epochs[0]), num_samples, loader.num_workers, draws)


class _Draw:
    """A collate_fn that says which worker it is in, how many samples came, and what it draws there."""

    def __init__(self, single: bool) -> None:
        self.single = single

    def __call__(self, samples: Any) -> tuple[int | None, int, tuple[float, float, float]]:
        worker, size = get_worker_info(), 1 if self.single else len(samples)
        if worker is None:  # the numbers of this process belong to others
            return None, size, (0.0, 0.0, 0.0)
        return worker.id, size, (float(np.random.random()), random.random(), float(torch.rand(1)))
