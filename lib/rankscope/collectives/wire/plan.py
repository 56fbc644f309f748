"""What one rank of a schedule sends and receives, and the order in which it posts, waits and adds up.

The plan is pure; `run` carries it out on real tensors, and `twin` on a simulated cluster.

A receive is posted one step ahead of the step that needs it, since a sender's bytes leave only once the receiver is
ready. Nothing is written into elements that a message may still be reading: an allreduce that added into a buffer
before its send was done gave wrong sums on slow networks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from operator import not_
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..schedule import MOST_KEPT, Schedule, Step
from ..verify import given, wanted

LANE = "executor"  # of a rank, for the time that it spends on its program
LONG = 4096  # elements: no ready signal waits behind a message that is longer
ALIGNED = 64  # elements: every place in the scratch begins at a multiple of it
Run = tuple[int, int]  # elements from the first number up to the second
Row = tuple[int, int, int, bool]  # one chunk of a step: src, dst, chunk, reduce


class Message(NamedTuple):
    """What goes between this rank and `peer` in one step: the elements of `runs`, one run after the other."""

    peer: int
    runs: tuple[Run, ...]

    @property
    def num_elements(self) -> int:
        return sum(stop - start for start, stop in self.runs)


class Arrival(NamedTuple):
    """Elements `at` and on of a received message: they are added to the elements of `run`, or replace them."""

    message: int
    at: int
    run: Run
    reduce: bool


class RankStep(NamedTuple):
    """One step of one rank; `arrivals` are in the order in which sums must be made."""

    sends: list[Message]
    receives: list[Message]
    arrivals: list[Arrival]


class RankSteps(NamedTuple):
    """All that one rank does, in a buffer of the chunks that it ever has, in their order.

    The elements that the rank passes stand at `given` at the start, and in the end `wanted` holds its result.
    """

    num_elements: int
    given: Run
    wanted: tuple[Run, ...]
    steps: list[RankStep]


def rank_steps(schedule: Schedule, rank: int, ends: list[int]) -> RankSteps:
    """Return what a rank does; `ends` are the chunks' ends, as of `chunk_ends`. The schedule is not checked.

    All transfers of a step between the same two are one message, its chunks in ascending order; chunks, and messages,
    of no elements are left out.

    >>> from .. import ALGORITHMS
    >>> ring = rank_steps(ALGORITHMS["allreduce"]["ring"](3), 1, [0, 1, 3, 5])
    >>> ring.steps[0]
    RankStep(sends=[Message(peer=2, runs=((1, 3),))], receives=[Message(peer=0, runs=((0, 1),))], \
arrivals=[Arrival(message=0, at=0, run=(0, 1), reduce=True)])
    """
    steps = []
    for step in schedule.steps():
        mine = (step.src == rank) | (step.dst == rank)
        steps.append(_transfers(Step(*(column[mine] for column in step))))
    return _of_rank(rank, given(schedule)[rank], wanted(schedule)[rank], steps, ends)


def all_rank_steps(schedule: Schedule, ends: list[int]) -> list[RankSteps]:
    """Return `rank_steps` of every rank; the schedule's steps are made once."""
    ranks, own, result = range(schedule.num_ranks), given(schedule), wanted(schedule)
    steps: list[list[list[Row]]] | None = schedule.cache.get("transfers")  # of each step, of each rank
    if steps is None:
        steps = []
        for step in schedule.steps():
            of_ranks: list[list[Row]] = [[] for _ in ranks]
            for transfer in _transfers(step):
                of_ranks[transfer[0]].append(transfer)
                of_ranks[transfer[1]].append(transfer)
            steps.append(of_ranks)
        if sum(len(mine) for of_ranks in steps for mine in of_ranks) <= MOST_KEPT:
            schedule.cache["transfers"] = steps
    return [_of_rank(rank, own[rank], result[rank], [of_ranks[rank] for of_ranks in steps], ends) for rank in ranks]


def _transfers(step: Step) -> list[Row]:
    rows = step.by_chunk()
    columns = (column.tolist() for column in (rows.src, rows.dst, rows.chunk, rows.reduce))
    return list(zip(*columns, strict=True))


def _of_rank(
    rank: int, own: NDArray[np.bool_], result: NDArray[np.bool_], steps: list[list[Row]], ends: list[int]
) -> RankSteps:
    touched = own | result
    touched[[chunk for step in steps for _, dst, chunk, _ in step if dst == rank]] = True
    sizes = np.diff(ends)
    starts = np.cumsum(sizes * touched) - sizes * touched
    run_of = list(zip(starts.tolist(), (starts + sizes).tolist(), strict=True))
    passed = _runs(np.flatnonzero(own).tolist(), run_of)
    return RankSteps(
        int((sizes * touched).sum()),
        (passed[0][0], passed[-1][1]) if passed else (0, 0),
        _runs(np.flatnonzero(result).tolist(), run_of),
        [_step(step, rank, run_of) for step in steps],
    )


