"""Collectives without a root: allgather, reduce-scatter, all-to-all and barrier.

Bruck and others (1997), Efficient algorithms for all-to-all communications in multiport message-passing systems;
Thakur, Rabenseifner and Gropp (2005); Hensgen, Finkel and Manber (1988), Two algorithms for barrier synchronization;
Jeaugey (2025), PAT: a new algorithm for all-gather and reduce-scatter operations at scale (arXiv 2506.20252).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ...common.checks import several
from ..schedule import Schedule
from ..steps import Step
from .halving import halves
from .rings import once_round
from .rooted import backwards, weights_of, wrapping


def allgather_ring(num_ranks: int, *, counts: Sequence[int] | None = None) -> Schedule:
    """Every rank passes on the chunk that it received last: N-1 steps of one chunk, any N.

    `counts` gives the elements of each rank if they differ (MPI_Allgatherv).
    """
    n = num_ranks
    ranks = np.arange(n)

    def steps() -> Iterator[Step]:
        return once_round(ranks, (ranks + 1) % n, ranks, size=n, block=1, start=0, reduce=False)

    return Schedule("allgather", "ring", n, n, steps, weights=weights_of(n, counts))


def allgather_recursive_doubling(num_ranks: int) -> Schedule:
    """In step k ranks that differ in bit k exchange all their chunks: log₂N steps.

    Raises ValueError if N is not a power of two.
    """
    n = num_ranks
    if n & (n - 1):
        raise ValueError(f"num_ranks of recursive doubling and halving must be a power of two, got {n}")
    # Recursive halving backwards: a place sends the chunks that it would keep there, and so ends up with all.
    rounds = reversed(halves(n, nearest_first=False))
    steps = [Step.of(np.arange(n), half.peer, half.keeps, half.size) for half in rounds]
    return Schedule("allgather", "recursive_doubling", n, n, steps)


def allgather_bruck(num_ranks: int) -> Schedule:
    """In step k every rank sends all its chunks to the rank 2^k before it: ⌈log₂N⌉ steps, any N.

    A rank has its own chunk and those after it; the last step sends only the chunks that are still missing.
    """
    n = num_ranks
    ranks = np.arange(n)
    steps = []
    for distance in _distances(n):
        count = min(distance, n - distance)  # a rank has `distance` chunks so far, and lacks the others
        steps.append(wrapping(ranks, (ranks - distance) % n, first=ranks, count=count, num_chunks=n))
    return Schedule("allgather", "bruck", n, n, steps)


def allgather_pat(num_ranks: int) -> Schedule:
    """NCCL's PAT without a limit to its buffers: each chunk goes down a binomial tree, far ranks first.

    Messages carry chunks of many trees, so that it takes ⌈log₂N⌉ steps, any N.
    """
    n = num_ranks
    steps = []
    offsets = np.zeros(1, dtype=np.int64)  # the ranks that have a chunk so far, counted from the one that it comes from
    for distance in reversed(_distances(n)):
        sending = offsets[offsets + distance < n]  # others have none to send to
        src = np.tile(np.arange(n), sending.size)  # each rank is at each offset, in the tree of another chunk
        chunk = (src - np.repeat(sending, n)) % n
        steps.append(Step.of(src, (src + distance) % n, chunk))
        offsets = np.r_[offsets, sending + distance]
    return Schedule("allgather", "pat", n, n, steps)


def reduce_scatter_ring(num_ranks: int) -> Schedule:
    """A sum goes once round for each chunk, and ends with the rank that owns it: N-1 steps of one chunk, any N."""
    n = num_ranks
    ranks = np.arange(n)

    def steps() -> Iterator[Step]:
        # Each rank first sends the chunk of the rank before it, which is the last to get it.
        return once_round(ranks, (ranks + 1) % n, ranks, size=n, block=1, start=-1, reduce=True)

    return Schedule("reduce_scatter", "ring", n, n, steps)


def reduce_scatter(algorithm: str, allgather: Callable[[int], Schedule], num_ranks: int) -> Schedule:
    """An allgather backwards, which adds up each chunk that the allgather copies: as many steps, the far ranks first.

    Of recursive doubling it is recursive halving. Of PAT, where sums go up the trees, the near ranks come first.
    """
    steps = backwards(allgather(num_ranks).steps(), reduce=True)
    return Schedule("reduce_scatter", algorithm, num_ranks, num_ranks, steps)


def reduce_scatter_pairwise(num_ranks: int) -> Schedule:
    """In step s every rank sends to the rank s + 1 after it its share of that rank's chunk: N-1 steps, none relayed."""
    n = num_ranks
    ranks = np.arange(n)

    def steps() -> Iterator[Step]:
        for distance in range(1, n):
            peer = (ranks + distance) % n
            yield Step.of(ranks, peer, peer, reduce=True)

    return Schedule("reduce_scatter", "pairwise", n, n, steps)


