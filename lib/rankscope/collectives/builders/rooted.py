"""Collectives with a root: broadcast, reduce, scatter and gather, and the allreduces over one; any N, any root.

A rank's place is how far it stands after the root, so that what is written for root 0 serves every root. Binomial
trees and van de Geijn's broadcast: Thakur, Rabenseifner and Gropp (2005), Optimization of collective communication
operations in MPICH.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from ...common.checks import several, whole
from ..schedule import Schedule
from ..steps import Ints, Step


def allreduce_flat(num_ranks: int) -> Schedule:
    """All ranks send to rank 0, which adds up and sends to all: two steps, each of N-1 messages at rank 0."""
    steps = [*_star(num_ranks, 0, inwards=True, reduce=True), *_star(num_ranks, 0, inwards=False)]
    return Schedule("allreduce", "flat", num_ranks, 1, steps, ports=ports_to_others(num_ranks))


def binomial_tree(num_ranks: int) -> Schedule:
    """Reduce to rank 0 on a binomial tree, then broadcast on it: 2⌈log₂N⌉ steps of the whole buffer, any N."""
    up = to_leaders(num_ranks, group=num_ranks, num_chunks=1)
    return Schedule("allreduce", "binomial_tree", num_ranks, 1, [*up, *backwards(up)])


def flat(collective: str, num_ranks: int, *, root: int = 0) -> Schedule:
    """Reduce or broadcast: one step with all N-1 messages between the root and the others."""
    is_sum = collective == "reduce"
    steps = _star(num_ranks, root, inwards=is_sum, reduce=is_sum)
    return Schedule(collective, "flat", num_ranks, 1, steps, root, ports_to_others(num_ranks))


def flat_parts(collective: str, num_ranks: int, *, root: int = 0, counts: Sequence[int] | None = None) -> Schedule:
    """Scatter or gather: the same, with a chunk of its own for each rank.

    `counts` gives the elements of each rank if they differ (MPI_Scatterv, MPI_Gatherv).
    """
    steps = _star(num_ranks, root, inwards=collective == "gather", own_chunks=True)
    weights = weights_of(num_ranks, counts)
    return Schedule(collective, "flat", num_ranks, num_ranks, steps, root, ports_to_others(num_ranks), 1, weights)


def binomial(collective: str, num_ranks: int, *, root: int = 0) -> Schedule:
    """Reduce: sums go up a binomial tree; broadcast: the buffer goes down. ⌈log₂N⌉ steps of the whole buffer."""
    steps = to_leaders(num_ranks, group=num_ranks, num_chunks=1, root=root)
    if collective == "broadcast":
        steps = backwards(steps)
    return Schedule(collective, "binomial", num_ranks, 1, steps, root)


def binomial_parts(collective: str, num_ranks: int, *, root: int = 0, counts: Sequence[int] | None = None) -> Schedule:
    """Scatter or gather: the chunks of a rank's whole subtree go down a binomial tree, or up; `counts` as in flat."""
    steps = _subtrees(num_ranks, root)
    if collective == "scatter":
        steps = backwards(steps)
    weights = weights_of(num_ranks, counts)
    return Schedule(collective, "binomial", num_ranks, num_ranks, steps, root, weights=weights)


def broadcast_scatter_allgather(num_ranks: int, *, root: int = 0) -> Schedule:
    """Scatter down a binomial tree, then allgather round a ring (van de Geijn): as long as two sends of a large buffer.

    A rank that got more than its own chunk from the scatter is not sent that again.
    """
    n = num_ranks
    place = np.arange(n)
    # A place's subtree has as many places as its lowest bit says, unless they end before. That of place 0 has them all.
    subtree_size = np.where(place == 0, n, np.minimum(place & -place, n - place))
    num_missing = n - subtree_size  # chunks that the scatter does not bring

    def steps() -> Iterator[Step]:
        yield from backwards(_subtrees(n, root))
        # Round the ring: in step s a rank is sent the chunk of the rank s + 1 before it. The chunks of its own subtree
        # would come last, so it leaves the round that many steps earlier.
        for step in range(num_missing.max()):
            dst = (place[num_missing > step] + root) % n
            yield Step.of((dst - 1) % n, dst, (dst - (step + 1)) % n)

    return Schedule("broadcast", "scatter_allgather", n, n, steps, root)


def broadcast_chain(num_ranks: int, num_segments: int = 8, *, root: int = 0) -> Schedule:
    """Every rank passes the buffer on to the next one, in segments, so that all links are busy at once."""
    num_hops = num_ranks - 1

    def steps() -> Iterator[Step]:
        for step in range(num_hops + num_segments - 1 if num_hops else 0):  # the last segment starts after all others
            # The rank at a place of the chain, counted from the root, sends segment `step - place`, if there is one.
            first = max(0, step - num_segments + 1)
            last = min(step, num_hops - 1)  # the last rank of the chain only receives
            place = np.arange(first, last + 1)
            yield Step.of((place + root) % num_ranks, (place + 1 + root) % num_ranks, step - place)

    return Schedule("broadcast", "chain", num_ranks, num_segments, steps, root)