def _step(transfers: list[Row], rank: int, run_of: list[Run]) -> RankStep:
    """One step of a rank, of the transfers that are its own; messages are in the order of their first transfers."""
    sends: dict[int, list[int]] = {}
    receives: dict[int, list[tuple[int, int, bool]]] = {}  # chunk, place of the transfer, whether it is added
    for place, (src, dst, chunk, reduce) in enumerate(transfers):
        start, stop = run_of[chunk]
        if start == stop:
            continue
        if src == rank:
            sends.setdefault(dst, []).append(chunk)
        else:
            receives.setdefault(src, []).append((chunk, place, reduce))
    for parts in receives.values():
        parts.sort()
    return RankStep(
        [Message(peer, _runs(sorted(chunks), run_of)) for peer, chunks in sends.items()],
        [Message(peer, _runs([chunk for chunk, _, _ in parts], run_of)) for peer, parts in receives.items()],
        _arrivals(list(receives.values()), run_of),
    )


def _runs(chunks: Iterable[int], run_of: list[Run]) -> tuple[Run, ...]:
    """The elements of these chunks, with those that are adjacent taken together."""
    runs: list[Run] = []
    for chunk in chunks:
        start, stop = run_of[chunk]
        if runs and runs[-1][1] == start:
            runs[-1] = runs[-1][0], stop
        elif stop > start:
            runs.append((start, stop))
    return tuple(runs)


def _arrivals(received: list[list[tuple[int, int, bool]]], run_of: list[Run]) -> list[Arrival]:
    """What becomes of the received messages: one after the other, but in the order of transfers where that matters."""
    parts: list[tuple[int, Arrival]] = []
    for message, chunks in enumerate(received):
        at = 0
        for chunk, place, reduce in chunks:
            parts.append((place, Arrival(message, at, run_of[chunk], reduce)))
            at += run_of[chunk][1] - run_of[chunk][0]
    if len({part.run for _, part in parts}) < len(parts):
        parts.sort()
    arrivals: list[Arrival] = []
    for _, part in parts:
        if arrivals:
            last = arrivals[-1]
            end = last.at + last.run[1] - last.run[0]
            if (last.message, last.run[1], end, last.reduce) == (part.message, part.run[0], part.at, part.reduce):
                arrivals[-1] = last._replace(run=(last.run[0], part.run[1]))
                continue
        arrivals.append(part)
    return arrivals


class Span(NamedTuple):
    """Elements of the rank's buffer, or of its scratch."""

    scratch: bool
    start: int
    stop: int

    @property
    def num_elements(self) -> int:
        return self.stop - self.start


class Transfer(NamedTuple):
    """One message on the wire: its elements stand side by side."""

    step: int
    peer: int
    sends: bool
    span: Span


class Post(NamedTuple):
    """Start these transfers."""

    transfers: tuple[int, ...]


class Wait(NamedTuple):
    """Go on when this transfer is done."""

    transfer: int


class Write(NamedTuple):
    """Add the elements of `source` to those of `to`, or copy them there."""

    to: Span
    source: Span
    reduce: bool


class Plan(NamedTuple):
    """`program` is carried out in order; `num_scratch` elements are needed in addition to the buffer."""

    transfers: list[Transfer]
    program: list[Post | Wait | Write]
    num_scratch: int


def plan(steps: RankSteps, ahead: bool = True) -> Plan:
    """Return a rank's program; with `ahead`, receives are posted in the step before theirs, and else with its sends.

    In each step: wait for what the last one received; add it up, if this step sends any of it; post, long messages
    last, since the signal that a receive is ready travels behind them; add it up now, if that was not yet done, while
    the messages travel.
    """
    planner = _Planner(steps, ahead)
    for number in range(len(steps.steps) + 1):
        planner.step(number)
    return Plan(planner.transfers, planner.program, planner.scratch.size)


