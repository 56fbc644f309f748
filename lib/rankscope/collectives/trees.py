"""Allreduce over one root: flat, as a parameter server does it, and on binomial trees."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..values.checks import whole
from .schedule import Ints, Phase, Schedule


def flat(num_ranks: int) -> Schedule:
    """Everybody sends to rank 0, which adds up and sends to everybody: two steps, N-1 messages at one port."""
    n = whole("num_ranks", num_ranks, 1)
    others = np.arange(1, n)

    def phases() -> Iterator[Phase]:
        if n > 1:
            yield Phase(others, 0, 0, 1, True)
            yield Phase(0, others, 0)

    return Schedule("allreduce", "flat", n, 1, phases, ports=max(1, n - 1))


def binomial_tree(num_ranks: int) -> Schedule:
    """Reduce to rank 0 on a binomial tree, then broadcast on it: 2⌈log₂N⌉ steps of the whole buffer, any N."""
    n = whole("num_ranks", num_ranks, 1)

    def phases() -> Iterator[Phase]:
        yield from to_leaders(n, n, 1, reduce=True)
        yield from to_leaders(n, n, 1, reduce=False)

    return Schedule("allreduce", "binomial_tree", n, 1, phases)


def to_leaders(num_ranks: int, group: int, num_chunks: int, reduce: bool, root: int = 0) -> Iterator[Phase]:
    """Whole buffers up binomial trees to the first rank of each group of ranks, or down from it where not `reduce`.

    Up: in step k every odd multiple of 2^k, counted within its group, sends to the even one below. Where there is one
    group only, it may count from another `root`.
    """
    steps = levels(num_ranks, group)
    for child, distance in steps if reduce else reversed(steps):
        leaf, parent = (child + root) % num_ranks, (child - distance + root) % num_ranks
        src, dst = (leaf, parent) if reduce else (parent, leaf)
        yield Phase(src, dst, 0, num_chunks, reduce)


def levels(num_ranks: int, group: int) -> list[tuple[Ints, int]]:
    """Return the children in each step up the binomial trees, and how far before them their parents stand.

    >>> [(child.tolist(), distance) for child, distance in levels(6, 6)]
    [([1, 3, 5], 1), ([2], 2), ([4], 4)]
    """
    place = np.arange(num_ranks) % group
    masks = [1 << k for k in range((group - 1).bit_length())]
    return [(np.flatnonzero(place % (2 * mask) == mask), mask) for mask in masks]
