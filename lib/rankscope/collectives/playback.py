"""`Playback`: what every rank holds, and what is on its way, at any moment of a simulated schedule."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from ..cluster import Cluster
from ..values.checks import number, of_type, whole
from .best import best
from .builders import build
from .schedule import MOVES, Ints, Schedule, Step
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
    steps = []
    sent = 0
    for step in schedule.steps():
        steps.append(_messages(schedule.num_ranks, step))
        sent += steps[-1][0].size
        if sent > MOST_MESSAGES:
            raise ValueError(f"a player shows at most {MOST_MESSAGES} messages, got more: take fewer ranks or segments")
    verify(schedule)
    timeline = simulate(schedule, num_bytes, cluster, detail="messages")
    columns = [(src, dst, src * 0 + nth, reduce) for nth, (src, dst, reduce, *_) in enumerate(steps)]
    src, dst, step_of, reduce = _joined(columns, 4)
    out = timeline.select(kind="send")
    done_s = timeline.select(kind="receive").stop_s.copy()
    firsts = np.cumsum([0, *(one[0].size for one in steps)])
    rows = [(place + first, rows) for first, (*_, place, rows) in zip(firsts.tolist(), steps, strict=False)]
    message = np.concatenate([np.empty(0, dtype=np.int64), *(place for place, _ in rows)])
    chunk, adds = _joined([(step.chunk, step.reduce) for _, step in rows], 2)
    sizes = schedule.chunk_bytes(num_bytes)[chunk] * adds
    adding = timeline.select(kind="reduce")
    if len(adding):
        done_s[np.bincount(message, sizes, src.size) > 0] = adding.stop_s
    carries = _carried(schedule, [step for _, step in rows])
    order = np.lexsort((step_of[message], done_s[message]))
    message, chunk, carries, adds = message[order], chunk[order], carries[order], adds[order]
    leaves, now = np.empty_like(carries), schedule.given().astype(np.int64)
    for row, (to, which, added, shares) in enumerate(
        zip(dst[message].tolist(), chunk.tolist(), adds.tolist(), carries.tolist(), strict=True)
    ):
        now[to, which] = leaves[row] = shares + now[to, which] * added
    of_messages = src, dst, step_of, reduce > 0, out.start_s, out.stop_s, done_s
    return Playback(schedule, float(num_bytes), cluster.gpus_per_node, *of_messages, message, chunk, carries, leaves)


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


def _messages(num_ranks: int, step: Step) -> tuple[Ints, Ints, Ints, Ints, Step]:
    """Sender, receiver and whether anything is added, of each message of a step in the order of their first transfers;
    the message of each row; and the rows, one for each chunk."""
    rows = step.by_chunk()
    message, first = messages(num_ranks, rows.src, rows.dst)
    adds = np.bincount(message, rows.reduce, first.size).astype(np.int64)
    return rows.src[first], rows.dst[first], adds, message, rows


def _carried(schedule: Schedule, steps: list[Step]) -> Ints:
    """How many shares the chunk of each row has when it is sent: all transfers of a step read what was there before."""
    now, found = schedule.given().astype(np.int64), [np.empty(0, dtype=np.int64)]
    for rows in steps:
        sent, kept = now[rows.src, rows.chunk], ~rows.reduce
        found.append(sent)
        now[rows.dst[kept], rows.chunk[kept]] = sent[kept]
        np.add.at(now, (rows.dst[rows.reduce], rows.chunk[rows.reduce]), sent[rows.reduce])
    return np.concatenate(found)


def _joined(columns: list[tuple[Any, ...]], count: int) -> list[Ints]:
    """Columns of whole numbers, one below the other."""
    empty = np.empty(0, dtype=np.int64)
    return [np.concatenate([empty, *(row[place] for row in columns)]).astype(np.int64) for place in range(count)]