class _Scratch:
    """Places for messages, each taken for as long as it is needed: the first gap that is wide enough."""

    def __init__(self) -> None:
        self.size = 0
        self._taken: list[Run] = []

    def take(self, num_elements: int) -> Span:
        start = 0
        for begin, end in sorted(self._taken):
            if begin - start >= num_elements:
                break
            start = -(-end // ALIGNED) * ALIGNED
        self._taken.append((start, start + num_elements))
        self.size = max(self.size, start + num_elements)
        return Span(True, start, start + num_elements)

    def give_back(self, span: Span) -> None:
        if span.scratch:
            self._taken.remove((span.start, span.stop))


class _Planner:
    def __init__(self, steps: RankSteps, ahead: bool) -> None:
        self.steps, self.ahead = steps.steps, ahead
        self.transfers: list[Transfer] = []
        self.program: list[Post | Wait | Write] = []
        self.scratch = _Scratch()
        self.sending: list[int] = []  # sends that have not been waited for
        self.arriving: list[list[int]] = [[] for _ in self.steps]  # the receives of each step
        if ahead and self.steps:
            self._add_post(self._receives(0))

    def step(self, number: int) -> None:
        """Plan one step, and after the last one what is left to do."""
        last = number == len(self.steps)
        held = self._finish(number - 1, last) if number else []
        for send in [send for send in self.sending if last or self.transfers[send].step < number - 1]:
            self._wait_send(send)
        if not last:
            sends = self._sends(number)
            later = number + 1 if self.ahead else number
            receives = self._receives(later) if later < len(self.steps) else []
            long = [self.transfers[send].span.num_elements > LONG for send in sends]
            self._add_post([*compress(sends, map(not_, long)), *receives, *compress(sends, long)])
        for arrival in held:
            self._write(number - 1, arrival)
        if held:
            self._release(number - 1)

    def _finish(self, number: int, last: bool) -> list[Arrival]:
        """Wait for the receives of a step; return what of them may be added up after the next sends are posted."""
        spans = [self.transfers[receive].span for receive in self.arriving[number]]
        arrivals = [arrival for arrival in self.steps[number].arrivals if spans[arrival.message].scratch]
        sent = [] if last else [run for message in self.steps[number + 1].sends for run in message.runs]
        needed = last or _overlap((arrival.run for arrival in arrivals), sent)
        waiting = list(self.arriving[number])
        for arrival in arrivals if needed else []:
            self._wait_receive(self.arriving[number][arrival.message], waiting)
            self._write(number, arrival)
        for receive in list(waiting):
            self._wait_receive(receive, waiting)
        if needed or not arrivals:
            self._release(number)
            return []
        return arrivals

    def _wait_receive(self, receive: int, waiting: list[int]) -> None:
        if receive in waiting:
            waiting.remove(receive)
            self.program.append(Wait(receive))

    def _wait_send(self, send: int) -> None:
        self.sending.remove(send)
        self.scratch.give_back(self.transfers[send].span)
        self.program.append(Wait(send))

    def _wait_readers(self, runs: Sequence[Run]) -> None:
        """Wait for the sends that may still be reading these elements of the buffer."""
        for send in list(self.sending):
            span = self.transfers[send].span
            if not span.scratch and _overlap(runs, [(span.start, span.stop)]):
                self._wait_send(send)

    def _write(self, number: int, arrival: Arrival) -> None:
        self._wait_readers([arrival.run])
        start = self.transfers[self.arriving[number][arrival.message]].span.start + arrival.at
        source = Span(True, start, start + arrival.run[1] - arrival.run[0])
        self.program.append(Write(Span(False, *arrival.run), source, arrival.reduce))

    def _release(self, number: int) -> None:
        for receive in self.arriving[number]:
            self.scratch.give_back(self.transfers[receive].span)

    def _sends(self, number: int) -> list[int]:
        posted = []
        for message in self.steps[number].sends:
            span = Span(False, *message.runs[0])
            if len(message.runs) > 1:  # they are put side by side
                span = self.scratch.take(message.num_elements)
                at = span.start
                for start, stop in message.runs:
                    self.program.append(Write(Span(True, at, at + stop - start), Span(False, start, stop), False))
                    at += stop - start
            posted.append(self._add(Transfer(number, message.peer, True, span)))
        self.sending += posted
        return posted

    def _receives(self, number: int) -> list[int]:
        for place, message in enumerate(self.steps[number].receives):
            if self._is_direct(number, place):
                self._wait_readers(message.runs)
                span = Span(False, *message.runs[0])
            else:
                span = self.scratch.take(message.num_elements)
            self.arriving[number].append(self._add(Transfer(number, message.peer, False, span)))
        return self.arriving[number]

    def _is_direct(self, number: int, place: int) -> bool:
        """Whether a message may come straight into the buffer: nothing reads or writes there while it is under way."""
        step, runs = self.steps[number], self.steps[number].receives[place].runs
        if len(runs) > 1 or any(arrival.reduce for arrival in step.arrivals if arrival.message == place):
            return False
        near = self.steps[max(0, number - 1) : number + 1]
        read = [run for other in near for message in other.sends for run in message.runs]
        before = self.steps[max(0, number - 2) : number]
        written = [arrival.run for other in before for arrival in other.arrivals]
        return not _overlap(runs, read + written)

    def _add(self, transfer: Transfer) -> int:
        self.transfers.append(transfer)
        return len(self.transfers) - 1

    def _add_post(self, transfers: list[int]) -> None:
        if transfers:
            self.program.append(Post(tuple(transfers)))


def _overlap(some: Iterable[Run], others: Sequence[Run]) -> bool:
    for start, stop in some:  # quicker than any(…), and asked for each message
        for begin, end in others:
            if start < end and begin < stop:
                return True
    return False
