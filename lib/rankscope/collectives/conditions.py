"""What each collective promises: who has which chunk before, and who must have it after (the MPI standard, ch. 6)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .schedule import MOVES, Ints, Schedule

Shares = NDArray[np.uint64]


def owners(schedule: Schedule) -> Ints:
    """Return the rank that owns each chunk, where the chunks are dealt out in equal runs."""
    return np.arange(schedule.num_chunks) * schedule.num_ranks // schedule.num_chunks


def origins(schedule: Schedule) -> Ints:
    """Return the rank that each chunk comes from, for the collectives of `MOVES`."""
    if schedule.collective in ("broadcast", "scatter"):
        return np.full(schedule.num_chunks, schedule.root)
    return owners(schedule)


def wanted(schedule: Schedule) -> NDArray[np.bool_]:
    """Return which rank must have which chunk in the end, of shape (num_ranks, num_chunks)."""
    ranks = np.arange(schedule.num_ranks)[:, None]
    who: Ints = ranks
    if schedule.collective in ("reduce", "gather"):
        who = np.full((1, 1), schedule.root)
    elif schedule.collective in ("scatter", "reduce_scatter"):
        who = owners(schedule)[None]
    elif schedule.collective == "all_to_all":
        who = _destinations(schedule)[None]
    return np.broadcast_to(ranks == who, (schedule.num_ranks, schedule.num_chunks))


def given(schedule: Schedule) -> NDArray[np.bool_]:
    """Return which rank has which chunk at the start, of shape (num_ranks, num_chunks)."""
    ranks = np.arange(schedule.num_ranks)[:, None]
    who = origins(schedule) if schedule.collective in MOVES else ranks
    return np.broadcast_to(ranks == who, (schedule.num_ranks, schedule.num_chunks))


def before(schedule: Schedule) -> Shares:
    """Return whose shares each rank has in each chunk at the start, as bits.

    Shape (num_ranks, num_chunks, words): where ranks add up, bit r of the words stands for rank r's share, counted
    once; where they only pass on, one bit says that the chunk is there.
    """
    ranks = np.arange(schedule.num_ranks)
    if schedule.collective in MOVES:
        return np.asarray(given(schedule)[:, :, None], dtype=np.uint64)
    words = -(-schedule.num_ranks // 64)
    shares = np.zeros((schedule.num_ranks, schedule.num_chunks, words), dtype=np.uint64)
    shares[ranks, :, ranks // 64] = (np.uint64(1) << (ranks % 64).astype(np.uint64))[:, None]
    return shares


def complete(schedule: Schedule) -> Shares:
    """Return the bits of a chunk in which nothing is missing."""
    start = before(schedule)
    return np.asarray(np.bitwise_or.reduce(start[:, 0, :], axis=0), dtype=np.uint64)


def _destinations(schedule: Schedule) -> Ints:
    each = schedule.num_chunks // schedule.num_ranks
    return np.arange(schedule.num_chunks) % each * schedule.num_ranks // each
