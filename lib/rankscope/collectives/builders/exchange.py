"""Collectives without a root: allgather, reduce-scatter, all-to-all and barrier.

Sources: Thakur, Rabenseifner and Gropp (2005) for rings, doubling and pairs; Bruck and others (1997), Efficient
algorithms for all-to-all communications in multiport systems; Jeaugey (2025), PAT: a new algorithm for all-gather and
reduce-scatter operations at scale (arXiv 2506.20252); Hensgen, Finkel and Manber (1988), Two algorithms for barrier
synchronization.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..algorithms import algorithm
from ..cost import Terms, doubling_added_s, doubling_of_powers_s, doubling_s, one_by_one_added_s, one_by_one_s
from ..schedule import Schedule
from ..steps import Step
from .halving import halves
from .rings import rings_along
from .rooted import backwards_as, distances, wrapping


@algorithm("allgather", "ring", one_by_one_s)
def allgather_ring(num_ranks: int) -> Schedule:
    """Every rank passes on the chunk that it received last: N-1 steps of one chunk, any N."""
    steps = list(rings_along((num_ranks,)).once_round(0, reduce=False))
    return Schedule("allgather", "ring", num_ranks, num_ranks, steps)


@algorithm("reduce_scatter", "ring", one_by_one_added_s)
def reduce_scatter_ring(num_ranks: int) -> Schedule:
    """A sum goes once round for each chunk, and ends with the rank that owns it: N-1 steps of one chunk, any N."""
    # Each rank first sends the chunk of the rank before it, which is the last to get it.
    steps = list(rings_along((num_ranks,)).once_round(-1, reduce=True))
    return Schedule("reduce_scatter", "ring", num_ranks, num_ranks, steps)


@backwards_as(
    "reduce_scatter",
    "recursive_halving",
    lambda t: t.if_power_of_two(t.takes(t.log, t.others, t.others)),
)
@algorithm("allgather", "recursive_doubling", doubling_of_powers_s)
def allgather_recursive_doubling(num_ranks: int) -> Schedule:
    """In step k ranks that differ in bit k exchange all their chunks: log₂N steps.

    Backwards, a rank sends away half of the chunks that it still adds up, the far ranks first. Raises ValueError if N
    is not a power of two.
    """
    n = num_ranks
    if n & (n - 1):
        raise ValueError(f"num_ranks of recursive doubling and halving must be a power of two, got {n}")
    # Recursive halving backwards: a place sends the chunks that it would keep there, and so ends up with all.
    rounds = reversed(halves(n, nearest_first=False))
    steps = [Step.of(np.arange(n), half.peer, half.keeps, half.size) for half in rounds]
    return Schedule("allgather", "recursive_doubling", n, n, steps)


@algorithm("reduce_scatter", "pairwise", one_by_one_added_s)
def reduce_scatter_pairwise(num_ranks: int) -> Schedule:
    """In step s every rank sends to the rank s + 1 after it its share of that rank's chunk: N-1 steps, none relayed."""
    n = num_ranks
    ranks = np.arange(n)
    peers = [(ranks + distance) % n for distance in range(1, n)]
    return Schedule("reduce_scatter", "pairwise", n, n, [Step.of(ranks, peer, peer, reduce=True) for peer in peers])


@backwards_as("reduce_scatter", "bruck", doubling_added_s)
@algorithm("allgather", "bruck", doubling_s)
def allgather_bruck(num_ranks: int) -> Schedule:
    """In step k every rank sends all its chunks to the rank 2^k before it: ⌈log₂N⌉ steps, any N.

    A rank has its own chunk and those after it; the last step sends only the chunks that are still missing.
    """
    n = num_ranks
    ranks = np.arange(n)
    steps = []
    for distance in distances(n):
        count = min(distance, n - distance)  # a rank has `distance` chunks so far, and lacks the others
        steps.append(wrapping(ranks, (ranks - distance) % n, first=ranks, count=count, num_chunks=n))
    return Schedule("allgather", "bruck", n, n, steps)


@backwards_as("reduce_scatter", "pat", doubling_added_s)
@algorithm("allgather", "pat", doubling_s)
def allgather_pat(num_ranks: int) -> Schedule:
    """NCCL's PAT without a limit to its buffers: each chunk goes down a binomial tree, far ranks first.

    Messages carry chunks of many trees, so that it takes ⌈log₂N⌉ steps, any N. Backwards, sums go up the trees,
    the near ranks first.
    """
    n = num_ranks
    steps = []
    offsets = np.zeros(1, dtype=np.int64)  # the ranks that have a chunk so far, counted from the one that it comes from
    for distance in reversed(distances(n)):
        sending = offsets[offsets + distance < n]  # others have none to send to
        src = np.tile(np.arange(n), sending.size)  # each rank is at each offset, in the tree of another chunk
        chunk = (src - np.repeat(sending, n)) % n
        steps.append(Step.of(src, (src + distance) % n, chunk))
        offsets = np.r_[offsets, sending + distance]
    return Schedule("allgather", "pat", n, n, steps)


@algorithm("all_to_all", "pairwise", one_by_one_s)
def all_to_all_pairwise(num_ranks: int) -> Schedule:
    """In step s every rank sends the chunk for the rank s + 1 after it directly to that rank: N-1 steps, any N."""
    n = num_ranks
    ranks = np.arange(n)

    def steps() -> Iterator[Step]:
        for distance in range(1, n):
            peer = (ranks + distance) % n
            yield Step.of(ranks, peer, chunk=ranks * n + peer)  # chunks are numbered by sender, then by receiver

    return Schedule("all_to_all", "pairwise", n, n * n, steps)


def _bruck_s(t: Terms) -> Any:
    """⌈log₂N⌉ messages; the k-th carries the blocks whose distance has bit k: S/2 if N is a power of two."""
    num_hops = sum(distance.bit_count() for distance in range(t.num_ranks))  # of all blocks of a rank
    return t.takes(t.log, num_hops / t.num_ranks)


@algorithm("all_to_all", "bruck", _bruck_s)
def all_to_all_bruck(num_ranks: int) -> Schedule:
    """In step k all chunks with bit k in the distance they have to go move 2^k ranks on: ⌈log₂N⌉ steps, any N.

    A chunk moves up to log₂N times, so more bytes travel in fewer messages.
    """
    n = num_ranks
    ranks = np.arange(n)

    def steps() -> Iterator[Step]:
        for bit in distances(n):
            moving = np.flatnonzero(ranks & bit)  # of all distances that chunks travel, those with this bit
            distance = np.tile(moving, n)  # that each sent chunk travels in all; each rank sends all of these
            origin = np.repeat(ranks, moving.size)
            travelled = distance % bit  # by the lower bits, in the steps before
            src = (origin + travelled) % n
            yield Step.of(src, (src + bit) % n, chunk=origin * n + (origin + distance) % n)

    return Schedule("all_to_all", "bruck", n, n * n, steps)


@algorithm("barrier", "dissemination", lambda t: t.takes(t.log, 0))
def barrier_dissemination(num_ranks: int) -> Schedule:
    """In step k every rank tells the rank 2^k after it which ranks it has heard from: ⌈log₂N⌉ steps, any N."""
    ranks = np.arange(num_ranks)
    # The only chunk stands for the ranks that a rank has heard from; what arrives is added to them.
    steps = [Step.of(ranks, (ranks + distance) % num_ranks, 0, reduce=True) for distance in distances(num_ranks)]
    return Schedule("barrier", "dissemination", num_ranks, 1, steps)
