"""The bidirectional ring, which uses every link both ways at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..algorithms import algorithm
from ..schedule import Schedule
from ..steps import Step
from .rings import RING, ring_s


@algorithm("allreduce", "bidirectional_ring", ring_s, RING)  # with one port it takes as long as the ring
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
