"""The items that pass through a pipeline on each rank: a number of them, or those that an `Assignment` gives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.checks import whole
from ..sampling.assignment import Assignment


class Items(NamedTuple):
    """The items of one rank, in order: the number of each in a timeline, and its value, which is passed to a stage."""

    numbers: NDArray[np.int64]
    values: Sequence[Any]


def counted(num_items: int) -> Items:
    """Return items whose values are their numbers, 0 to num_items - 1."""
    return Items(np.arange(num_items), range(num_items))


def of_ranks(assignment: Assignment) -> list[Items]:
    """Return the items of each rank: its batches, numbered from 0, if there is a loader, else its indices.

    Raises ValueError for an index below 0, because -1 means "no item" in a timeline.

    >>> from rankscope.sampling import assign
    >>> [items.values for items in of_ranks(assign(5, 2, shuffle=False))]
    [[0, 2, 4], [1, 3, 0]]
    >>> of_ranks(assign(5, 2, shuffle=False).with_loader(2))[1]
    Items(numbers=array([0, 1]), values=[array([1, 3]), array([0])])
    """
    ranks = []
    for rank, indices in enumerate(assignment.ranks):
        if assignment.loader:
            batches = assignment.batches(rank)
            ranks.append(Items(np.arange(len(batches)), batches))
        else:
            lowest_index = int(indices.min(initial=0))  # 0 if the rank has none
            whole(f"each index of rank {rank}", lowest_index, 0)
            ranks.append(Items(indices.astype(np.int64, copy=False), indices.tolist()))
    return ranks
