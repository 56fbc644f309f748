"""What a schedule puts on each link and into each rank's memory, counted from its transfers."""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from ..values.checks import number, of_type
from .schedule import MOVES, Schedule
from .verify import given, wanted

Bytes = NDArray[np.float64]


@attrs.frozen(eq=False)
class Traffic:
    """Of one collective: `link_bytes[src, dst]`, how many messages and steps, and each rank's `peak_buffer_bytes`.

    The peak counts the chunks that a rank holds and one message for each step of lag that comes in to be added. A chunk
    that has been passed on and is not part of the rank's result is freed.
    """

    link_bytes: Bytes
    num_steps: int
    num_messages: int
    peak_buffer_bytes: Bytes

    @property
    def sent_bytes(self) -> Bytes:
        """What each rank sends."""
        return np.asarray(self.link_bytes.sum(axis=1))

    @property
    def received_bytes(self) -> Bytes:
        """What each rank receives."""
        return np.asarray(self.link_bytes.sum(axis=0))


def traffic(schedule: Schedule, num_bytes: float) -> Traffic:
    """Return what the schedule moves where each rank's whole buffer has `num_bytes`.

    Raises ValueError for bytes that are not a finite number from 0 on.

    >>> from . import ALGORITHMS
    >>> traffic(ALGORITHMS["allreduce"]["ring"](4), 1024).link_bytes[0].tolist()
    [0.0, 1536.0, 0.0, 0.0]
    """
    sizes = of_type("schedule", schedule, Schedule).chunk_bytes(number("num_bytes", num_bytes, 0))
    ranks = schedule.num_ranks
    moves, wants = schedule.collective in MOVES, wanted(schedule)
    holds = given(schedule).copy()
    link = np.zeros(ranks * ranks)
    held_bytes = holds @ sizes
    peak, scratch = held_bytes, np.zeros((schedule.lag, ranks))
    num_steps = num_messages = 0
    for nth, step in enumerate(schedule.steps()):
        rows = step.by_chunk()
        pairs = rows.src * ranks + rows.dst
        np.add.at(link, pairs, sizes[rows.chunk])
        message, place = np.unique(pairs, return_inverse=True)
        num_messages += message.size
        num_steps += 1
        added = scratch[nth % schedule.lag]  # the largest message that each rank receives in the step to add it
        added[:] = 0
        np.maximum.at(added, message % ranks, np.bincount(place, sizes[rows.chunk] * rows.reduce, message.size))
        if moves:
            holds[rows.dst, rows.chunk] = True
            held_bytes = holds @ sizes
        peak = np.maximum(peak, held_bytes + scratch.sum(axis=0))
        if moves:
            holds[rows.src, rows.chunk] &= wants[rows.src, rows.chunk]
    return Traffic(link.reshape(ranks, ranks), num_steps, num_messages, peak)
