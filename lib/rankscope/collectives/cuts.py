"""Where the chunks of a schedule begin and end among the elements that ranks pass."""

from __future__ import annotations

import itertools

import numpy as np

from ..values.checks import count_of
from .conditions import given
from .schedule import Schedule

RUNS_IN, RUNS_OUT = ("gather", "allgather"), ("scatter", "reduce_scatter")  # a rank passes, gets, its own run only


def chunk_ends(schedule: Schedule, num_elements: int) -> list[int]:
    """Return where the chunks begin and end, as num_chunks + 1 numbers, where each rank passes `num_elements`.

    They count through the whole buffer, and in all_to_all through those of all ranks. Chunks are as even as can be, or
    as the schedule's weights say. Raises ValueError where a chunk would be left without an element.

    >>> from . import ALGORITHMS
    >>> chunk_ends(ALGORITHMS["allreduce"]["ring"](4), 10)
    [0, 2, 5, 7, 10]
    """
    if schedule.weights is not None:
        return [0, *itertools.accumulate(schedule.weights)]
    n = schedule.num_ranks
    parts = n if schedule.collective in (*RUNS_IN, "all_to_all") else 1  # who passes a part of the whole
    if num_elements * parts < schedule.num_chunks and schedule.collective != "barrier":
        least = count_of(schedule.num_chunks // parts, "element")
        raise ValueError(f"tensors must have at least {least}, one for each chunk, got {num_elements}")
    if schedule.collective == "all_to_all" and num_elements % n:
        raise ValueError(f"tensors of all_to_all must have a multiple of {n} elements, got {num_elements}")
    return [chunk * num_elements * parts // schedule.num_chunks for chunk in range(schedule.num_chunks + 1)]


def check_counts(schedule: Schedule, rank: int, num_elements: int) -> None:
    """Raise ValueError where the schedule has weights, and a rank passes another number of elements than they say."""
    if schedule.weights is None:
        return
    chunks = given(schedule)[rank]
    count = int(np.array(schedule.weights)[chunks].sum())
    if chunks.any() and num_elements != count:
        raise ValueError(f"rank {rank} must pass the {count} elements that the counts add up to, got {num_elements}")
