"""Collectives without a root: allgather, reduce-scatter, all-to-all and barrier.

Bruck and others (1997), Efficient algorithms for all-to-all communications in multiport message-passing systems;
Thakur, Rabenseifner and Gropp (2005); Hensgen, Finkel and Manber (1988), Two algorithms for barrier synchronization;
Jeaugey (2025), PAT: a new algorithm for all-gather and reduce-scatter operations at scale (arXiv 2506.20252).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from ...common.checks import whole
from ...common.frozen import each
from ..schedule import MOST_RANKS, Ints, Phase, Schedule
from .halving import halves
from .rings import once_round
from .rooted import backwards, weights_of, wrapping


def allgather_ring(num_ranks: int, *, counts: Sequence[int] | None = None) -> Schedule:
    """Every rank passes on the chunk that it received last: N-1 steps of one chunk, any N.

    `counts` gives the elements of each rank if they differ (MPI_Allgatherv).
    """
    n, ranks = _ranks(num_ranks)
    phase = once_round(ranks, dst=(ranks + 1) % n, place=ranks, size=n)
    return Schedule("allgather", "ring", n, n, lambda: [phase], weights=weights_of(n, counts))


def allgather_recursive_doubling(num_ranks: int) -> Schedule:
    """In step k ranks that differ in bit k exchange all their chunks: log₂N steps.

    Raises ValueError if N is not a power of two.
    """
    n, ranks = _power_of_two(num_ranks, "recursive_doubling")

    def phases() -> Iterator[Phase]:
        # Recursive halving backwards: a place sends the chunks that it would keep there, and so ends up with all.
        for half in reversed(list(halves(n, nearest_first=False))):
            yield Phase(ranks, half.peer, half.keeps, half.size)

    return Schedule("allgather", "recursive_doubling", n, n, phases)


def allgather_bruck(num_ranks: int) -> Schedule:
    """In step k every rank sends all its chunks to the rank 2^k before it: ⌈log₂N⌉ steps, any N.

    A rank has its own chunk and those after it; the last step sends only the chunks that are still missing.
    """
    n, ranks = _ranks(num_ranks)

    def phases() -> Iterator[Phase]:
        for distance in _distances(n):
            count = min(distance, n - distance)  # a rank has `distance` chunks so far, and lacks the others
            yield wrapping(ranks, (ranks - distance) % n, first=ranks, count=count, num_chunks=n)

    return Schedule("allgather", "bruck", n, n, phases)


def allgather_pat(num_ranks: int) -> Schedule:
    """NCCL's PAT without a limit to its buffers: each chunk goes down a binomial tree, far ranks first.

    Messages carry chunks of many trees, so that it takes ⌈log₂N⌉ steps, any N.
    """
    n, ranks = _ranks(num_ranks)

    def phases() -> Iterator[Phase]:
        # the ranks that have a chunk so far, counted from the rank that it comes from
        offsets = np.zeros(1, dtype=np.int64)
        for distance in reversed(_distances(n)):
            sending = offsets[offsets + distance < n]  # others have none to send to
            src = np.tile(ranks, sending.size)  # each rank is at each offset, in the tree of another chunk
            chunk = (src - np.repeat(sending, n)) % n
            yield Phase(src, (src + distance) % n, chunk)
            offsets = np.r_[offsets, sending + distance]

    return Schedule("allgather", "pat", n, n, phases)


def reduce_scatter_ring(num_ranks: int) -> Schedule:
    """A sum goes once round for each chunk, and ends with the rank that owns it: N-1 steps of one chunk, any N."""
    n, ranks = _ranks(num_ranks)
    # Each rank first sends the chunk of the rank before it, which is the last to get it.
    phase = once_round(ranks, dst=(ranks + 1) % n, place=ranks, size=n, start=-1, reduce=True)
    return Schedule("reduce_scatter", "ring", n, n, lambda: [phase])


def reduce_scatter_recursive_halving(num_ranks: int) -> Schedule:
    """In each step ranks exchange half of what they still sum, with the farthest first: log₂N steps.

    Raises ValueError if N is not a power of two.
    """
    n, _ = _power_of_two(num_ranks, "recursive_halving")
    return _reduce_scatter("recursive_halving", allgather_recursive_doubling(n))


def reduce_scatter_bruck(num_ranks: int) -> Schedule:
    """Bruck's allgather backwards: sums of many chunks go far first, ⌈log₂N⌉ steps, any N."""
    return _reduce_scatter("bruck", allgather_bruck(num_ranks))


