"""`verify`: a schedule computes the result of its collective, shown by following every share through every step.

The results are those of the MPI standard, chapter 6. The method is that of msccl-tools (Microsoft), with shares
counted instead of or-ed, so that one added twice is seen.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..common.checks import count_of, of_type
from .schedule import MOVES, Ints, Schedule, ScheduleError, Step, number_among_equal

Shares = NDArray[np.uint64]


def _shares_at_start(schedule: Schedule) -> Shares:
    """Return whose shares each rank has in each chunk at the start, as bits, of shape (num_ranks, num_chunks, words).

    If ranks only pass chunks on, one bit says that the chunk is there. Otherwise bit r % 64 of word r // 64 stands for
    rank r's share, in a barrier for having heard of rank r.
    """
    words = math.ceil(schedule.num_ranks / 64)
    if schedule.collective in MOVES:
        words = 1
    shape = (schedule.num_ranks, schedule.num_chunks, words)
    if schedule.collective in MOVES:
        return np.asarray(schedule.initial_chunks()[:, :, None], dtype=np.uint64)
    shares = np.zeros(shape, dtype=np.uint64)
    for rank in range(schedule.num_ranks):
        shares[rank, :, rank // 64] = 1 << (rank % 64)
    return shares


def holdings(schedule: Schedule, step: int) -> NDArray[np.bool_]:
    """Return whether a rank's chunk has the share of an origin before a step, as [rank, chunk, origin].

    `step` counts from 0, and ``schedule.num_steps`` asks for the end. If ranks only pass on, the one origin of a chunk
    is the rank that it comes from. The schedule is not checked here: a transfer of a chunk that the sender does not
    have changes nothing, and a share that is added twice looks like one; `verify` finds both.

    >>> from . import ALGORITHMS
    >>> ring = ALGORITHMS["allreduce"]["ring"](3)
    >>> holdings(ring, 1)[1].astype(int).tolist()  # rank 1 has added rank 0's chunk 0 to its own
    [[1, 1, 0], [0, 1, 0], [0, 1, 0]]
    """
    shape = (schedule.num_ranks, schedule.num_chunks, schedule.num_ranks)
    shares = _shares_at_start(schedule)
    for transfers in islice(schedule.steps(), step):
        rows = transfers.by_chunk()
        sent = shares[rows.src, rows.chunk]
        is_added = rows.reduce
        shares[rows.dst[~is_added], rows.chunk[~is_added]] = sent[~is_added]
        np.bitwise_or.at(shares, (rows.dst[is_added], rows.chunk[is_added]), sent[is_added])
    chunks = np.arange(schedule.num_chunks)
    has_share = np.zeros(shape, dtype=bool)
    if schedule.collective in MOVES:
        has_share[:, chunks, schedule.origins()] = shares.any(axis=2)  # each chunk has one origin
        return has_share
    for origin in range(schedule.num_ranks):
        word_of_origin = shares[:, :, origin // 64]
        bit_of_origin = np.uint64(1 << (origin % 64))
        has_share[:, :, origin] = (word_of_origin & bit_of_origin) != 0
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

    Raises ScheduleError, which names step, rank and chunk, if the schedule is wrong. The check takes num_ranks ·
    num_chunks words of 8 bytes if ranks only pass chunks on, and otherwise as many for each 64 ranks.

    >>> from . import ALGORITHMS
    >>> print(verify(ALGORITHMS["allreduce"]["ring"](4)))
    6 steps, 24 messages; each rank sends at most 1 per step, and receives at most 1
    """
    shares = _shares_at_start(of_type("schedule", schedule, Schedule))
    # the shares of a chunk in which nothing is missing: those of all ranks in chunk 0, since they are the same in each
    complete = np.bitwise_or.reduce(shares[:, 0], axis=0)
    # the step in which each rank last received a sum of each chunk; for none a step that is long enough before step 0
    received = np.full(shares.shape[:2], -schedule.lag)
    num_steps = 0
    num_messages = 0
    most_sends = 0
    most_receives = 0
    for number, step in enumerate(schedule.steps()):
        _check_places(schedule, number, step)
        pairs = np.unique(step.src * schedule.num_ranks + step.dst)
        most_sends = max(most_sends, _most_messages(schedule, number, "sends", pairs // schedule.num_ranks))
        most_receives = max(most_receives, _most_messages(schedule, number, "receives", pairs % schedule.num_ranks))
        num_messages += pairs.size
        rows = step.by_chunk()
        if schedule.lag > 1:  # with a lag of 1, sums of all earlier steps may be used
            _check_lag(schedule, number, rows, received)
        _apply(schedule, number, rows, shares)
        num_steps += 1
    _check_result(schedule, shares, complete)
    return Verified(num_steps, num_messages, most_sends, most_receives)


def _check_result(schedule: Schedule, shares: Shares, complete: Shares) -> None:
    """Raise ScheduleError if a chunk that a rank must have in the end is not `complete`."""
    is_lacking = (shares != complete).any(axis=2) & schedule.wanted()
    if not is_lacking.any():
        return
    ranks, chunks = np.nonzero(is_lacking)
    rank = int(ranks[0])
    chunk = int(chunks[0])
    lacks = "it"
    if schedule.collective not in MOVES:  # else the chunk comes from one rank: it is lacking as a whole
        lacks = _shares_of(_bits(complete & ~shares[rank, chunk]).tolist())
    raise ScheduleError(f"rank {rank}, chunk {chunk}: the result lacks {lacks}", None, rank, chunk)


def _shares_of(ranks: list[int]) -> str:
    """Name the contributions of these ranks, at most eight of them."""
    if len(ranks) == 1:
        return f"the contribution of rank {ranks[0]}"
    names = [str(rank) for rank in ranks[:8]]
    if len(ranks) > 8:
        names.append("…")
    return f"the contributions of ranks {', '.join(names)}"


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


def _check_places(schedule: Schedule, number: int, step: Step) -> None:
    """Fail unless the ranks and chunks of a step exist, no rank sends to itself, and only those add up that may."""
    last_rank = schedule.num_ranks - 1
    for ranks in (step.src, step.dst):
        is_wrong = (ranks < 0) | (ranks > last_rank)
        if is_wrong.any():
            _fail(f"ranks are from 0 to {last_rank}", number, int(ranks[is_wrong][0]))
    _fail_at(step.src == step.dst, "sends to itself", number, step.src, step.chunk)
    is_wrong = (step.chunk < 0) | (step.num_chunks < 1) | (step.chunk + step.num_chunks > schedule.num_chunks)
    if is_wrong.any():
        chunk = int(step.chunk[is_wrong][0])
        count = int(step.num_chunks[is_wrong][0])
        text = f"{count_of(count, 'chunk')} starting at chunk {chunk}, but the schedule has only {schedule.num_chunks}"
        _fail(text, number, int(step.src[is_wrong][0]), chunk)
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
        if is_early.any():
            rank = int(ranks[is_early][0])
            chunk = int(rows.chunk[is_early][0])
            text = f"uses a sum received in step {received[rank, chunk]}, less than {schedule.lag} steps before"
            _fail(text, number, rank, chunk)
    received[rows.dst[rows.reduce], rows.chunk[rows.reduce]] = number


def _apply(schedule: Schedule, number: int, rows: Step, shares: Shares) -> None:
    """Let the transfers of one step, a row for each chunk, take place in `shares`, and fail for the first wrong one.

    Several rows may add to the same chunk of the same rank. The first of each such chunk take place together, then the
    second, and so on, so that a share that comes twice is found.
    """
    sent = shares[rows.src, rows.chunk]  # shape (rows, words); a copy, so all rows send what was there before the step
    _fail_at(~sent.any(axis=1), "sends what it does not have", number, rows.src, rows.chunk)
    target = rows.dst * schedule.num_chunks + rows.chunk  # equal for rows that write to the same chunk of the same rank
    write_number = number_among_equal(target)  # 0 for the first row that writes to a target
    _check_second_writes(number, rows, target, write_number)
    for current_number in range(int(write_number.max(initial=0)) + 1):
        is_current = write_number == current_number
        dst = rows.dst[is_current]
        chunk = rows.chunk[is_current]
        reduce = rows.reduce[is_current]
        new = sent[is_current]
        old = shares[dst, chunk]
        is_repeated = (new & old).any(axis=1) & reduce
        if schedule.collective == "barrier":  # it adds up nothing, so shares may repeat, but some of them must be new
            is_repeated = ((new | old) == old).all(axis=1)
        if is_repeated.any():
            row = int(is_repeated.argmax())
            repeated_ranks = _bits(new[row] & old[row])
            text = f"receives the contribution of rank {repeated_ranks[0]} a second time"
            _fail(text, number, int(dst[row]), int(chunk[row]))
        _fail_at((new == old).all(axis=1) & ~reduce, "receives what it already has", number, dst, chunk)
        shares[dst, chunk] = np.where(reduce[:, None], old | new, new)


def _check_second_writes(number: int, rows: Step, target: Ints, write_number: Ints) -> None:
    """Fail if several rows write to one target and one of them copies: then the result depends on their order."""
    targets_of_several_rows = target[write_number > 0]
    is_wrong_copy = np.isin(target, targets_of_several_rows) & ~rows.reduce
    _fail_at(is_wrong_copy, "is written twice in one step", number, rows.dst, rows.chunk)


def _bits(words: Shares) -> Ints:
    """Return the numbers of the bits that are set, the lowest bit of the first word being 0."""
    low_byte_first = words.astype("<u8").view(np.uint8)
    return np.flatnonzero(np.unpackbits(low_byte_first, bitorder="little"))
