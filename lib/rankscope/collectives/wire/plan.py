"""What one rank of a schedule sends and receives, and the order in which it posts, waits and adds up.

A plan is pure; `run` carries it out on real tensors, and `twin` on a simulated cluster.

A receive is posted one step ahead of the step that needs it, since a sender's bytes leave only once the receiver is
ready. Nothing is written into elements that a message may still be reading: an allreduce that added into a buffer
before its send was done gave wrong sums on slow networks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from operator import not_
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..schedule import MOST_KEPT, Schedule

LEAST_RANKS = 16  # from here on, ranks that do the same are looked for
LANE = "executor"  # of a rank, for the time that it spends on its program
LONG = 4096  # elements: no ready signal waits behind a message that is longer
ALIGNED = 64  # elements: every place in the scratch begins at a multiple of it
Run = tuple[int, int]  # elements from the first number up to the second
Row = tuple[int, int, int, bool]  # one chunk of a step: src, dst, chunk, reduce


class Elements(NamedTuple):
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
    span: Elements


class Post(NamedTuple):
    """Start these transfers."""

    transfers: tuple[int, ...]


class Wait(NamedTuple):
    """Go on when this transfer is done."""

    transfer: int


class Write(NamedTuple):
    """Add the elements of `source` to those of `to`, or copy them there."""

    to: Elements
    source: Elements
    reduce: bool


class Plan(NamedTuple):
    """All that one rank does, in a buffer of the chunks that it ever has, in their order.

    The elements that the rank passes stand at `given` at the start, and in the end `wanted` holds its result. `program`
    is carried out in order; `num_scratch` elements are needed in addition to the `num_elements` of the buffer.
    """

    num_elements: int
    given: Run
    wanted: tuple[Run, ...]
    transfers: list[Transfer]
    program: list[Post | Wait | Write]
    num_scratch: int


def plans(schedule: Schedule, ends: list[int], ranks: Sequence[int] | None = None, ahead: bool = True) -> list[Plan]:
    """Return the plan of every rank, or of these `ranks`; `ends` are the chunks' ends, as of `chunk_ends`.

    With `ahead`, receives are posted in the step before theirs, and else with its sends. All transfers of a step
    between the same two ranks are one message, its chunks in ascending order; chunks, and messages, of no elements are
    left out. The schedule is not checked.

    >>> from .. import ALGORITHMS
    >>> for op in plans(ALGORITHMS["reduce"]["flat"](2), [0, 8], ranks=[0])[0].program:
    ...     print(op)
    Post(transfers=(0,))
    Wait(transfer=0)
    Write(to=Elements(scratch=False, start=0, stop=8), source=Elements(scratch=True, start=0, stop=8), reduce=True)
    """
    steps: list[list[list[Row]]] | None = schedule.cache.get("transfers")  # of each step, of each rank
    if steps is None:
        steps, few = [], schedule.num_ranks >= LEAST_RANKS and ranks is not None
        asked = np.full(schedule.num_ranks, not few)
        asked[list(ranks or ())] = True
        for step in schedule.steps():
            rows = step.by_chunk()
            columns = [rows.src, rows.dst, rows.chunk, rows.reduce]
            if few:
                columns = [column[asked[rows.src] | asked[rows.dst]] for column in columns]
            steps.append([[] for _ in range(schedule.num_ranks)])
            for row in zip(*(column.tolist() for column in columns), strict=True):
                steps[-1][row[0]].append(row)
                steps[-1][row[1]].append(row)
        if not few and sum(len(mine) for of_ranks in steps for mine in of_ranks) <= MOST_KEPT:
            schedule.cache["transfers"] = steps
    own, result, sizes = schedule.given(), schedule.wanted(), np.diff(ends)
    made = []
    for rank in range(schedule.num_ranks) if ranks is None else ranks:
        mine = [of_ranks[rank] for of_ranks in steps]
        touched = own[rank] | result[rank]
        touched[[chunk for step in mine for _, dst, chunk, _ in step if dst == rank]] = True
        starts = np.cumsum(sizes * touched) - sizes * touched
        run_of = list(zip(starts.tolist(), (starts + sizes).tolist(), strict=True))
        passed = _runs(np.flatnonzero(own[rank]).tolist(), run_of)
        planner = _Planner([_rank_step(step, rank, run_of) for step in mine], ahead)
        made.append(
            Plan(
                int((sizes * touched).sum()),
                (passed[0][0], passed[-1][1]) if passed else (0, 0),
                _runs(np.flatnonzero(result[rank]).tolist(), run_of),
                planner.transfers,
                planner.program,
                planner.num_scratch,
            )
        )
    return made


class Alike(NamedTuple):
    """Ranks that do the same: rank r does what `ranks[of[r]]` does, with peers that do the same as each other, too.

    `places` has for each message of these ranks, by its sender, its receiver and its step, where it stands among all
    that its sender sends and receives: messages of ranks that do the same have the same place.
    """

    ranks: list[int]
    of: list[int]
    places: dict[tuple[int, int, int], int]


def alike(schedule: Schedule, ends: list[int], nodes: NDArray[np.int64]) -> Alike:
    """Return which ranks carry out programs that differ in names of peers and chunks only, now and ever after.

    Ranks are distinguished by their rows (what is sent and received in which step, in which order, how long, on which
    side of a node's border, which chunk again), then by those of their peers, until nothing changes. Where some ranks
    leave chunks out, and with few ranks, each is alike to itself only.
    """
    n, sizes = schedule.num_ranks, np.diff(ends)
    _, kind = np.unique(sizes, return_inverse=True)
    key = "alike", kind.tobytes(), nodes.tobytes()
    if key in schedule.cache:
        return schedule.cache[key]  # type: ignore[no-any-return]
    if n < LEAST_RANKS or not sizes.all() or not (schedule.given() | schedule.wanted()).all():
        return Alike(list(range(n)), list(range(n)), {})
    steps = [step.by_chunk() for step in schedule.steps()]
    src, dst, chunk, reduce = (np.concatenate([step[column] for step in steps]) for column in (0, 1, 2, 4))
    number = np.repeat(np.arange(len(steps)), [step.src.size for step in steps])
    if not src.size:
        return Alike(list(range(n)), list(range(n)), {})
    rows = np.arange(src.size)
    order = np.lexsort((np.r_[rows, rows], np.r_[rows >= 0, rows < 0], np.r_[number, number], np.r_[src, dst]))
    rank, peer, row = np.r_[src, dst][order], np.r_[dst, src][order], np.r_[rows, rows][order]
    sends, step, part = order < rows.size, number[row], chunk[row]  # of each end of each row
    place = np.arange(rank.size) - np.searchsorted(rank, rank)
    back = np.argsort(order)
    other = place[back[(order + rows.size) % order.size]]  # where the same row stands at its other end
    message = ((rank * len(steps) + step) * 2 + sends) * n + peer
    _, first, group = np.unique(message, return_index=True, return_inverse=True)
    _, first_use, use = np.unique(rank * schedule.num_chunks + part, return_index=True, return_inverse=True)
    by_chunk = np.lexsort((part, message))
    turn, follows = np.empty_like(place), np.zeros_like(place)
    turn[by_chunk] = np.arange(rank.size) - np.searchsorted(message[by_chunk], message[by_chunk])
    follows[by_chunk[1:]] = (np.diff(part[by_chunk]) == 1) & (turn[by_chunk[1:]] > 0)
    message_place = place[first][group]
    columns = [step, sends, message_place, place[first_use][use], turn, follows, kind[part], reduce[row], other]
    columns.append(nodes[rank] == nodes[peer])
    packed, room = [np.zeros(rank.size, dtype=np.int64)], 1
    for column in columns:
        most = int(column.max()) + 1
        if room * most > 2**62:
            packed.append(np.zeros(rank.size, dtype=np.int64))
            room = 1
        packed[-1], room = packed[-1] * most + column, room * most
    table = np.full((n, int(place.max()) + 1, len(packed)), -1)
    table[rank, place] = np.stack(packed, axis=1)
    _, color = np.unique(table.reshape(n, -1), axis=0, return_inverse=True)
    color, before = color.reshape(-1), 0
    while color.max() + 1 > before:
        before = int(color.max()) + 1
        seen = np.full((n, table.shape[1] + 1), -1)
        seen[rank, place], seen[:, -1] = color[peer], color
        color = np.unique(seen, axis=0, return_inverse=True)[1].reshape(-1)
    _, ranks, of = np.unique(color, return_index=True, return_inverse=True)
    by_rank = np.argsort(ranks)
    of = np.argsort(by_rank)[of]
    chosen = np.zeros(n, dtype=bool)
    chosen[ranks] = True
    wanted = sends & (chosen[rank] | chosen[peer])
    ends_of = zip(rank[wanted].tolist(), peer[wanted].tolist(), step[wanted].tolist(), strict=True)
    places = dict(zip(ends_of, message_place[wanted].tolist(), strict=True))
    schedule.cache[key] = found = Alike(ranks[by_rank].tolist(), of.tolist(), places)
    return found


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


class _StepMessage(NamedTuple):
    """What goes between this rank and `peer` in one step: the elements of `runs`, one run after the other."""

    peer: int
    runs: tuple[Run, ...]


class _Arrival(NamedTuple):
    """Elements `at` and on of a received message: they are added to the elements of `run`, or replace them."""

    message: int
    at: int
    run: Run
    reduce: bool


class _RankStep(NamedTuple):
    """One step of one rank; `arrivals` are in the order in which sums must be made."""

    sends: list[_StepMessage]
    receives: list[_StepMessage]
    arrivals: list[_Arrival]


def _rank_step(transfers: list[Row], rank: int, run_of: list[Run]) -> _RankStep:
    """One step of a rank, of the transfers that are its own; messages are in the order of their first transfers."""
    sends: dict[int, list[int]] = {}
    receives: dict[int, list[tuple[int, int, bool]]] = {}  # chunk, place of the transfer, whether it is added
    for place, (src, dst, chunk, reduce) in enumerate(transfers):
        if run_of[chunk][0] == run_of[chunk][1]:
            continue
        if src == rank:
            sends.setdefault(dst, []).append(chunk)
        else:
            receives.setdefault(src, []).append((chunk, place, reduce))
    parts: list[tuple[int, int, int, int, int, bool]] = []  # place of the transfer; message, at, start, stop, reduce
    for message, chunks in enumerate(receives.values()):
        at = 0
        chunks.sort()
        for chunk, place, reduce in chunks:
            start, stop = run_of[chunk]
            parts.append((place, message, at, start, stop, reduce))
            at += stop - start
    if len({start for _, _, _, start, _, _ in parts}) < len(parts):
        parts.sort()  # the order of transfers matters: one run takes several
    merged: list[list[Any]] = []
    for _, message, at, start, stop, reduce in parts:
        last = merged[-1] if merged else None
        if last and last[3] == start and last[0] == message and last[1] + start - last[2] == at and last[4] == reduce:
            last[3] = stop
        else:
            merged.append([message, at, start, stop, reduce])
    arrivals = [_Arrival(message, at, (start, stop), reduce) for message, at, start, stop, reduce in merged]
    return _RankStep(
        [_StepMessage(peer, _runs(sorted(chunks), run_of)) for peer, chunks in sends.items()],
        [_StepMessage(peer, _runs([chunk for chunk, _, _ in chunks], run_of)) for peer, chunks in receives.items()],
        arrivals,
    )


class _Planner:
    """Plans step by step.

    In each step: wait for what the last one received; add it up, if this step sends any of it; post, long messages
    last, since the signal that a receive is ready travels behind them; add it up now, if that was not yet done, while
    the messages travel.
    """

    def __init__(self, steps: list[_RankStep], ahead: bool) -> None:
        self.steps, self.ahead = steps, ahead
        self.transfers: list[Transfer] = []
        self.program: list[Post | Wait | Write] = []
        self.num_scratch = 0
        self.taken: list[Run] = []  # of the scratch
        self.sending: list[int] = []  # sends that have not been waited for
        self.arriving: list[list[int]] = [[] for _ in steps]  # the receives of each step
        if ahead and steps:
            self._post(self._receives(0))
        for number in range(len(steps) + 1):
            self._step(number)

    def _step(self, number: int) -> None:
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
            self._post([*compress(sends, map(not_, long)), *receives, *compress(sends, long)])
        for arrival in held:
            self._write(number - 1, arrival)
        if held:
            self._give_back(self.arriving[number - 1])

    def _post(self, transfers: list[int]) -> None:
        if transfers:
            self.program.append(Post(tuple(transfers)))

    def _finish(self, number: int, last: bool) -> list[_Arrival]:
        """Wait for the receives of a step; return what of them may be added up after the next sends are posted."""
        receives = self.arriving[number]
        arrivals = [one for one in self.steps[number].arrivals if self.transfers[receives[one.message]].span.scratch]
        sent = [] if last else [run for message in self.steps[number + 1].sends for run in message.runs]
        needed = last or _overlap((arrival.run for arrival in arrivals), sent)
        waiting = list(receives)
        for arrival in arrivals if needed else []:
            if receives[arrival.message] in waiting:
                waiting.remove(receives[arrival.message])
                self.program.append(Wait(receives[arrival.message]))
            self._write(number, arrival)
        self.program += map(Wait, waiting)
        if needed or not arrivals:
            self._give_back(receives)
            return []
        return arrivals

    def _wait_send(self, send: int) -> None:
        self.sending.remove(send)
        self._give_back([send])
        self.program.append(Wait(send))

    def _wait_readers(self, runs: Sequence[Run]) -> None:
        """Wait for the sends that may still be reading these elements of the buffer."""
        for send in list(self.sending):
            span = self.transfers[send].span
            if not span.scratch and _overlap(runs, [(span.start, span.stop)]):
                self._wait_send(send)

    def _write(self, number: int, arrival: _Arrival) -> None:
        self._wait_readers([arrival.run])
        start = self.transfers[self.arriving[number][arrival.message]].span.start + arrival.at
        source = Elements(True, start, start + arrival.run[1] - arrival.run[0])
        self.program.append(Write(Elements(False, *arrival.run), source, arrival.reduce))

    def _sends(self, number: int) -> list[int]:
        first = len(self.transfers)
        for message in self.steps[number].sends:
            span = Elements(False, *message.runs[0])
            if len(message.runs) > 1:  # they are put side by side
                span = self._take(message.runs)
                at = span.start
                for start, stop in message.runs:
                    self.program.append(
                        Write(Elements(True, at, at + stop - start), Elements(False, start, stop), False)
                    )
                    at += stop - start
            self.transfers.append(Transfer(number, message.peer, True, span))
        posted = list(range(first, len(self.transfers)))
        self.sending += posted
        return posted

    def _receives(self, number: int) -> list[int]:
        first = len(self.transfers)
        for place, message in enumerate(self.steps[number].receives):
            if self._is_direct(number, place):
                self._wait_readers(message.runs)
                span = Elements(False, *message.runs[0])
            else:
                span = self._take(message.runs)
            self.transfers.append(Transfer(number, message.peer, False, span))
        self.arriving[number] = list(range(first, len(self.transfers)))
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

    def _take(self, runs: Iterable[Run]) -> Elements:
        """The first gap of the scratch that is wide enough for these elements, for as long as it is needed."""
        num_elements, start = sum(stop - start for start, stop in runs), 0
        for begin, end in sorted(self.taken):
            if begin - start >= num_elements:
                break
            start = -(-end // ALIGNED) * ALIGNED
        self.taken.append((start, start + num_elements))
        self.num_scratch = max(self.num_scratch, start + num_elements)
        return Elements(True, start, start + num_elements)

    def _give_back(self, transfers: Iterable[int]) -> None:
        for scratch, start, stop in (self.transfers[number].span for number in transfers):
            if scratch:
                self.taken.remove((start, stop))


def _overlap(some: Iterable[Run], others: Sequence[Run]) -> bool:
    for start, stop in some:  # faster than any(…), and asked for each message
        for begin, end in others:
            if start < end and begin < stop:
                return True
    return False
