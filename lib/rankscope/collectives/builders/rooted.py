"""Collectives with a root: broadcast, reduce, scatter and gather, and the allreduces over one; any N, any root.

A rank's place is how far it stands after the root, so that what is written for root 0 serves every root. Binomial
trees and van de Geijn's broadcast: Thakur, Rabenseifner and Gropp (2005), Optimization of collective communication
operations in MPICH.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from ...common.checks import whole
from ...common.frozen import each
from ..schedule import MOST_RANKS, MOST_SEGMENTS, MOST_WEIGHT, Ints, Phase, Schedule, Step


def flat(num_ranks: int) -> Schedule:
    """All ranks send to rank 0, which adds up and sends to all: two steps, each of N-1 messages at rank 0."""
    n = whole("num_ranks", num_ranks, 1, MOST_RANKS)
    others = np.arange(1, n)

    def phases() -> Iterator[Phase]:
        if n > 1:
            yield Phase(src=others, dst=0, chunk=0, reduce=True)
            yield Phase(src=0, dst=others, chunk=0)

    return Schedule("allreduce", "flat", n, num_chunks=1, phases=phases, ports=_ports(n))


def binomial_tree(num_ranks: int) -> Schedule:
    """Reduce to rank 0 on a binomial tree, then broadcast on it: 2⌈log₂N⌉ steps of the whole buffer, any N."""
    n = whole("num_ranks", num_ranks, 1, MOST_RANKS)

    def phases() -> Iterator[Phase]:
        yield from to_leaders(n, group=n, num_chunks=1)
        yield from backwards(to_leaders(n, group=n, num_chunks=1))

    return Schedule("allreduce", "binomial_tree", n, 1, phases)


def broadcast_flat(num_ranks: int, *, root: int = 0) -> Schedule:
    """The root sends its buffer to all ranks: one step of N-1 messages."""
    return _flat("broadcast", num_ranks, root, None)


def broadcast_binomial(num_ranks: int, *, root: int = 0) -> Schedule:
    """The buffer goes down a binomial tree: ⌈log₂N⌉ steps, in each of which twice as many ranks have it."""
    n, root = _ranks(num_ranks, root)

    def phases() -> Iterator[Phase]:
        return backwards(to_leaders(n, group=n, num_chunks=1, root=root))

    return Schedule("broadcast", "binomial", n, 1, phases, root)


def broadcast_scatter_allgather(num_ranks: int, *, root: int = 0) -> Schedule:
    """Scatter down a binomial tree, then allgather round a ring (van de Geijn): as long as two sends of a large buffer.

    A rank that got more than its own chunk from the scatter is not sent that again.
    """
    n, root = _ranks(num_ranks, root)
    place = np.arange(n)
    # A place's subtree has as many places as its lowest bit says, unless they end before. That of place 0 has them all.
    lowest_bit = place & -place
    subtree_size: Ints = np.where(place == 0, n, np.minimum(lowest_bit, n - place))
    num_missing = n - subtree_size  # chunks that the scatter does not bring

    def phases() -> Iterator[Phase]:
        yield from backwards(_subtrees(n, root))
        # Round the ring: in step s a rank is sent the chunk of the rank s + 1 before it. The chunks of its own subtree
        # would come last, so it leaves the round that many steps earlier. A phase ends whenever ranks leave.
        first_step = 0
        for end_step in np.unique(num_missing[num_missing > 0]).tolist():
            dst = (place[num_missing >= end_step] + root) % n

            # With defaults, because the phase calls this when `dst` and `first_step` have changed already.
            def chunk(step_in_phase: int, dst: Ints = dst, first_step: int = first_step) -> Ints:
                step = first_step + step_in_phase
                return (dst - (step + 1)) % n

            yield Phase((dst - 1) % n, dst, chunk, num_steps=end_step - first_step)
            first_step = end_step

    return Schedule("broadcast", "scatter_allgather", n, n, phases, root)


def broadcast_chain(num_ranks: int, num_segments: int = 8, *, root: int = 0) -> Schedule:
    """Every rank passes the buffer on to the next one, in segments, so that all links are busy at once."""
    n, root = _ranks(num_ranks, root)
    segments = whole("num_segments", num_segments, 1, MOST_SEGMENTS)

    def phases() -> Iterator[Phase]:
        if n == 1:  # there is no other rank
            return
        num_hops = n - 1
        for step in range(num_hops + segments - 1):  # the last segment starts after all others
            # The rank at a place of the chain, counted from the root, sends segment `step - place`, if there is one.
            first = max(0, step - segments + 1)
            last = min(step, num_hops - 1)  # the last rank of the chain only receives
            place = np.arange(first, last + 1)
            yield Phase((place + root) % n, (place + 1 + root) % n, step - place)

    return Schedule("broadcast", "chain", n, segments, phases, root)


def reduce_flat(num_ranks: int, *, root: int = 0) -> Schedule:
    """All ranks send their buffers to the root, which adds up: one step of N-1 messages."""
    return _flat("reduce", num_ranks, root, None)


def reduce_binomial(num_ranks: int, *, root: int = 0) -> Schedule:
    """Sums go up a binomial tree: ⌈log₂N⌉ steps of the whole buffer."""
    n, root = _ranks(num_ranks, root)
    return Schedule("reduce", "binomial", n, 1, lambda: to_leaders(n, group=n, num_chunks=1, root=root), root)


def scatter_flat(num_ranks: int, *, root: int = 0, counts: Sequence[int] | None = None) -> Schedule:
    """The root sends each rank its own chunk: one step of N-1 messages.

    `counts` gives the elements for each rank if they differ (MPI_Scatterv).
    """
    return _flat("scatter", num_ranks, root, counts)


def scatter_binomial(num_ranks: int, *, root: int = 0, counts: Sequence[int] | None = None) -> Schedule:
    """Down a binomial tree every rank is sent the chunks of its whole subtree: ⌈log₂N⌉ steps; `counts` as in flat."""
    return _binomial("scatter", num_ranks, root, counts)


def gather_flat(num_ranks: int, *, root: int = 0, counts: Sequence[int] | None = None) -> Schedule:
    """Each rank sends its own chunk to the root: one step of N-1 messages.

    `counts` gives the elements of each rank if they differ (MPI_Gatherv).
    """
    return _flat("gather", num_ranks, root, counts)


def gather_binomial(num_ranks: int, *, root: int = 0, counts: Sequence[int] | None = None) -> Schedule:
    """Up a binomial tree every rank sends the chunks of its whole subtree: ⌈log₂N⌉ steps; `counts` as in flat."""
    return _binomial("gather", num_ranks, root, counts)


# ---- what they share, with one another and with other families


def _ranks(num_ranks: int, root: int) -> tuple[int, int]:
    n = whole("num_ranks", num_ranks, 1, MOST_RANKS)
    return n, whole("root", root, 0, n - 1)


def _ports(num_ranks: int) -> int:
    """Return the ports of a rank that exchanges messages with all others in one step; a schedule has at least one."""
    return max(1, num_ranks - 1)


def _flat(collective: str, num_ranks: int, root: int, counts: Sequence[int] | None) -> Schedule:
    """One step with all messages between the root and the others."""
    n, root = _ranks(num_ranks, root)
    others = np.delete(np.arange(n), root)
    if collective in ("broadcast", "scatter"):
        src: ArrayLike = root
        dst: ArrayLike = others
    else:
        src = others
        dst = root
    num_chunks = 1
    chunk: ArrayLike = 0
    if collective in ("scatter", "gather"):  # each rank has a chunk of its own
        num_chunks = n
        chunk = others

    def phases() -> Iterator[Phase]:
        if n > 1:
            yield Phase(src, dst, chunk, reduce=collective == "reduce")

    weights = weights_of(n, counts)
    return Schedule(collective, "flat", n, num_chunks, phases, root, ports=_ports(n), weights=weights)


def _binomial(collective: str, num_ranks: int, root: int, counts: Sequence[int] | None) -> Schedule:
    """Down a binomial tree for a scatter, up for a gather: the chunks of the child and of all places below it."""
    n, root = _ranks(num_ranks, root)

    def phases() -> Iterator[Phase]:
        up = _subtrees(n, root)
        return backwards(up) if collective == "scatter" else up

    return Schedule(collective, "binomial", n, n, phases, root, weights=weights_of(n, counts))


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
    weights = each("counts", counts, whole, 0, MOST_WEIGHT)
    if len(weights) != num_ranks:
        raise ValueError(f"counts must be {num_ranks} whole numbers, one per rank, got {len(weights)} of them")
    return weights


def levels(num_ranks: int, group: int) -> list[tuple[Ints, int]]:
    """Return the children in each step up the binomial trees, and how far before them their parents stand.

    Each `group` of ranks has a tree. In a step with distance d the places that are odd multiples of d send.

    >>> [(child.tolist(), distance) for child, distance in levels(6, 6)]
    [([1, 3, 5], 1), ([2], 2), ([4], 4)]
    """
    place = np.arange(num_ranks) % group
    distances = [1 << k for k in range((group - 1).bit_length())]
    return [(np.flatnonzero(place % (2 * distance) == distance), distance) for distance in distances]


def to_leaders(num_ranks: int, group: int, num_chunks: int, root: int = 0) -> Iterator[Phase]:
    """Sums of whole buffers go up binomial trees to the first rank of each group of ranks.

    In step k every odd multiple of 2^k, counted within its group, sends to the even one below. If there is only one
    group, it may count from another `root`.
    """
    for child, distance in levels(num_ranks, group):
        yield Phase((child + root) % num_ranks, (child - distance + root) % num_ranks, 0, num_chunks, reduce=True)


def _subtrees(n: int, root: int) -> Iterator[Phase]:
    """Up a binomial tree: in each step a child passes its parent the chunks of it and of all places below it."""
    for child, distance in levels(n, n):
        src = (child + root) % n
        dst = (child - distance + root) % n
        subtree_size = np.minimum(distance, n - child)  # the last one may be cut off
        yield wrapping(src, dst, first=src, count=subtree_size, num_chunks=n)


def backwards(phases: Iterable[Phase], reduce: bool = False) -> Iterator[Phase]:
    """Yield the same steps in the opposite order and direction. All phases must have one step.

    What a rank receives is added up if `reduce`, and copied otherwise. Transfers are sorted by sender, only so that
    `Schedule.to_text` lists them in this order.

    >>> [(phase.src.tolist(), phase.dst.tolist()) for phase in backwards(to_leaders(4, 4, 1))]
    [([0], [2]), ([0, 2], [1, 3])]
    """
    for phase in reversed(list(phases)):
        step = phase.step(0)
        by_sender = np.argsort(step.dst, kind="stable")
        src = step.dst[by_sender]
        dst = step.src[by_sender]
        yield Phase(src, dst, step.chunk[by_sender], step.num_chunks[by_sender], reduce)


def wrapping(src: ArrayLike, dst: ArrayLike, first: ArrayLike, count: ArrayLike, num_chunks: int) -> Phase:
    """Return one step in which `count` chunks from `first` on are copied to `dst`; a run past the last one is two rows.

    >>> wrapping([0, 1], [1, 0], [0, 2], 2, num_chunks=3).step(0).chunk.tolist()
    [0, 2, 0]
    """
    rows = Step.of(src, dst, first, count)
    over = np.maximum(rows.chunk + rows.num_chunks - num_chunks, 0)  # how many chunks are past the last one
    wraps = over > 0
    return Phase(
        np.r_[rows.src, rows.src[wraps]],
        np.r_[rows.dst, rows.dst[wraps]],
        np.r_[rows.chunk, np.zeros(int(wraps.sum()), dtype=np.int64)],
        np.r_[rows.num_chunks - over, over[wraps]],
    )
