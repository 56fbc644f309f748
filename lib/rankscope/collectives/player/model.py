"""`Playback`: the chunks of every rank, and the messages on their way, at any moment of a simulated schedule."""

from __future__ import annotations

from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...cluster import Cluster
from ..messages import Seconds, Times, joined
from ..port_clock import PortClock
from ..schedule import Schedule
from ..steps import Bools, Ints
from ..verify import pass_step, verify

verified = lru_cache(maxsize=32)(verify)


class Playback(msgspec.Struct, frozen=True, eq=False):
    """A schedule with the times of its messages, on one cluster and at one size; `playback` makes it.

    The columns from `src` to `done_s` have a row per message: it leaves `src` at `start_s`, has arrived at `dst` at
    `end_s`, and at `done_s` has been added up or has replaced the receiver's chunks. The columns from `message` on have
    a row per chunk of a message, in the order in which they take effect: `message` is the message that it belongs to,
    and `carries` the number of shares in it. `history` has the shares in each chunk of each rank before all rows, and
    after each of them, of shape (1 + rows, num_ranks, num_chunks).
    """

    schedule: Schedule
    num_bytes: float
    gpus_per_node: int
    src: Ints
    dst: Ints
    step: Ints
    reduce: Bools
    start_s: Seconds
    end_s: Seconds
    done_s: Seconds
    message: Ints
    chunk: Ints
    carries: Ints
    history: NDArray[np.int32]

    @property
    def finish_s(self) -> float:
        """When the last message has taken effect; 0 if there is none."""
        return float(self.done_s.max(initial=0.0))

    def held(self, at_s: float) -> NDArray[np.int32]:
        """Return how many shares are in each chunk of each rank at this time, of shape (num_ranks, num_chunks).

        A message counts from its `done_s` on.
        """
        num_rows = np.searchsorted(self.done_s[self.message], at_s, side="right")
        return np.asarray(self.history[num_rows])

    def on_the_way(self, at_s: float) -> Ints:
        """Return the messages that have started and have not taken effect yet."""
        return np.flatnonzero((self.start_s <= at_s) & (at_s < self.done_s))


def playback(schedule: Schedule, num_bytes: float, cluster: Cluster) -> Playback:
    """Return when each message of the schedule starts, arrives and takes effect by `simulate`, and what it carries.

    `num_bytes` is each rank's whole buffer. Raises ScheduleError for a schedule that does not `verify`. Raises
    ValueError for a barrier, which moves no data, and for inputs that `simulate` rejects.

    >>> from rankscope.cluster import Link
    >>> from rankscope.collectives import ALGORITHMS
    >>> ring = playback(ALGORITHMS["allreduce"]["ring"](3), 3.0, Cluster.uniform(3, Link(0.0, 1.0)))
    >>> ring.held(1.0).tolist()  # after the first of four steps
    [[1, 1, 2], [2, 1, 1], [1, 2, 1]]
    """
    if schedule.collective == "barrier":
        raise ValueError("a barrier moves no data: there is nothing to play")
    verified(schedule)
    held = schedule.initial_chunks().astype(np.int64)
    shares = held[:, :, None].copy()  # of how many ranks a chunk is the sum
    rows = [np.empty((4, 0), dtype=np.int64)]  # a row per chunk of a message
    parts: list[Times] = []
    num_messages = 0  # of the steps before
    for step, each, times in PortClock(schedule, num_bytes, cluster).passes():
        by_chunk = step.by_chunk()
        message = num_messages + np.repeat(each.of_row, np.intp(step.num_chunks))
        carried = pass_step(by_chunk, shares)[:, 0]  # all transfers of a step read the shares from before it
        rows.append(np.stack([message, by_chunk.chunk, by_chunk.reduce, carried]))
        parts.append(times)
        num_messages += each.src.size
    times = joined(parts)
    table = np.concatenate(rows, axis=1)
    order = np.lexsort((times.step[table[0]], times.done_s[table[0]]))  # by time, then step
    message, chunk, reduce, carries = table[:, order]
    history = np.empty((1 + len(message), *held.shape), dtype=np.int32)
    history[0] = held
    for row, place in enumerate(zip(times.dst[message], chunk, strict=True)):
        held[place] = held[place] * reduce[row] + carries[row]
        history[1 + row] = held
    return Playback(
        schedule,
        num_bytes,
        cluster.gpus_per_node,
        times.src,
        times.dst,
        times.step,
        times.reduce,
        times.start_s,
        times.end_s,
        times.done_s,
        message,
        chunk,
        carries,
        history,
    )
