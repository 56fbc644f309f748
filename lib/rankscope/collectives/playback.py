"""`Playback`: what every rank holds, and what is on its way, at any moment of a simulated schedule."""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from ..cluster import Cluster
from ..common.checks import number, of_type, whole
from .algorithms import build
from .best import best
from .schedule import MOVES, Ints, Schedule
from .simulate import Seconds, messages, simulate
from .verify import verify

_MOST_SEGMENTS = 4
Bools = NDArray[np.bool_]
MOST_CELLS, MOST_MESSAGES = 4096, 5000  # ranks × chunks, and what is sent: more cannot be told from one another


@attrs.frozen(eq=False)
class Playback:
    """A schedule with the times of its messages, on one cluster and at one size; `playback` makes it.

    A row per message: it leaves `src` at `start_s`, has arrived at `dst` at `end_s`, and has been added up, or replaced
    what was there, at `done_s`. A row per chunk of a message, in the order in which they take effect: `message` is the
    message it belongs to, `carries` the number of shares in it, `leaves` that in the receiver's chunk afterwards.
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
        """When the last message has taken effect; 0 where there is none."""
        return float(self.done_s.max(initial=0.0))

    @property
    def all_shares(self) -> int:
        """How many shares a finished chunk has: one from each rank where ranks add up, and else 1."""
        return 1 if self.schedule.collective in MOVES else self.schedule.num_ranks

    def held(self, at_s: float) -> Ints:
        """Return how many shares are in each chunk of each rank at this time, of shape (num_ranks, num_chunks).

        A message counts from its `done_s` on. Raises ValueError for a time that is not a finite number.
        """
        rows = self.message[: np.searchsorted(self.done_s[self.message], number("at_s", at_s), side="right")]
        found = self.schedule.given().astype(np.int64)
        found[self.dst[rows], self.chunk[: rows.size]] = self.leaves[: rows.size]  # of equal places the last one stays
        return found

    def finished(self, at_s: float) -> Bools:
        """Return which chunks of which ranks are what the collective promises there, of the same shape as `held`."""
        return np.asarray(self.schedule.wanted() & (self.held(at_s) == self.all_shares))

    def on_the_way(self, at_s: float) -> Ints:
        """Return the messages that have started and have not taken effect yet."""
        return np.flatnonzero((self.start_s <= number("at_s", at_s)) & (at_s < self.done_s))


def playback(schedule: Schedule, num_bytes: float, cluster: Cluster) -> Playback:
    """Return when each message of the schedule starts, arrives and takes effect, as `simulate` has it, and with what.

    `num_bytes` is each rank's whole buffer. Raises ScheduleError for a schedule that does not `verify`, and ValueError
    for a barrier, which moves no data, for more than 4,096 chunks over all ranks or 5,000 messages, and for what
    `simulate` refuses.

    >>> from ..cluster import Link
    >>> from . import ALGORITHMS
    >>> ring = playback(ALGORITHMS["allreduce"]["ring"](3), 3.0, Cluster.uniform(3, Link(0.0, 1.0)))
    >>> ring.held(1.0).tolist()  # after the first of four steps
    [[1, 1, 2], [2, 1, 1], [1, 2, 1]]
    """
    if of_type("schedule", schedule, Schedule).collective == "barrier":
        raise ValueError("a barrier moves no data: there is nothing to play")
    cells = schedule.num_ranks * schedule.num_chunks
    if cells > MOST_CELLS:
        raise ValueError(f"a player shows at most {MOST_CELLS} chunks, ranks × chunks, got {cells}: take fewer ranks")
    if (sent := verify(schedule).num_messages) > MOST_MESSAGES:
        raise ValueError(f"a player shows at most {MOST_MESSAGES} messages, got {sent}: take fewer ranks or segments")
    timeline = simulate(schedule, num_bytes, cluster, detail="messages")
    message, step, src, dst, chunk, adds, carries = _sent(schedule)
    start_s, end_s = timeline.select(kind="send").start_s, timeline.select(kind="send").stop_s
    done_s, adding = timeline.select(kind="receive").stop_s.copy(), timeline.select(kind="reduce")
    if len(adding):
        done_s[np.bincount(message, schedule.chunk_bytes(num_bytes)[chunk] * adds) > 0] = adding.stop_s
    _, first = np.unique(message, return_index=True)
    of_messages = src[first], dst[first], step[first], np.bincount(message, adds) > 0, start_s, end_s, done_s
    order = np.lexsort((step, done_s[message]))
    message, dst, chunk, adds, carries = (column[order] for column in (message, dst, chunk, adds, carries))
    leaves, now = np.empty_like(carries), schedule.given().astype(np.int64)
    for row, (to, which, added, shares) in enumerate(
        zip(dst.tolist(), chunk.tolist(), adds.tolist(), carries.tolist(), strict=True)
    ):
        now[to, which] = leaves[row] = shares + now[to, which] * added
    return Playback(schedule, float(num_bytes), cluster.gpus_per_node, *of_messages, message, chunk, carries, leaves)


def _sent(schedule: Schedule) -> Ints:
    """Columns with a row per chunk of a message: message, step, sender, receiver, chunk, whether it is added, and how
    many shares it has when it is sent: all transfers of a step read what was there before."""
    now, columns, num_messages = schedule.given().astype(np.int64), [np.empty((7, 0), dtype=np.int64)], 0
    for nth, step in enumerate(schedule.steps()):
        src, dst, chunk, _, reduce = step.by_chunk()
        message, first = messages(schedule.num_ranks, src, dst)
        shares = now[src, chunk]
        columns.append(np.array([num_messages + message, np.full_like(src, nth), src, dst, chunk, reduce, shares]))
        num_messages += first.size
        now[dst[~reduce], chunk[~reduce]] = shares[~reduce]
        np.add.at(now, (dst[reduce], chunk[reduce]), shares[reduce])
    return np.concatenate(columns, axis=1)


def playback_of(collective: str, algorithm: str, num_bytes: float, cluster: Cluster) -> Playback:
    """Return the playback of an algorithm by its name, with the options with which it is fastest on this cluster.

    It cuts chunks into at most 4 segments, so that each can be seen. Raises ValueError for an unknown name, for what
    does not exist for so many ranks, and for what `playback` refuses.
    """
    whole("num_ranks of cluster", of_type("cluster", cluster, Cluster).num_ranks, 1, MOST_CELLS)
    options = dict(best(num_bytes, cluster, collective, [algorithm]).candidates[0].options)
    if "num_segments" in options:
        options["num_segments"] = min(options["num_segments"], _MOST_SEGMENTS)
    return playback(build(collective, algorithm, cluster.num_ranks, **options), num_bytes, cluster)