def reduce_scatter_pat(num_ranks: int) -> Schedule:
    """NCCL's PAT: its allgather backwards, so that sums go up the trees and near ranks come first; any N."""
    return _reduce_scatter("pat", allgather_pat(num_ranks))


def reduce_scatter_pairwise(num_ranks: int) -> Schedule:
    """In step s every rank sends to the rank s + 1 after it its share of that rank's chunk: N-1 steps, none relayed."""
    n, ranks = _ranks(num_ranks)

    def phases() -> Iterator[Phase]:
        for distance in range(1, n):
            peer = (ranks + distance) % n
            yield Phase(ranks, peer, peer, reduce=True)

    return Schedule("reduce_scatter", "pairwise", n, n, phases)


def all_to_all_pairwise(num_ranks: int, *, counts: Sequence[Sequence[int]] | None = None) -> Schedule:
    """In step s every rank sends the chunk for the rank s + 1 after it directly to that rank: N-1 steps, any N.

    ``counts[i][j]`` are the elements that rank i has for rank j if they differ (MPI_Alltoallv), for example tokens that
    are routed to experts. Elements that stay on their rank are also part of the buffer.

    >>> all_to_all_pairwise(2, counts=[[1, 3], [0, 2]]).weights
    (1, 3, 0, 2)
    """
    n, ranks = _ranks(num_ranks)
    weights = None
    if counts is not None:
        rows = each("counts", counts, lambda _, row: weights_of(n, row))  # which checks a row
        if len(rows) != n:
            raise ValueError(f"counts must be {n} rows of {n} whole numbers, one per rank, got {len(rows)} rows")
        weights = tuple(itertools.chain.from_iterable(rows))

    def phases() -> Iterator[Phase]:
        for distance in range(1, n):
            peer = (ranks + distance) % n
            yield Phase(ranks, peer, chunk=ranks * n + peer)  # chunks are numbered by sender, then by receiver

    return Schedule("all_to_all", "pairwise", n, n * n, phases, weights=weights)


def all_to_all_bruck(num_ranks: int) -> Schedule:
    """In step k all chunks with bit k in the distance they have to go move 2^k ranks on: ⌈log₂N⌉ steps, any N.

    A chunk moves up to log₂N times, so more bytes travel in fewer messages.
    """
    n, ranks = _ranks(num_ranks)

    def phases() -> Iterator[Phase]:
        for bit in _distances(n):
            distances = np.flatnonzero(ranks & bit)  # of all distances that chunks travel, those with this bit
            distance = np.tile(distances, n)  # that each sent chunk travels in all; each rank sends all of these
            origin = np.repeat(ranks, distances.size)
            travelled = distance % bit  # by the lower bits, in the steps before
            chunk = origin * n + (origin + distance) % n
            src = (origin + travelled) % n
            yield Phase(src, (src + bit) % n, chunk)

    return Schedule("all_to_all", "bruck", n, n * n, phases)


def barrier_dissemination(num_ranks: int) -> Schedule:
    """In step k every rank tells the rank 2^k after it which ranks it has heard from: ⌈log₂N⌉ steps, any N."""
    n, ranks = _ranks(num_ranks)

    def phases() -> Iterator[Phase]:
        for distance in _distances(n):
            # The only chunk stands for the ranks that a rank has heard from; what arrives is added to them.
            yield Phase(ranks, (ranks + distance) % n, chunk=0, reduce=True)

    return Schedule("barrier", "dissemination", n, 1, phases)


def _reduce_scatter(algorithm: str, allgather: Schedule) -> Schedule:
    """The allgather backwards, which adds up each chunk that the allgather copies."""
    n = allgather.num_ranks
    return Schedule("reduce_scatter", algorithm, n, n, lambda: backwards(allgather.phases(), reduce=True))


def _ranks(num_ranks: int) -> tuple[int, Ints]:
    n = whole("num_ranks", num_ranks, 1, MOST_RANKS)
    return n, np.arange(n)


def _distances(n: int) -> list[int]:
    """1, 2, 4, … below the number of ranks."""
    return [1 << k for k in range((n - 1).bit_length())]


def _power_of_two(num_ranks: int, algorithm: str) -> tuple[int, Ints]:
    n, ranks = _ranks(num_ranks)
    if n & (n - 1):
        below = 1 << (n.bit_length() - 1)
        raise ValueError(f"num_ranks of {algorithm} must be a power of two, such as {below} or {2 * below}, got {n}")
    return n, ranks
