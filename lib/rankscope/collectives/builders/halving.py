"""Allreduce between pairs at growing distances: log₂N steps for powers of two, fold and unfold for other N.

Recursive halving and doubling: Rabenseifner (2004); Thakur, Rabenseifner and Gropp (2005). Swing: De Sensi and others
(2024), Swing: short-cutting rings for higher bandwidth allreduce.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from ..schedule import Schedule
from ..steps import Ints, Step
from .rooted import backwards


def recursive_doubling(num_ranks: int) -> Schedule:
    """The butterfly: in step k ranks that differ in bit k exchange and add whole buffers.

    If N is not a power of two, the first 2(N - p) ranks fold onto half of them before and unfold after, p = 2^⌊log₂N⌋.
    """

    def core(p: int, rank_at: Ints) -> Iterable[Step]:
        places = np.arange(p)
        return [Step.of(rank_at, rank_at[places ^ (1 << k)], 0, reduce=True) for k in range(p.bit_length() - 1)]

    return _folded("allreduce", "recursive_doubling", num_ranks, core, num_chunks=1)


def halving_doubling(num_ranks: int) -> Schedule:
    """Reduce-scatter by halving what is exchanged while distance doubles, then allgather the other way round.

    The largest messages go to the nearest ranks. Other N fold and unfold as in `recursive_doubling`.
    """

    def core(p: int, rank_at: Ints) -> Iterable[Step]:
        halving = [Step.of(rank_at, rank_at[half.peer], half.sends, half.size, reduce=True) for half in halves(p)]
        return [*halving, *backwards(halving)]

    return _folded("allreduce", "halving_doubling", num_ranks, core)


def reduce_scatter_gather(num_ranks: int, *, root: int = 0) -> Schedule:
    """Reduce: a reduce-scatter as in `halving_doubling`, then a gather to the root on a binomial tree (Rabenseifner).

    If N is not a power of two, N - p ranks fold onto others before, and none of them is the root.
    """

    def core(p: int, rank_at: Ints) -> Iterable[Step]:
        rounds = halves(p)
        for half in rounds:
            yield Step.of(rank_at, rank_at[half.peer], half.sends, half.size, reduce=True)
        for k, half in reversed(list(enumerate(rounds))):
            # Round k of the halving, backwards: of each pair of places that differ in bit k, the upper one hands its
            # chunks to the lower one. Places from 2^(k+1) on have already done so.
            lower = np.arange(1 << k)
            upper = lower + (1 << k)
            yield Step.of(rank_at[upper], rank_at[lower], half.keeps[upper], half.size)

    return _folded("reduce", "reduce_scatter_gather", num_ranks, core, root)


def swing(num_ranks: int) -> Schedule:
    """Halving and doubling with peers that swing round a ring, at distances 1, 1, 3, 5, 11, …: short ways on a torus.

    On a network with equal links between all pairs it costs as much as `halving_doubling`. Other N fold and unfold.
    """

    def core(p: int, rank_at: Ints) -> Iterable[Step]:
        peers = [swing_peers(p, k) for k in range(p.bit_length() - 1)]
        # blocks[k] has a row for each place: the chunks that it still adds up after k rounds, p / 2^k of them. After
        # the last round this is its own chunk. Before a round it is what the place and its peer add up after it.
        blocks = [np.arange(p)[:, None]]
        for peer in reversed(peers):
            blocks.insert(0, np.concatenate([blocks[0], blocks[0][peer]], axis=1))
        reduce_scatter = []
        for peer, block in zip(peers, blocks[1:], strict=True):
            sent = block[peer]  # each place sends what its peer goes on with
            src = np.repeat(rank_at, sent.shape[1])
            dst = np.repeat(rank_at[peer], sent.shape[1])
            reduce_scatter.append(Step.of(src, dst, sent.ravel(), reduce=True))
        return [*reduce_scatter, *backwards(reduce_scatter)]  # the latter is the allgather

    return _folded("allreduce", "swing", num_ranks, core)


def swing_peers(num_ranks: int, step: int) -> Ints:
    """Return each rank's peer: even ranks look ahead by the sum of (-2)^i up to `step`, odd ones back.

    >>> swing_peers(8, 0).tolist(), swing_peers(8, 1).tolist()
    ([1, 0, 3, 2, 5, 4, 7, 6], [7, 2, 1, 4, 3, 6, 5, 0])
    """
    ranks = np.arange(num_ranks)
    distance = (1 - (-2) ** (step + 1)) // 3
    return np.asarray((ranks + np.where(ranks % 2 == 0, distance, -distance)) % num_ranks)


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
    bits = list(range(p.bit_length() - 1))
    if not nearest_first:
        bits.reverse()
    rounds = []
    size = p
    for bit in bits:
        size //= 2
        keeps_upper = (places >> bit & 1).astype(bool)  # of each place, whether it keeps the upper half of its chunks
        sends = np.where(keeps_upper, keeps, keeps + size)
        keeps = np.where(keeps_upper, keeps + size, keeps)
        rounds.append(Halving(places ^ (1 << bit), sends, keeps, size))
    return rounds


def _folded(
    collective: str,
    algorithm: str,
    num_ranks: int,
    core: Callable[[int, Ints], Iterable[Step]],
    root: int = 0,
    num_chunks: int | None = None,
) -> Schedule:
    """Run `core(p, rank_at)` among p ranks, a power of two, after the others have sent their share to one of them.

    ``rank_at[place]`` is the rank at each of the p places of the core. In a reduce the root is at place 0; in an
    allreduce the others get the sum in the end. There are p chunks if `num_chunks` is None.
    """
    n = num_ranks
    p = 1 << (n.bit_length() - 1)
    if num_chunks is None:
        num_chunks = p
    # Of the first 2(n - p) ranks, each even one folds onto the odd one after it. The core has these and the rest.
    folded = np.arange(0, 2 * (n - p), 2)
    onto = folded + 1
    rank_at = np.r_[onto, np.arange(2 * (n - p), n)]
    if collective == "reduce":  # move all ranks on by as many, so that the root is at place 0
        shift = root - rank_at[0]
        folded = (folded + shift) % n
        onto = (onto + shift) % n
        rank_at = (rank_at + shift) % n
    steps = list(core(p, rank_at))
    if folded.size:
        steps.insert(0, Step.of(folded, onto, 0, num_chunks, reduce=True))
        if collective == "allreduce":
            steps.append(Step.of(onto, folded, 0, num_chunks))
    return Schedule(collective, algorithm, n, num_chunks, steps, root)
