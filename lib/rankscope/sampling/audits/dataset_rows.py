"""The rows that a dataset has, by name, and whether the datasets of two ranks can have the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from ..assignment import Key, length_of
from .probe import names_of

_MOST_NESTED = 4  # such as a Subset of a ConcatDataset, its list of datasets, and these
_MOST_COMPARED = 1000  # entries of a list, as parts of a list differ where they begin


def names_of_rows(dataset: Any, key: Key | None) -> Counter[Hashable] | None:
    """Count the names of a dataset's rows, or its indices if there is no key; None if it does not say how many.

    Raises ValueError if an iterable dataset cannot be read without workers.
    """
    if isinstance(dataset, IterableDataset):
        return counted(_without_workers(dataset), key)
    size = length_of(dataset)
    if size is None:
        return None
    if key is None:
        return Counter(range(size))
    return counted((dataset[index] for index in range(size)), key)


def counted(rows: Iterable[Any], key: Key | None) -> Counter[Hashable]:
    """Count rows by their names; without a key, these are the rows themselves."""
    try:
        return Counter(name for row in rows for name in names_of(row, key))
    except TypeError as error:
        raise ValueError(f"key and read_before must name rows by numbers, texts or tuples: {error}") from error


def _without_workers(dataset: Iterable[Any]) -> Iterator[Any]:
    try:
        yield from dataset
    except Exception as error:
        problem = "the audit also reads the dataset without workers, where get_worker_info() is None, and that raises"
        raise ValueError(f"{problem} {type(error).__name__}: {error}") from error


def differ(one: Any, other: Any, depth: int = 0) -> bool:
    """Return whether what two datasets are made of differs: their lengths, numbers, texts, arrays and inner datasets.

    Things that cannot be compared, such as open files and random generators, do not count.

    >>> from torch.utils.data import Subset
    >>> differ(Subset("abcd", [0, 1]), Subset("abcd", [0, 1])), differ(Subset("abcd", [0, 1]), Subset("abcd", [2, 3]))
    (False, True)
    """
    if one is other or type(one) is not type(other) or depth > _MOST_NESTED:
        return False
    if length_of(one) != length_of(other):
        return True
    if isinstance(one, int | str | range):
        return bool(one != other)
    if isinstance(one, np.ndarray | torch.Tensor):
        return one.shape != other.shape or bool(((one != other) & (one == one)).any())  # NaN differs from itself
    if isinstance(one, list | tuple):
        return any(differ(*pair, depth + 1) for pair in islice(zip(one, other, strict=True), _MOST_COMPARED))
    ours = getattr(one, "__dict__", {})
    theirs = getattr(other, "__dict__", {})
    return any(differ(ours[name], theirs[name], depth + 1) for name in ours.keys() & theirs.keys())
