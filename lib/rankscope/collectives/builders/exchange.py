"""Collectives without a root: allgather, reduce-scatter, all-to-all and barrier.

Bruck and others (1997), Efficient algorithms for all-to-all communications in multiport message-passing systems;
Thakur, Rabenseifner and Gropp (2005); Hensgen, Finkel and Manber (1988), Two algorithms for barrier synchronization.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...values.checks import whole
from ..schedule import MOST_RANKS, Ints, Phase, Schedule
from .halving import halves
from .rings import once_round
from .rooted import weights_of, wrapping


def allgather_ring(num_ranks: int, *, counts: Sequence[int] | None = None) -> Schedule:
    """Everybody passes on what came last: N-1 steps of one chunk, any N.

    `counts` gives the elements of each rank where they differ (MPI_Allgatherv).
    """
    n, ranks = _ranks(num_ranks)
    phases = (once_round(ranks, (ranks + 1) % n, ranks, n),)
    return Schedule("allgather", "ring", n, n, lambda: phases, weights=weights_of(n, counts))


def allgather_recursive_doubling(num_ranks: int) -> Schedule:
    """In step k ranks that differ in bit k exchange all they have: log₂N steps.

    Raises ValueError where N is no power of two.
    """
    n, ranks = _power_of_two(num_ranks, "recursive_doubling")

    def phases() -> Iterator[Phase]:
        for peer, _, kept, size in reversed(list(halves(n, nearest_first=False))):
            yield Phase(ranks, peer, kept, size)

    return Schedule("allgather", "recursive_doubling", n, n, phases)


def allgather_bruck(num_ranks: int) -> Schedule:
    """In step k everybody sends all it has to the rank 2^k before it: ⌈log₂N⌉ steps, any N.

    What a rank has are its own chunk and those after it; the last step sends only what is still missing.
    """
    n, ranks = _ranks(num_ranks)

    def phases() -> Iterator[Phase]:
        for distance in _distances(n):
            yield wrapping(ranks, (ranks - distance) % n, ranks, min(distance, n - distance), n)

    return Schedule("allgather", "bruck", n, n, phases)


def reduce_scatter_ring(num_ranks: int) -> Schedule:
    """A sum goes once round for each chunk, and ends with the rank that owns it: N-1 steps of one chunk, any N."""
    n, ranks = _ranks(num_ranks)
    phases = (once_round(ranks, (ranks + 1) % n, ranks, n, start=-1, reduce=True),)
    return Schedule("reduce_scatter", "ring", n, n, lambda: phases)


def reduce_scatter_recursive_halving(num_ranks: int) -> Schedule:
    """In each step ranks exchange half of what they still sum, with the farthest first: log₂N steps.

    Raises ValueError where N is no power of two.
    """
    n, ranks = _power_of_two(num_ranks, "recursive_halving")

    def phases() -> Iterator[Phase]:
        for peer, given, _, size in halves(n, nearest_first=False):
            yield Phase(ranks, peer, given, size, True)

    return Schedule("reduce_scatter", "recursive_halving", n, n, phases)


def reduce_scatter_pairwise(num_ranks: int) -> Schedule:
    """In step s everybody sends its share of their chunk to the rank s + 1 after it: N-1 steps, nothing passed on."""
    n, ranks = _ranks(num_ranks)

    def phases() -> Iterator[Phase]:
        for distance in range(1, n):
            peer = (ranks + distance) % n
            yield Phase(ranks, peer, peer, 1, True)

    return Schedule("reduce_scatter", "pairwise", n, n, phases)


def all_to_all_pairwise(num_ranks: int) -> Schedule:
    """In step s everybody sends what is for the rank s + 1 after it straight there: N-1 steps, any N."""
    n, ranks = _ranks(num_ranks)

    def phases() -> Iterator[Phase]:
        for distance in range(1, n):
            peer = (ranks + distance) % n
            yield Phase(ranks, peer, ranks * n + peer)

    return Schedule("all_to_all", "pairwise", n, n * n, phases)


def all_to_all_bruck(num_ranks: int) -> Schedule:
    """In step k all chunks with bit k in the distance they have to go move 2^k ranks on: ⌈log₂N⌉ steps, any N.

    A chunk moves up to log₂N times, so that more bytes travel, in fewer messages.
    """
    n, ranks = _ranks(num_ranks)

    def phases() -> Iterator[Phase]:
        for bit in _distances(n):
            far = np.flatnonzero(ranks & bit)  # how far these chunks have to go in all
            origin, gone = np.repeat(ranks, far.size), np.tile(far % bit, n)
            chunk = origin * n + (origin + np.tile(far, n)) % n
            yield Phase((origin + gone) % n, (origin + gone + bit) % n, chunk)

    return Schedule("all_to_all", "bruck", n, n * n, phases)


def barrier_dissemination(num_ranks: int) -> Schedule:
    """In step k every rank tells the rank 2^k after it which ranks it has heard from: ⌈log₂N⌉ steps, any N."""
    n, ranks = _ranks(num_ranks)

    def phases() -> Iterator[Phase]:
        for distance in _distances(n):
            yield Phase(ranks, (ranks + distance) % n, 0, 1, True)

    return Schedule("barrier", "dissemination", n, 1, phases)


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
