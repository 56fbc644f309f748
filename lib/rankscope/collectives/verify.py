"""`verify`: a schedule does what its collective promises, shown by following every share through every step.

After the method of msccl-tools (Microsoft), with shares counted instead of or-ed, so that one added twice is seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ..values.checks import count_of, of_type, whole
from .schedule import MOVES, Ints, Schedule, ScheduleError, Step


@dataclass(frozen=True)
class Verified:
    """What `verify` counted: messages are the transfers of a step from one rank to one other, taken together."""

    num_steps: int
    num_messages: int
    most_sends: int
    most_receives: int

    def __str__(self) -> str:
        return (
            f"{count_of(self.num_steps, 'step')}, {count_of(self.num_messages, 'message')}; "
            f"a rank sends at most {self.most_sends} in a step, "
            f"and receives at most {self.most_receives}"
        )


def verify(schedule: Schedule) -> Verified:
    """Return what the schedule takes, if it fulfils its collective; else raise ScheduleError naming step, rank, chunk.

    Checked are: ranks and chunks exist; nobody sends what is not there, to itself, or more messages in a step than
    `schedule.ports`; no share is added twice, nothing is written twice in a step, copied where it already is, or used
    within `schedule.lag` steps of being received; in the end everybody has what the collective promises, each rank's
    share exactly once. Memory grows with num_ranks · num_chunks words of 64 ranks each.

    >>> from . import ALGORITHMS
    >>> print(verify(ALGORITHMS["allreduce"]["ring"](4)))
    6 steps, 24 messages; a rank sends at most 1 in a step, and receives at most 1
    """
    shares = before(of_type("schedule", schedule, Schedule))
    received = np.full(shares.shape[:2], -schedule.lag)  # the step in which a sum last came in
    num_steps = num_messages = most_sends = most_receives = 0
    for number, step in enumerate(schedule.steps()):
        _check_places(schedule, number, step)
        sends, receives, messages = _ports(schedule, number, step)
        most_sends, most_receives = max(most_sends, sends), max(most_receives, receives)
        num_messages += messages
        rows = step.by_chunk()
        if schedule.lag > 1:
            _check_lag(schedule, number, rows, received)
        _apply(schedule, number, rows, shares)
        num_steps += 1
    _check_end(schedule, shares)
    return Verified(num_steps, num_messages, most_sends, most_receives)


def _fail(what: str, number: int, rank: int, chunk: int | None = None) -> None:
    where = f"step {number}, rank {rank}" + ("" if chunk is None else f", chunk {chunk}")
    raise ScheduleError(f"{where}: {what}", number, rank, chunk)


def _check_places(schedule: Schedule, number: int, step: Step) -> None:
    top = schedule.num_ranks - 1
    for ranks in (step.src, step.dst):
        wrong = (ranks < 0) | (ranks > top)
        if wrong.any():
            _fail(f"ranks are from 0 to {top}", number, int(ranks[wrong][0]))
    wrong = step.src == step.dst
    if wrong.any():
        _fail("sends to itself", number, int(step.src[wrong][0]), int(step.chunk[wrong][0]))
    wrong = (step.chunk < 0) | (step.num_chunks < 1) | (step.chunk + step.num_chunks > schedule.num_chunks)
    if wrong.any():
        chunk, count = int(step.chunk[wrong][0]), int(step.num_chunks[wrong][0])
        text = f"{count_of(count, 'chunk')} from {chunk} on, where there are {schedule.num_chunks}"
        _fail(text, number, int(step.src[wrong][0]), chunk)
    if schedule.collective in MOVES and step.reduce.any():
        place = int(step.reduce.argmax())
        text = f"{schedule.collective} adds nothing up"
        _fail(text, number, int(step.dst[place]), int(step.chunk[place]))


def _ports(schedule: Schedule, number: int, step: Step) -> tuple[int, int, int]:
    """The most messages that a rank sends and receives in the step, and how many there are."""
    if not step.src.size:
        return 0, 0, 0
    pairs = np.unique(step.src * schedule.num_ranks + step.dst)
    most = []
    for verb, ranks in (("sends", pairs // schedule.num_ranks), ("receives", pairs % schedule.num_ranks)):
        counts = np.bincount(ranks)
        most.append(int(counts.max()))
        if most[-1] > schedule.ports:
            text = f"{verb} {most[-1]} messages in one step, {schedule.ports} at most by its ports"
            _fail(text, number, int(counts.argmax()))
    return most[0], most[1], pairs.size


def _check_lag(schedule: Schedule, number: int, rows: Step, received: Ints) -> None:
    for ranks in (rows.src, rows.dst):
        early = received[ranks, rows.chunk] > number - schedule.lag
        if early.any():
            place = int(early.argmax())
            rank, chunk = int(ranks[place]), int(rows.chunk[place])
            text = f"uses a sum received in step {received[rank, chunk]}, less than {schedule.lag} steps before"
            _fail(text, number, rank, chunk)
    received[rows.dst[rows.reduce], rows.chunk[rows.reduce]] = number


def _apply(schedule: Schedule, number: int, rows: Step, shares: Shares) -> None:
    """Let the transfers of one step, a row for each chunk, take place."""
    sent = shares[rows.src, rows.chunk]
    missing = ~sent.any(axis=1)
    if missing.any():
        place = int(missing.argmax())
        _fail("sends what it does not have", number, int(rows.src[place]), int(rows.chunk[place]))
    turn = _turns(rows.dst * schedule.num_chunks + rows.chunk)
    twice = (turn > 0) & ~rows.reduce
    if twice.any() or (turn.any() and not rows.reduce.all() and _mixed(schedule, rows).any()):
        place = int(twice.argmax()) if twice.any() else int(_mixed(schedule, rows).argmax())
        text = "is written twice in one step"
        _fail(text, number, int(rows.dst[place]), int(rows.chunk[place]))
    for now in range(int(turn.max(initial=0)) + 1):
        at = turn == now
        dst, chunk, new = rows.dst[at], rows.chunk[at], sent[at]
        _check_new(schedule, number, dst, chunk, rows.reduce[at], new, shares[dst, chunk])
        shares[dst, chunk] = np.where(rows.reduce[at][:, None], shares[dst, chunk] | new, new)


def _check_new(
    schedule: Schedule, number: int, dst: Ints, chunk: Ints, reduce: NDArray[np.bool_], new: Shares, old: Shares
) -> None:
    again = (new & old).any(axis=1) & reduce
    if schedule.collective == "barrier":
        again = ((new | old) == old).all(axis=1)
    if again.any():
        place = int(again.argmax())
        rank = int(_bits(new[place] & old[place])[0])
        _fail(f"receives the share of rank {rank} a second time", number, int(dst[place]), int(chunk[place]))
    idle = (new == old).all(axis=1) & ~reduce
    if idle.any():
        place = int(idle.argmax())
        _fail("receives what it already has", number, int(dst[place]), int(chunk[place]))


def _check_end(schedule: Schedule, shares: Shares) -> None:
    lacking = (shares != complete(schedule)).any(axis=2) & wanted(schedule)
    if not lacking.any():
        return
    rank, chunk = (int(place[0]) for place in np.nonzero(lacking))
    ranks = _bits(complete(schedule) & ~shares[rank, chunk])
    some = ", ".join(map(str, ranks[:8].tolist())) + (", …" if ranks.size > 8 else "")
    whose = f"the share of rank {some}" if ranks.size == 1 else f"the shares of ranks {some}"
    what = "without it" if schedule.collective in MOVES else f"without {whose}"
    raise ScheduleError(f"rank {rank}, chunk {chunk}: ends {what}", None, rank, chunk)


def _turns(key: Ints) -> Ints:
    """How many equal keys stand before each."""
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    first = np.r_[True, ordered[1:] != ordered[:-1]] if key.size else np.empty(0, dtype=bool)
    starts = np.maximum.accumulate(np.where(first, np.arange(key.size), 0)) if key.size else key
    turns = np.empty_like(key)
    turns[order] = np.arange(key.size) - starts
    return turns


def _mixed(schedule: Schedule, rows: Step) -> NDArray[np.bool_]:
    """Which transfers go to a chunk of a rank that is both added to and replaced."""
    key = rows.dst * schedule.num_chunks + rows.chunk
    return np.isin(key, np.intersect1d(key[rows.reduce], key[~rows.reduce]))


def _bits(words: Shares) -> Ints:
    """The places of the bits that are set."""
    return np.flatnonzero(np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little"))


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


def holdings(schedule: Schedule, step: int) -> NDArray[np.bool_]:
    """Return what is where before a step, as [rank, chunk, origin]: whether the rank's chunk has the origin's share.

    `step` counts from 0, and ``schedule.num_steps`` asks for the end. Where ranks only pass on, the one origin of a
    chunk is the rank that it comes from. Nothing is checked here: of what nobody has nothing arrives, and a share that
    is added twice looks like one; `verify` tells. Raises ValueError for a step that does not exist.

    >>> from . import ALGORITHMS
    >>> ring = ALGORITHMS["allreduce"]["ring"](3)
    >>> holdings(ring, 1)[1].astype(int).tolist()  # rank 1 has added rank 0's chunk 0 to its own
    [[1, 1, 0], [0, 1, 0], [0, 1, 0]]
    """
    shares = before(schedule)
    for transfers in islice(schedule.steps(), whole("step", step, 0, schedule.num_steps)):
        _transfer(shares, transfers.by_chunk())
    chunks = np.arange(schedule.num_chunks)
    there = np.zeros((schedule.num_ranks, schedule.num_chunks, schedule.num_ranks), dtype=bool)
    if schedule.collective in MOVES:
        there[:, chunks, origins(schedule)] = shares.any(axis=2)
        return there
    for origin in range(schedule.num_ranks):
        there[:, :, origin] = shares[:, :, origin // 64] >> np.uint64(origin % 64) & np.uint64(1)
    return there


def _transfer(shares: Shares, rows: Step) -> None:
    """Let the transfers of one step, a row for each chunk, take place at once."""
    sent, added = shares[rows.src, rows.chunk], rows.reduce
    shares[rows.dst[~added], rows.chunk[~added]] = sent[~added]
    np.bitwise_or.at(shares, (rows.dst[added], rows.chunk[added]), sent[added])
