"""`verify`: a schedule computes the result of its collective, shown by following every share through every step.

The results are those of the MPI standard, chapter 6. The method is that of msccl-tools (Microsoft), with shares
counted instead of or-ed, so that one added twice is seen.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple, NoReturn

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
        is_current = turn == current_turn
        place = rows.dst[is_current], rows.chunk[is_current]
        shares[place] = sent[is_current] + shares[place] * rows.reduce[is_current, None]
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
    if schedule.collective not in MOVES:
        return shares > 0
    has_share = np.zeros((schedule.num_ranks, schedule.num_chunks, schedule.num_ranks), dtype=bool)
    has_share[:, np.arange(schedule.num_chunks), schedule.origins()] = shares[:, :, 0] > 0
    return has_share


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
    num_steps = 0
    num_messages = 0
    most_sends = 0
    most_receives = 0
    for number, step in enumerate(schedule.steps()):
        check_places(schedule, number, step)
        pairs = np.unique(step.src * schedule.num_ranks + step.dst)
        most_sends = max(most_sends, _most_messages(schedule, number, "sends", pairs // schedule.num_ranks))
        most_receives = max(most_receives, _most_messages(schedule, number, "receives", pairs % schedule.num_ranks))
        num_messages += pairs.size
        num_steps += 1
        rows = step.by_chunk()
        if schedule.lag > 1:  # with a lag of 1, sums of all earlier steps may be used
            _check_lag(schedule, number, rows, received)
        _check_transfers(schedule, number, rows, shares)
    _check_result(schedule, shares)
    return Verified(num_steps, num_messages, most_sends, most_receives)


def _check_result(schedule: Schedule, shares: Shares) -> None:
    """Raise ScheduleError if a chunk that a rank must have in the end lacks a share."""
    is_lacking = (shares == 0).any(axis=2) & schedule.wanted()
    for rank, chunk in np.argwhere(is_lacking)[:1].tolist():
        origins = np.flatnonzero(shares[rank, chunk] == 0).tolist()
        names = ", ".join([*map(str, origins[:8]), *["…"][: len(origins) - 8]])
        lacks = f"the contributions of ranks {names}" if len(origins) > 1 else f"the contribution of rank {names}"
        if schedule.collective in MOVES:  # the chunk comes from one rank: it is lacking as a whole
            lacks = "it"
        raise ScheduleError(f"rank {rank}, chunk {chunk}: the result lacks {lacks}", None, rank, chunk)


def _fail(problem: str, number: int, rank: int, chunk: int | None = None) -> NoReturn:
    """Raise ScheduleError for a rank, or one of its chunks, in the step with this number."""
    where = f"step {number}, rank {rank}"
    if chunk is not None:
        where += f", chunk {chunk}"
    raise ScheduleError(f"{where}: {problem}", number, rank, chunk)


def _fail_at(is_wrong: Any, problem: str, number: int, ranks: Ints, chunks: Ints) -> None:
    """Fail for the first row that is marked, if any is."""
    if is_wrong.any():
        row = int(is_wrong.argmax())
        _fail(problem, number, int(ranks[row]), int(chunks[row]))


def check_places(schedule: Schedule, number: int, step: Step) -> None:
    """Fail unless the ranks and chunks of a step exist, no rank sends to itself, and only those add up that may."""
    for ranks in (step.src, step.dst):
        is_wrong = (ranks < 0) | (ranks >= schedule.num_ranks)
        if is_wrong.any():
            _fail(f"ranks are from 0 to {schedule.num_ranks - 1}", number, int(ranks[is_wrong][0]))
    _fail_at(step.src == step.dst, "sends to itself", number, step.src, step.chunk)
    is_wrong = (step.chunk < 0) | (step.num_chunks < 1) | (step.chunk + step.num_chunks > schedule.num_chunks)
    _fail_at(is_wrong, f"chunks are from 0 to {schedule.num_chunks - 1}", number, step.src, step.chunk)
    if schedule.collective in MOVES:
        _fail_at(step.reduce, f"{schedule.collective} adds nothing up", number, step.dst, step.chunk)


def _most_messages(schedule: Schedule, number: int, verb: str, ranks: Ints) -> int:
    """Return the most messages that one rank sends, or receives, in a step, and fail if it has fewer ports.

    `ranks` has an entry for each message: the rank that sends, or receives, it.
    """
    counts = np.bincount(ranks, minlength=1)  # one entry at least, since a step may have no messages
    if counts.max() > schedule.ports:
        text = f"{verb} {counts.max()} messages in one step, but ports={schedule.ports} allows only {schedule.ports}"
        _fail(text, number, int(counts.argmax()))
    return int(counts.max())


def _check_lag(schedule: Schedule, number: int, rows: Step, received: Ints) -> None:
    """Fail if a step uses a sum too early, and bring `received` up to date, of shape (ranks, chunks)."""
    for ranks in (rows.src, rows.dst):  # a receiver, too, must have its sum before it adds to it or replaces it
        is_early = received[ranks, rows.chunk] > number - schedule.lag
        _fail_at(is_early, f"uses a sum received less than {schedule.lag} steps before", number, ranks, rows.chunk)
    received[rows.dst[rows.reduce], rows.chunk[rows.reduce]] = number


def _check_transfers(schedule: Schedule, number: int, rows: Step, shares: Shares) -> None:
    """Let the transfers of one step, a row for each chunk, take place in `shares`, and fail for the first wrong one."""
    dst, chunk = rows.dst, rows.chunk
    _, target, num_writes = np.unique(dst * schedule.num_chunks + chunk, return_inverse=True, return_counts=True)
    is_wrong_copy = (num_writes[target] > 1) & ~rows.reduce  # then the result depends on the order
    _fail_at(is_wrong_copy, "is written twice in one step", number, dst, chunk)
    before = shares[dst, chunk]
    sent = pass_step(rows, shares)
    _fail_at(~sent.any(axis=1), "sends what it does not have", number, rows.src, chunk)
    is_same_copy = (sent == before).all(axis=1) & ~rows.reduce
    _fail_at(is_same_copy, "receives what it already has", number, dst, chunk)
    after = shares[dst, chunk]
    is_repeated = after > 1
    if schedule.collective == "barrier":  # it adds up nothing, so shares may repeat, but some of them must be new
        is_repeated = (sent > 0) & ~((sent > 0) & (before == 0) & (after == 1)).any(axis=1, keepdims=True)
        shares[dst, chunk] = after > 0
    if is_repeated.any():
        row, origin = np.argwhere(is_repeated)[0].tolist()
        _fail(f"receives the contribution of rank {origin} a second time", number, int(dst[row]), int(chunk[row]))
