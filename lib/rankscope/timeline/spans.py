"""`Span`, and columns of spans."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Times = NDArray[np.float64]


class Span(NamedTuple):
    """One piece of work; `item` is the batch, chunk or step that it belongs to, or -1 if it belongs to none."""

    rank: int
    lane: str
    kind: str
    item: int
    start_s: float
    stop_s: float


def column(name: str, values: ArrayLike) -> NDArray[Any]:
    """Return values as a read-only column: of floats if the name ends in ``_s``, of whole numbers otherwise."""
    array = np.asarray(values)
    dtype = np.float64 if name.endswith("_s") else np.int64
    # An empty list is an array of floats for numpy, so the type of an empty column does not matter.
    if array.size and not np.can_cast(array.dtype, dtype, casting="same_kind"):
        raise ValueError(f"{name} must be a column of {dtype.__name__}, got {array.dtype}")
    read_only = array.astype(dtype, copy=False).view()
    read_only.flags.writeable = False
    return read_only


def encoded(words: Iterable[str], place_of: dict[str, int]) -> Ints:
    """Return the place of each word in `place_of`, which gets new words in the order of their first occurrence."""
    return np.array([place_of.setdefault(word, len(place_of)) for word in words], dtype=np.int64)
