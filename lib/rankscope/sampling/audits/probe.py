"""What a DataLoader does, without its data: its batches are replaced by what is known of them."""

from __future__ import annotations

import copy
import random
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from ..assignment import Key
from ..samplers.wrapping import layers_of
from .generators import shared_left_alone

_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
Numbers = tuple[tuple[str, float], ...]  # each with the name of the generator from which it is drawn


class ProbedBatch(NamedTuple):
    """What the probe returns in the place of a batch; `worker` is None in the training process."""

    worker: int | None
    rows: tuple[Hashable, ...]
    numbers: Numbers


def install_probe(loader: DataLoader[Any], key: Key | None) -> None:
    """Let a loader return a `ProbedBatch` for each batch. Without a key, a map-style dataset is not read.

    `key` returns the name of a row. Without it, that is the row itself or, of a map-style dataset, its index.
    """
    for layer in layers_of(loader):
        attributes = getattr(layer, "__dict__", {})
        if "collate_fn" not in attributes:  # it is no loader
            continue
        is_single = layer.batch_size is None and layer.batch_sampler is None
        attributes["collate_fn"] = _Probe(is_single, key)
        attributes["_iterator"] = None  # of persistent workers
        if key is None and not isinstance(layer.dataset, IterableDataset):
            attributes["dataset"] = _Indices(layer.dataset)  # which `setattr` would refuse


def unnamed(row: Any) -> Any:
    """Give all rows one name, so that they are only counted."""
    return None


def names_of(row: Any, key: Key | None) -> list[Any]:
    """Return the name of a row, in a list, or those of all its rows if it is a batch; without a key, the row itself."""
    found = row if key is None else key(row)
    if hasattr(found, "tolist"):  # an array or a tensor
        found = found.tolist()
    if isinstance(found, list):
        return found
    return [found]


def generators_of(owner: Any) -> dict[str, Any]:
    """Return the random generators that are attributes of an object, by name."""
    # from `__dict__`, because a property, or a wrapper's `__getattr__`, would execute code of the user's
    attributes = getattr(owner, "__dict__", {})
    return {name: value for name, value in attributes.items() if isinstance(value, _GENERATORS)}


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


class _Probe:
    """A collate_fn that returns a `ProbedBatch`."""

    def __init__(self, is_single: bool, key: Key | None) -> None:
        self.is_single = is_single  # whether it is called with one sample instead of a list
        self.key = key

    def __call__(self, samples: Any) -> ProbedBatch:
        if self.is_single:
            samples = [samples]
        rows = tuple(name for sample in samples for name in names_of(sample, self.key))
        worker = get_worker_info()
        if worker is None:  # this is the training process, whose generators must not be touched
            return ProbedBatch(None, rows, ())
        # Floats of 64 bits: with torch's default of 32, many workers would soon draw equal numbers by chance.
        numbers = [
            ("NumPy", np.random.random()),
            ("random", random.random()),
            ("torch", float(torch.rand(1, dtype=torch.float64))),
        ]
        dataset: Any = worker.dataset
        if isinstance(dataset, _Indices):
            dataset = dataset.audited_dataset
        for layer in layers_of(dataset):
            for name, generator in generators_of(layer).items():
                if isinstance(generator, torch.Generator):
                    number = float(torch.rand(1, dtype=torch.float64, generator=generator))
                else:
                    number = generator.random()
                numbers.append((f"the {name} of {type(layer).__name__}", number))
        return ProbedBatch(worker.id, rows, tuple(numbers))


@contextmanager
def left_alone(layers: list[Any]) -> Iterator[None]:
    """Put the attributes of these layers and the generators of this process back at the block's end.

    To iterate over a loader draws a seed for its workers, and to shuffle draws numbers, so a training that follows
    would read its samples in another order. Within the block, the layers have copies of their generators.
    """
    with ExitStack() as at_end:
        at_end.enter_context(shared_left_alone())
        for layer in layers:
            attributes = getattr(layer, "__dict__", {})
            at_end.callback(attributes.update, dict(attributes))
            for name, generator in generators_of(layer).items():
                attributes[name] = _copied(generator)
        yield


def _copied(generator: Any) -> Any:
    try:
        return copy.deepcopy(generator)
    except NotImplementedError:  # random.SystemRandom, for example, has no state
        return generator