# ---- what they share, with one another and with other families


def ports_to_others(num_ranks: int) -> int:
    """Return the ports of a rank that exchanges messages with all others in one step; a schedule has at least one."""
    return max(1, num_ranks - 1)


def _star(n: int, root: int, inwards: bool, own_chunks: bool = False, reduce: bool = False) -> list[Step]:
    """One step with all messages between the root and the others; none if there are no others."""
    others = np.delete(np.arange(n), root)
    chunk = others if own_chunks else 0
    if others.size == 0:
        return []
    if inwards:
        return [Step.of(others, root, chunk, reduce=reduce)]
    return [Step.of(root, others, chunk)]


def weights_of(num_ranks: int, counts: Sequence[int] | None) -> tuple[int, ...] | None:
    """Return how many elements each rank's run has, or None if all have the same number.

    >>> weights_of(3, [2, 0, 1])
    (2, 0, 1)
    >>> weights_of(3, [2, 1])
    Traceback (most recent call last):
    ValueError: counts must be 3 whole numbers, one per rank, got 2 of them
    """
    if counts is None:
        return None
    weights = tuple(whole("counts", count, 0) for count in several("counts", counts))
    if len(weights) != num_ranks:
        raise ValueError(f"counts must be {num_ranks} whole numbers, one per rank, got {len(weights)} of them")
    return weights


def _levels(num_ranks: int, group: int) -> list[tuple[Ints, int]]:
    """Return the children in each step up the binomial trees, and how far before them their parents stand.

    Each `group` of ranks has a tree. In a step with distance d the places that are odd multiples of d send.

    >>> [(child.tolist(), distance) for child, distance in _levels(6, 6)]
    [([1, 3, 5], 1), ([2], 2), ([4], 4)]
    """
    place = np.arange(num_ranks) % group
    distances = [1 << k for k in range((group - 1).bit_length())]
    return [(np.flatnonzero(place % (2 * distance) == distance), distance) for distance in distances]


def to_leaders(num_ranks: int, group: int, num_chunks: int, root: int = 0) -> list[Step]:
    """Sums of whole buffers go up binomial trees to the first rank of each group of ranks.

    In step k every odd multiple of 2^k, counted within its group, sends to the even one below. If there is only one
    group, it may count from another `root`.
    """
    return [
        Step.of((child + root) % num_ranks, (child - distance + root) % num_ranks, 0, num_chunks, reduce=True)
        for child, distance in _levels(num_ranks, group)
    ]


def _subtrees(n: int, root: int) -> list[Step]:
    """Up a binomial tree: in each step a child passes its parent the chunks of it and of all places below it."""
    steps = []
    for child, distance in _levels(n, n):
        src = (child + root) % n
        dst = (child - distance + root) % n
        subtree_size = np.minimum(distance, n - child)  # the last one may be cut off
        steps.append(wrapping(src, dst, first=src, count=subtree_size, num_chunks=n))
    return steps


def backwards(steps: Iterable[Step], reduce: bool = False) -> list[Step]:
    """Return the same steps in the opposite order and direction.

    What a rank receives is added up if `reduce`, and copied otherwise. Transfers are sorted by sender, only so that
    `Schedule.to_text` lists them in this order.

    >>> [(step.src.tolist(), step.dst.tolist()) for step in backwards(to_leaders(4, 4, 1))]
    [([0], [2]), ([0, 2], [1, 3])]
    """
    result = []
    for step in reversed(list(steps)):
        by_sender = np.argsort(step.dst, kind="stable")
        src, dst, chunk, num_chunks, _ = (column[by_sender] for column in step)
        result.append(Step.of(src=dst, dst=src, chunk=chunk, num_chunks=num_chunks, reduce=reduce))
    return result


def wrapping(src: ArrayLike, dst: ArrayLike, first: ArrayLike, count: ArrayLike, num_chunks: int) -> Step:
    """Return one step in which `count` chunks from `first` on are copied to `dst`; a run past the last one is two rows.

    >>> wrapping([0, 1], [1, 0], [0, 2], 2, num_chunks=3).chunk.tolist()
    [0, 2, 0]
    """
    rows = Step.of(src, dst, first, count)
    over = np.maximum(rows.chunk + rows.num_chunks - num_chunks, 0)  # how many chunks are past the last one
    wraps = over > 0
    return Step.of(
        np.r_[rows.src, rows.src[wraps]],
        np.r_[rows.dst, rows.dst[wraps]],
        np.r_[rows.chunk, np.zeros_like(over[wraps])],
        np.r_[rows.num_chunks - over, over[wraps]],
    )
