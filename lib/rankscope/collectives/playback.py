"""`Playback`: the chunks of every rank, and the messages on their way, at any moment of a simulated schedule."""

from __future__ import annotations

import msgspec
import numpy as np

from ..cluster import Cluster
from .algorithms import build
from .best import best
from .messages import Seconds, messages
from .schedule import MOVES, Schedule
from .simulate import simulate
from .steps import Bools, Ints
from .verify import pass_step, verify

_MOST_SEGMENTS = 4  # more make chunks too small to be seen


class Playback(msgspec.Struct, frozen=True, eq=False):
    """A schedule with the times of its messages, on one cluster and at one size; `playback` makes it.

    The columns from `src` to `done_s` have a row per message: it leaves `src` at `start_s`, has arrived at `dst` at
    `end_s`, and at `done_s` has been added up or has replaced the receiver's chunks. The columns from `message` on have
    a row per chunk of a message, in the order in which they take effect: `message` is the message that it belongs to,
    `carries` the number of shares in it, and `leaves` the number in the receiver's chunk afterwards.
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
    leaves: Ints

    @property
    def finish_s(self) -> float:
        """When the last message has taken effect; 0 if there is none."""
        return float(self.done_s.max(initial=0.0))

    def held(self, at_s: float) -> Ints:
        """Return how many shares are in each chunk of each rank at this time, of shape (num_ranks, num_chunks).

        A message counts from its `done_s` on.
        """
        num_rows = np.searchsorted(self.done_s[self.message], at_s, side="right")
        shares = self.schedule.initial_chunks().astype(np.int64)
        receivers = self.dst[self.message[:num_rows]]
        # Where several rows are for one chunk, numpy keeps the last, which is the latest.
        shares[receivers, self.chunk[:num_rows]] = self.leaves[:num_rows]
        return shares

    def finished(self, at_s: float) -> Bools:
        """Return which chunks of which ranks are final and wanted there, of the same shape as `held`."""
        num_shares = 1 if self.schedule.collective in MOVES else self.schedule.num_ranks  # in a finished chunk
        return np.asarray(self.schedule.wanted() & (self.held(at_s) == num_shares))

    def on_the_way(self, at_s: float) -> Ints:
        """Return the messages that have started and have not taken effect yet."""
        return np.flatnonzero((self.start_s <= at_s) & (at_s < self.done_s))


def playback(schedule: Schedule, num_bytes: float, cluster: Cluster) -> Playback:
    """Return when each message of the schedule starts, arrives and takes effect by `simulate`, and what it carries.

    `num_bytes` is each rank's whole buffer. Raises ScheduleError for a schedule that does not `verify`. Raises
    ValueError for a barrier, which moves no data, and for inputs that `simulate` rejects.

    >>> from ..cluster import Link
    >>> from . import ALGORITHMS
    >>> ring = playback(ALGORITHMS["allreduce"]["ring"](3), 3.0, Cluster.uniform(3, Link(0.0, 1.0)))
    >>> ring.held(1.0).tolist()  # after the first of four steps
    [[1, 1, 2], [2, 1, 1], [1, 2, 1]]
    """
    if schedule.collective == "barrier":
        raise ValueError("a barrier moves no data: there is nothing to play")
    verify(schedule)
    timeline = simulate(schedule, num_bytes, cluster)
    sends = timeline.select(kind="send")
    receives = timeline.select(kind="receive")
    adding = timeline.select(kind="reduce")  # a span for each message that has bytes to add, in the order of messages

    # a row per chunk of a message; all transfers of a step read the shares from before the step
    shares = schedule.initial_chunks()[:, :, None].astype(np.int64)  # of how many ranks a chunk is the sum
    rows = [np.empty((4, 0), dtype=np.int64)]
    num_messages = 0  # of the steps before
    for step in schedule.steps():
        by_chunk = step.by_chunk()
        message, first = messages(schedule.num_ranks, by_chunk.src, by_chunk.dst)
        carried = pass_step(by_chunk, shares)[:, 0]
        rows.append(np.stack([num_messages + message, by_chunk.chunk, by_chunk.reduce, carried]))
        num_messages += first.size
    table = np.concatenate(rows, axis=1)
    message, chunk, reduce, _ = table
    done_s = receives.stop_s.copy()
    if len(adding):  # there are none if adding takes no time, and then a message is done when it arrives
        done_s[np.bincount(message, schedule.chunk_bytes(num_bytes)[chunk] * reduce) > 0] = adding.stop_s
    is_added = np.bincount(message, reduce, num_messages) > 0  # whether any of its chunks is
    message, chunk, reduce, carries = table[:, np.lexsort((sends.item[message], done_s[message]))]  # by time, then step
    held = schedule.initial_chunks().astype(np.int64)
    leaves = np.empty_like(carries)
    for row, place in enumerate(zip(receives.rank[message], chunk, strict=True)):
        held[place] = leaves[row] = held[place] * reduce[row] + carries[row]
    return Playback(
        schedule=schedule,
        num_bytes=num_bytes,
        gpus_per_node=cluster.gpus_per_node,
        src=sends.rank,
        dst=receives.rank,
        step=sends.item,
        reduce=is_added,
        start_s=sends.start_s,
        end_s=receives.stop_s,
        done_s=done_s,
        message=message,
        chunk=chunk,
        carries=carries,
        leaves=leaves,
    )


def playback_of(collective: str, algorithm: str, num_bytes: float, cluster: Cluster) -> Playback:
    """Return the playback of an algorithm by its name, with the options with which it is fastest on this cluster.

    It cuts chunks into at most 4 segments, so that each can be seen. Raises ValueError for an unknown name, for an
    algorithm that does not exist for so many ranks, and for inputs that `playback` rejects.
    """
    fastest = best(num_bytes, cluster, collective, [algorithm]).candidates[0]  # the only one
    options = dict(fastest.options)
    if "num_segments" in options:
        options["num_segments"] = min(options["num_segments"], _MOST_SEGMENTS)
    return playback(build(collective, algorithm, cluster.num_ranks, **options), num_bytes, cluster)
