"""The columns of a `Timeline`: checked, read-only, words as places in a list of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def checked(name: str, values: ArrayLike) -> NDArray[Any]:
    """A read-only column of the right type that nobody else can write to; raises ValueError for what is none."""
    given = np.asarray(values)
    wanted = np.float64 if name.endswith("_s") else np.int64
    if given.dtype.kind == "u" and wanted is np.int64 and (given > np.iinfo(np.int64).max).any():
        raise ValueError(f"{name} must hold whole numbers of at most 2**63 - 1, got {given.max()}")
    if given.ndim != 1 or (given.size and not np.can_cast(given.dtype, wanted, casting="same_kind")):
        raise ValueError(f"{name} must be a column of {wanted.__name__}, got {given.dtype} of shape {given.shape}")
    return settled(given.view() if given.dtype == wanted and _frozen(given) else given.astype(wanted))


def settled(array: NDArray[Any]) -> NDArray[Any]:
    """The array, read-only from now on: `checked` need not copy what its maker alone knows."""
    array.flags.writeable = False
    return array


def _frozen(array: NDArray[Any]) -> bool:
    """Whether neither the array nor one that it is a view of can be written to."""
    base: Any = array
    while isinstance(base, np.ndarray) and not base.flags.writeable:
        base = base.base
    return base is None


def encoded(texts: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The different words in the order they first come in, and the place of each word among them."""
    names = {word: place for place, word in enumerate(dict.fromkeys(texts))}
    return tuple(names), np.array([names[word] for word in texts], dtype=np.int64)


def decoded(places: NDArray[np.int64], names: tuple[str, ...]) -> NDArray[np.object_]:
    """The words at these places."""
    return np.array(names, dtype=object)[places] if names else np.empty(0, dtype=object)