def all_to_all_pairwise(num_ranks: int, *, counts: Sequence[Sequence[int]] | None = None) -> Schedule:
    """In step s every rank sends the chunk for the rank s + 1 after it directly to that rank: N-1 steps, any N.

    ``counts[i][j]`` are the elements that rank i has for rank j if they differ (MPI_Alltoallv), for example tokens that
    are routed to experts. Elements that stay on their rank are also part of the buffer.

    >>> all_to_all_pairwise(2, counts=[[1, 3], [0, 2]]).weights
    (1, 3, 0, 2)
    """
    n = num_ranks
    ranks = np.arange(n)
    weights = None
    if counts is not None:
        rows = [weights_of(n, row) or () for row in several("counts", counts)]
        if len(rows) != n:
            raise ValueError(f"counts must be {n} rows of {n} whole numbers, one per rank, got {len(rows)} rows")
        weights = tuple(itertools.chain.from_iterable(rows))

    def steps() -> Iterator[Step]:
        for distance in range(1, n):
            peer = (ranks + distance) % n
            yield Step.of(ranks, peer, chunk=ranks * n + peer)  # chunks are numbered by sender, then by receiver

    return Schedule("all_to_all", "pairwise", n, n * n, steps, weights=weights)


def all_to_all_bruck(num_ranks: int) -> Schedule:
    """In step k all chunks with bit k in the distance they have to go move 2^k ranks on: ⌈log₂N⌉ steps, any N.

    A chunk moves up to log₂N times, so more bytes travel in fewer messages.
    """
    n = num_ranks
    ranks = np.arange(n)

    def steps() -> Iterator[Step]:
        for bit in _distances(n):
            distances = np.flatnonzero(ranks & bit)  # of all distances that chunks travel, those with this bit
            distance = np.tile(distances, n)  # that each sent chunk travels in all; each rank sends all of these
            origin = np.repeat(ranks, distances.size)
            travelled = distance % bit  # by the lower bits, in the steps before
            src = (origin + travelled) % n
            yield Step.of(src, (src + bit) % n, chunk=origin * n + (origin + distance) % n)

    return Schedule("all_to_all", "bruck", n, n * n, steps)


def barrier_dissemination(num_ranks: int) -> Schedule:
    """In step k every rank tells the rank 2^k after it which ranks it has heard from: ⌈log₂N⌉ steps, any N."""
    ranks = np.arange(num_ranks)
    # The only chunk stands for the ranks that a rank has heard from; what arrives is added to them.
    steps = [Step.of(ranks, (ranks + distance) % num_ranks, 0, reduce=True) for distance in _distances(num_ranks)]
    return Schedule("barrier", "dissemination", num_ranks, 1, steps)


def _distances(n: int) -> list[int]:
    """1, 2, 4, … below the number of ranks."""
    return [1 << k for k in range((n - 1).bit_length())]
