"""Allreduce between pairs at growing distances: log₂N steps for powers of two, fold and unfold for other N.

Sources: Thakur, Rabenseifner and Gropp (2005) for doubling; Rabenseifner (2004), Optimization of collective reduction
operations, for halving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from ..algorithms import algorithm
from ..schedule import Schedule
from ..steps import Ints, Step
from .rooted import backwards


@algorithm(
    "allreduce",
    "recursive_doubling",
    lambda t: t.core.takes(t.core.log, t.core.log, t.core.log) + t.fold_s,
)
def recursive_doubling(num_ranks: int) -> Schedule:
    """The butterfly: in step k ranks that differ in bit k exchange and add whole buffers.

    If N is not a power of two, the first 2(N - p) ranks fold onto half of them before and unfold after, p = 2^⌊log₂N⌋.
    """

    def core(rank_at: Ints) -> Iterable[Step]:
        return [Step.of(rank_at, rank_at[half.peer], 0, reduce=True) for half in halves(rank_at.size)]

    return folded("allreduce", "recursive_doubling", num_ranks, core, num_chunks=1)


@algorithm(
    "allreduce",
    "halving_doubling",
    lambda t: t.core.takes(2 * t.core.log, 2 * t.core.others, t.core.others) + t.fold_s,
)
def halving_doubling(num_ranks: int) -> Schedule:
    """Reduce-scatter by halving what is exchanged while distance doubles, then allgather the other way round.

    The largest messages go to the nearest ranks. Other N fold and unfold as in `recursive_doubling`.
    """

    def core(rank_at: Ints) -> Iterable[Step]:
        down = [
            Step.of(rank_at, rank_at[half.peer], half.sends, half.size, reduce=True) for half in halves(rank_at.size)
        ]
        return [*down, *backwards(down)]

    return folded("allreduce", "halving_doubling", num_ranks, core)


@algorithm(
    "reduce",
    "reduce_scatter_gather",
    lambda t: t.if_power_of_two(t.takes(2 * t.log, 2 * t.others, t.others)),
)
def reduce_scatter_gather(num_ranks: int, *, root: int = 0) -> Schedule:
    """Reduce: a reduce-scatter as in `halving_doubling`, then a gather to the root on a binomial tree (Rabenseifner).

    If N is not a power of two, N - p ranks fold onto others before, and none of them is the root.
    """

    def core(rank_at: Ints) -> Iterable[Step]:
        rounds = halves(rank_at.size)
        for half in rounds:
            yield Step.of(rank_at, rank_at[half.peer], half.sends, half.size, reduce=True)
        for k, half in reversed(list(enumerate(rounds))):
            # Round k of the halving, backwards: of each pair of places that differ in bit k, the upper one hands its
            # chunks to the lower one. Places from 2^(k+1) on have already done so.
            upper = np.arange(1 << k, 2 << k)
            yield Step.of(rank_at[upper], rank_at[half.peer[upper]], half.keeps[upper], half.size)

    return folded("reduce", "reduce_scatter_gather", num_ranks, core, root)


class Halving(NamedTuple):
    """One step of recursive halving, with columns that have an entry per place.

    A place keeps `size` chunks from `keeps` on, half of what it kept before, and sends its `peer` the other half, the
    `size` chunks from `sends` on.
    """

    peer: Ints
    sends: Ints
    keeps: Ints
    size: int


def halves(p: int, nearest_first: bool = True) -> list[Halving]:
    """Return the steps of recursive halving among p places, a power of two.

    With the farthest first, place r is left with chunk r.

    >>> for peer, sends, keeps, size in halves(4, nearest_first=False):
    ...     print(peer.tolist(), sends.tolist(), keeps.tolist(), size)
    [2, 3, 0, 1] [2, 2, 0, 0] [0, 0, 2, 2] 2
    [1, 0, 3, 2] [1, 0, 3, 2] [0, 1, 2, 3] 1
    """
    places = np.arange(p)
    keeps = np.zeros(p, dtype=np.int64)
    rounds = []
    size = p
    bits = range(p.bit_length() - 1)
    for bit in bits if nearest_first else reversed(bits):
        size //= 2
        is_upper = places >> bit & 1  # of each place, whether it keeps the upper half of its chunks
        rounds.append(Halving(places ^ (1 << bit), keeps + (1 - is_upper) * size, keeps + is_upper * size, size))
        keeps = rounds[-1].keeps
    return rounds


def folded(
    collective: str,
    algorithm: str,
    num_ranks: int,
    core: Callable[[Ints], Iterable[Step]],
    root: int = 0,
    num_chunks: int | None = None,
) -> Schedule:
    """Run `core(rank_at)` among p ranks, a power of two, after the others have sent their share to one of them.

    ``rank_at[place]`` is the rank at each of the p places of the core. In a reduce the root is at place 0; in an
    allreduce the others get the sum in the end. There are p chunks if `num_chunks` is None.
    """
    n = num_ranks
    p = 1 << (n.bit_length() - 1)
    if num_chunks is None:
        num_chunks = p
    # Of the first 2(n - p) ranks, each even one folds onto the odd one after it. The core has these and the rest.
    even = np.arange(0, 2 * (n - p), 2)
    rank_at = np.r_[even + 1, np.arange(2 * (n - p), n)]
    if collective == "reduce":  # move all ranks on by as many, so that the root is at place 0
        shift = root - rank_at[0]
        even = (even + shift) % n
        rank_at = (rank_at + shift) % n
    steps = list(core(rank_at))
    if even.size:
        fold = [Step.of(even, rank_at[: even.size], 0, num_chunks, reduce=True)]
        steps = [*fold, *steps]
        if collective == "allreduce":
            steps += backwards(fold)
    return Schedule(collective, algorithm, n, num_chunks, steps, root)
