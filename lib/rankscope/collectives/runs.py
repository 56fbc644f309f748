"""Runs of chunks: those that wrap round from the last chunk to the first, and those of a size of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ..values.checks import several, whole
from .schedule import Phase, Step


def wrapping(src: ArrayLike, dst: ArrayLike, first: ArrayLike, count: ArrayLike, num_chunks: int) -> Phase:
    """Return one step in which `count` chunks from `first` on are copied; a run past the last chunk becomes two rows.

    >>> wrapping([0, 1], [1, 0], [0, 2], 2, num_chunks=3).step(0).chunk.tolist()
    [0, 2, 0]
    """
    rows = Step.of(src, dst, first, count)
    over = np.maximum(rows.chunk + rows.num_chunks - num_chunks, 0)
    rest = over > 0
    return Phase(
        np.r_[rows.src, rows.src[rest]],
        np.r_[rows.dst, rows.dst[rest]],
        np.r_[rows.chunk, np.zeros(int(rest.sum()), dtype=np.int64)],
        np.r_[rows.num_chunks - over, over[rest]],
    )


def weights_of(num_ranks: int, counts: Sequence[int] | None) -> tuple[int, ...] | None:
    """Return how many elements each rank's run has, or None where all have as many.

    >>> weights_of(3, [2, 0, 1])
    (2, 0, 1)
    >>> weights_of(3, [2, 1])
    Traceback (most recent call last):
    ValueError: counts must be 3 whole numbers, one a rank, got 2 of them
    """
    if counts is None:
        return None
    found = tuple(whole("counts", count, 0) for count in several("counts", counts))
    if len(found) != num_ranks:
        raise ValueError(f"counts must be {num_ranks} whole numbers, one a rank, got {len(found)} of them")
    return found
