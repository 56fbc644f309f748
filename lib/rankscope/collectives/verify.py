"""`verify`: a schedule computes the result of its collective, shown by following every share through every step.

The results are those of the MPI standard, chapter 6. The method is that of msccl-tools (Microsoft), with shares
counted instead of or-ed, so that one added twice is seen.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.checks import of_type
from ..common.words import count_of
from .schedule import MOVES, Schedule
from .steps import Bools, Ints, ScheduleError, Step, number_among_equal

Shares = NDArray[np.uint16]  # a rank has fewer than 65,536 contributions to a chunk, whatever a schedule does


def shares_at_start(schedule: Schedule) -> Shares:
    """Return how often each rank has the share of each origin in each chunk, of shape (ranks, chunks, origins).

    If ranks only pass chunks on, there is one origin, the rank that the chunk comes from. Otherwise all ranks are, in a
    barrier as those that have been heard of.
    """
    if schedule.collective in MOVES:
        return schedule.initial_chunks()[:, :, None].astype(np.uint16)
    own = np.eye(schedule.num_ranks, dtype=np.uint16)
    return np.repeat(own[:, None], schedule.num_chunks, axis=1)


def pass_step(rows: Step, shares: NDArray[Any]) -> NDArray[Any]:
    """Let the transfers of one step, a row for each chunk, take place, and return what each row has sent.

    `shares` has the shape (ranks, chunks, counts); what is received is added or replaces what is there.
    """
    sent = shares[rows.src, rows.chunk]  # a copy, so all rows send what was there before the step
    turn = number_among_equal(rows.dst * shares.shape[1] + rows.chunk)  # 0 for the first row that writes to a chunk
    for current_turn in range(int(turn.max(initial=-1)) + 1):
        now = turn == current_turn
        place = rows.dst[now], rows.chunk[now]
        shares[place] = sent[now] + shares[place] * rows.reduce[now, None]
    return sent


def holdings(schedule: Schedule, step: int) -> Bools:
    """Return whether a rank's chunk has the share of an origin before a step, as [rank, chunk, origin].

    `step` counts from 0, and ``schedule.num_steps`` asks for the end. If ranks only pass on, the one origin of a chunk
    is the rank that it comes from. The schedule is not checked here: use `verify`.

    >>> from . import ALGORITHMS
    >>> ring = ALGORITHMS["allreduce"]["ring"](3)
    >>> holdings(ring, 1)[1].astype(int).tolist()  # rank 1 has added rank 0's chunk 0 to its own
    [[1, 1, 0], [0, 1, 0], [0, 1, 0]]
    """
    shares = shares_at_start(schedule)
    for transfers in islice(schedule.steps(), step):
        pass_step(transfers.by_chunk(), shares)
    if schedule.collective in MOVES:
        return np.asarray((shares > 0) & (schedule.origins()[:, None] == np.arange(schedule.num_ranks)))
    return shares > 0


class Verified(NamedTuple):
    """What `verify` counted: messages are the transfers of a step from one rank to one other, taken together.

    `most_sends` and `most_receives` are the most messages that one rank sends, and receives, in one step.
    """

    num_steps: int
    num_messages: int
    most_sends: int
    most_receives: int

    def __str__(self) -> str:
        return (
            f"{count_of(self.num_steps, 'step')}, {count_of(self.num_messages, 'message')}; "
            f"each rank sends at most {self.most_sends} per step, "
            f"and receives at most {self.most_receives}"
        )


def verify(schedule: Schedule) -> Verified:
    """Check that a schedule computes its collective, and return its numbers of steps and messages.

    The check requires that ranks and chunks exist; that no rank sends a chunk that it does not have, sends to itself,
    or sends or receives more messages in a step than `schedule.ports`; that no contribution is added twice, or
    added at all in a collective that only passes chunks on; that no chunk is written twice in a step, copied to a rank
    that already has it, or used within `schedule.lag` steps of being received; and that in the end every rank has the
    result of the collective, with each rank's contribution exactly once.

    Raises ScheduleError, which names step, rank and chunk, if the schedule is wrong. The check takes 2 bytes for each
    rank and chunk if ranks only pass chunks on, and otherwise as many for each origin, too.

    >>> from . import ALGORITHMS
    >>> print(verify(ALGORITHMS["allreduce"]["ring"](4)))
    6 steps, 24 messages; each rank sends at most 1 per step, and receives at most 1
    """
    shares = shares_at_start(of_type("schedule", schedule, Schedule))
    # the step in which each rank last received a sum of each chunk; for none a step that is long enough before step 0
    received = np.full(shares.shape[:2], -schedule.lag)
    num_messages = 0
    most = {"sends": 0, "receives": 0}  # of a rank in one step
    number = -1  # of the step before
    for number, step in enumerate(schedule.steps()):
        check_places(schedule, number, step)
        pairs = np.unique(step.src * schedule.num_ranks + step.dst)  # a message for each
        num_messages += pairs.size
        for verb, ranks in zip(most, np.divmod(pairs, schedule.num_ranks), strict=True):
            of_rank = np.bincount(np.intp(ranks), minlength=schedule.num_ranks)
            problem = f"{verb} {of_rank.max()} messages in one step, but ports={schedule.ports}"
            _refuse(of_rank > schedule.ports, problem, number, np.arange(of_rank.size))
            most[verb] = max(most[verb], int(of_rank.max()))
        rows = step.by_chunk()
        for ranks in (rows.src, rows.dst):  # a receiver, too, must have its sum before it adds to it or replaces it
            is_early = received[ranks, rows.chunk] > number - schedule.lag
            _refuse(is_early, f"uses a sum received less than {schedule.lag} steps before", number, ranks, rows.chunk)
        received[rows.dst[rows.reduce], rows.chunk[rows.reduce]] = number
        _pass_checked(schedule, number, rows, shares)
    for rank, chunk in np.argwhere((shares == 0).any(axis=2) & schedule.wanted()).tolist():
        origin = shares[rank, chunk].argmin()
        if schedule.collective in MOVES:
            origin = schedule.origins()[chunk]
        raise ScheduleError(f"the result lacks the contribution of rank {origin}", None, rank, chunk)
    return Verified(number + 1, num_messages, most["sends"], most["receives"])


def _refuse(is_wrong: Any, problem: str, number: int, ranks: Ints, chunks: Ints | None = None) -> None:
    """Raise ScheduleError for the first entry that is marked, if any is: a rank, or one of its chunks, in a step."""
    if is_wrong.any():
        entry = is_wrong.argmax()
        chunk = None if chunks is None else int(chunks[entry])
        raise ScheduleError(problem, number, int(ranks[entry]), chunk)


def check_places(schedule: Schedule, number: int, step: Step) -> None:
    """Fail unless the ranks and chunks of a step exist, no rank sends to itself, and only those add up that may."""
    for ranks in (step.src, step.dst):
        is_wrong = (ranks < 0) | (ranks >= schedule.num_ranks)
        _refuse(is_wrong, f"ranks are from 0 to {schedule.num_ranks - 1}", number, ranks)
    _refuse(step.src == step.dst, "sends to itself", number, step.src, step.chunk)
    is_wrong = (step.chunk < 0) | (step.num_chunks < 1) | (step.chunk + step.num_chunks > schedule.num_chunks)
    _refuse(is_wrong, f"chunks are from 0 to {schedule.num_chunks - 1}", number, step.src, step.chunk)
    if schedule.collective in MOVES:
        _refuse(step.reduce, f"{schedule.collective} adds nothing up", number, step.dst, step.chunk)


def _pass_checked(schedule: Schedule, number: int, rows: Step, shares: Shares) -> None:
    """Let the transfers of one step, a row for each chunk, take place in `shares`, and fail for the first wrong one."""
    dst, chunk = rows.dst, rows.chunk
    _, target, num_writes = np.unique(dst * schedule.num_chunks + chunk, return_inverse=True, return_counts=True)
    is_wrong_copy = (num_writes[target] > 1) & ~rows.reduce  # then the result depends on the order
    _refuse(is_wrong_copy, "is written twice in one step", number, dst, chunk)
    before = shares[dst, chunk]
    sent = pass_step(rows, shares)
    _refuse(~sent.any(axis=1), "sends what it does not have", number, rows.src, chunk)
    is_same_copy = (sent == before).all(axis=1) & ~rows.reduce
    _refuse(is_same_copy, "receives what it already has", number, dst, chunk)
    after = shares[dst, chunk]
    is_repeated = (after > 1).any(axis=1)
    if schedule.collective == "barrier":  # it adds up nothing, so shares may repeat, but some of them must be new
        is_repeated = ~((sent > 0) & (before == 0) & (after == 1)).any(axis=1)
        shares[dst, chunk] = after > 0
    _refuse(is_repeated, "receives a contribution a second time", number, dst, chunk)
