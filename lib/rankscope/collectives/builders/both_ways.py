"""Allreduce on a ring that is used both ways at once: the bidirectional ring, and swing.

Source of the latter: De Sensi and others (2024), Swing: short-cutting rings for higher bandwidth allreduce.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ..algorithms import ALGORITHMS, algorithm
from ..schedule import Schedule
from ..steps import Ints, Step
from .halving import folded
from .rings import ring_s
from .rooted import backwards


@algorithm("allreduce", "bidirectional_ring", ring_s)  # with one port it takes as long as the ring
def bidirectional_ring(num_ranks: int) -> Schedule:
    """The ring used both ways at once: partial sums meet in the middle, in half as many steps of two messages each.

    As fast as the ring if a rank sends one message at a time (`Cluster.ports` 1), twice as fast with two at once.
    """
    n = num_ranks
    ranks = np.arange(n)
    right = (ranks + 1) % n
    left = (ranks - 1) % n
    farthest = n // 2  # hops of a sum from the left; one more than from the right if the number of ranks is even

    def steps() -> Iterator[Step]:
        # Rank r owns chunk r. A rank sends the chunks whose owners are so many hops ahead, behind it if negative.
        for reduce, hops_ahead in ((True, range(farthest, 0, -1)), (False, range(0, -farthest, -1))):
            to_right = Step.of(ranks, right, 0, 1, reduce)
            both_ways = Step.joined(to_right, Step.of(ranks, left, 0, 1, reduce))
            for hops in hops_ahead:
                if n % 2 == 0 and hops in (farthest, 1 - farthest):
                    yield to_right._replace(chunk=(ranks + hops) % n)
                else:
                    yield both_ways._replace(chunk=np.r_[ranks + hops, ranks - hops] % n)

    return Schedule("allreduce", "bidirectional_ring", n, n, steps, ports=2)


@algorithm("allreduce", "swing", ALGORITHMS["allreduce"]["halving_doubling"].form)
def swing(num_ranks: int) -> Schedule:
    """Halving and doubling with peers that swing round a ring, at distances 1, 1, 3, 5, 11, …: short ways on a torus.

    On a network with equal links between all pairs it costs as much as `halving_doubling`. Other N fold and unfold.
    """

    def core(rank_at: Ints) -> Iterable[Step]:
        p = rank_at.size
        place = np.arange(p)
        # Backwards, from a place's own chunk: what a place and its peer add up after a round, they have before it.
        chunks = place[:, None]
        allgather = []
        for step in reversed(range(p.bit_length() - 1)):
            # Even places look ahead by the sum of (-2)^i up to this step, odd ones back.
            distance = (1 - (-2) ** (step + 1)) // 3
            peer = (place + np.where(place % 2 == 0, distance, -distance)) % p
            width = chunks.shape[1]
            allgather.append(Step.of(np.repeat(rank_at, width), np.repeat(rank_at[peer], width), chunks.ravel()))
            chunks = np.concatenate([chunks, chunks[peer]], axis=1)
        return [*backwards(allgather, reduce=True), *allgather]

    return folded("allreduce", "swing", num_ranks, core)
