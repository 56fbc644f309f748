"""Who holds whose share of which chunk, before any step of a schedule."""

from __future__ import annotations

from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ..values.checks import whole
from .conditions import Shares, before, origins
from .schedule import MOVES, Schedule, Step


def holdings(schedule: Schedule, step: int) -> NDArray[np.bool_]:
    """Return what is where before a step, as [rank, chunk, origin]: whether the rank's chunk has the origin's share.

    `step` counts from 0, and ``schedule.num_steps`` asks for the end. Where ranks only pass on, the one origin of a
    chunk is the rank that it comes from. Nothing is checked here: of what nobody has nothing arrives, and a share that
    is added twice looks like one; `verify` tells. Raises ValueError for a step that does not exist.

    >>> from . import ALGORITHMS
    >>> ring = ALGORITHMS["allreduce"]["ring"](3)
    >>> holdings(ring, 1)[1].astype(int).tolist()  # rank 1 has added rank 0's chunk 0 to its own
    [[1, 1, 0], [0, 1, 0], [0, 1, 0]]
    """
    shares = before(schedule)
    for transfers in islice(schedule.steps(), whole("step", step, 0, schedule.num_steps)):
        _transfer(shares, transfers.by_chunk())
    chunks = np.arange(schedule.num_chunks)
    there = np.zeros((schedule.num_ranks, schedule.num_chunks, schedule.num_ranks), dtype=bool)
    if schedule.collective in MOVES:
        there[:, chunks, origins(schedule)] = shares.any(axis=2)
        return there
    for origin in range(schedule.num_ranks):
        there[:, :, origin] = shares[:, :, origin // 64] >> np.uint64(origin % 64) & np.uint64(1)
    return there


def _transfer(shares: Shares, rows: Step) -> None:
    """Let the transfers of one step, a row for each chunk, take place at once."""
    sent, added = shares[rows.src, rows.chunk], rows.reduce
    shares[rows.dst[~added], rows.chunk[~added]] = sent[~added]
    np.bitwise_or.at(shares, (rows.dst[added], rows.chunk[added]), sent[added])
