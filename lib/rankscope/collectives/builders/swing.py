"""Swing: halving and doubling whose peers swing round a ring."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..algorithms import ALGORITHMS, algorithm
from ..schedule import Schedule
from ..steps import Ints, Step
from .halving import folded
from .rooted import backwards

_SWING = "De Sensi and others (2024), Swing: short-cutting rings for higher bandwidth allreduce"


@algorithm("allreduce", "swing", ALGORITHMS["allreduce"]["halving_doubling"].form, _SWING)
def swing(num_ranks: int) -> Schedule:
    """Halving and doubling with peers that swing round a ring, at distances 1, 1, 3, 5, 11, …: short ways on a torus.

    On a network with equal links between all pairs it costs as much as `halving_doubling`. Other N fold and unfold.
    """

    def core(rank_at: Ints) -> Iterable[Step]:
        p = rank_at.size
        # Backwards, from a place's own chunk: what a place and its peer add up after a round, they have before it.
        chunks = np.arange(p)[:, None]
        allgather = []
        for step in reversed(range(p.bit_length() - 1)):
            peer = swing_peers(p, step)
            width = chunks.shape[1]
            allgather.append(Step.of(np.repeat(rank_at, width), np.repeat(rank_at[peer], width), chunks.ravel()))
            chunks = np.concatenate([chunks, chunks[peer]], axis=1)
        return [*backwards(allgather, reduce=True), *allgather]

    return folded("allreduce", "swing", num_ranks, core)


def swing_peers(num_ranks: int, step: int) -> Ints:
    """Return each rank's peer: even ranks look ahead by the sum of (-2)^i up to `step`, odd ones back.

    >>> swing_peers(8, 0).tolist(), swing_peers(8, 1).tolist()
    ([1, 0, 3, 2, 5, 4, 7, 6], [7, 2, 1, 4, 3, 6, 5, 0])
    """
    ranks = np.arange(num_ranks)
    distance = (1 - (-2) ** (step + 1)) // 3
    return np.asarray((ranks + np.where(ranks % 2 == 0, distance, -distance)) % num_ranks)
