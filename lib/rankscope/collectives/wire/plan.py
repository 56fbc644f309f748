"""What one rank of a schedule sends and receives, and the order in which it posts, waits and adds up.

A plan is pure; `run` carries it out on real tensors, and `twin` on a simulated cluster.

A receive is posted one step ahead of the step that needs it, since a sender's bytes leave only once the receiver is
ready. Nothing is written into elements that a message may still be reading: an allreduce that added into a buffer
before its send was done gave wrong sums on slow networks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..schedule import MOST_KEPT, Schedule, Step, number_among_equal

# With fewer ranks, to plan each one takes about as long as to find those that do the same: so `alike` does not look for
# them, and all transfers are listed.
LEAST_RANKS = 16
LANE = "executor"  # of a rank, for the time that it spends on its program
LONG = 4096  # elements: no ready signal waits behind a longer message; shorter ones take about a latency or less
ALIGNED = 64  # elements: places in the scratch begin at multiples of it, and so of a cache line, whatever the dtype


class Run(NamedTuple):
    """Elements from `start` up to `stop`."""

    start: int
    stop: int

    @property
    def num_elements(self) -> int:
        return self.stop - self.start


class ChunkTransfer(NamedTuple):
    """One chunk that goes from one rank to another in a step."""

    src: int
    dst: int
    chunk: int
    reduce: bool


class Elements(NamedTuple):
    """Elements of the rank's buffer, or of its scratch."""

    scratch: bool
    start: int
    stop: int

    @property
    def num_elements(self) -> int:
        return self.stop - self.start


class Transfer(NamedTuple):
    """One message on the wire: its elements are contiguous."""

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

    The elements that the rank passes are at `initial_run` at the start, and its result is at `wanted` in the end.
    `program` is carried out in order. The scratch has `num_scratch` elements, in addition to the buffer's
    `num_elements`.
    """

    num_elements: int
    initial_run: Run
    wanted: tuple[Run, ...]
    transfers: list[Transfer]
    program: list[Post | Wait | Write]
    num_scratch: int


def plans(schedule: Schedule, ends: list[int], ranks: Sequence[int] | None = None, ahead: bool = True) -> list[Plan]:
    """Return the plan of every rank, or of these `ranks`; `ends` are the chunks' ends, as `chunk_ends` returns them.

    With `ahead`, receives are posted in the step before theirs, otherwise with the sends of their own step. All
    transfers of a step between the same two ranks are one message, its chunks in ascending order; chunks and messages
    of no elements are left out. The schedule is not checked.

    >>> from .. import ALGORITHMS
    >>> for op in plans(ALGORITHMS["reduce"]["flat"](2), [0, 8], ranks=[0])[0].program:
    ...     print(op)
    Post(transfers=(0,))
    Wait(transfer=0)
    Write(to=Elements(scratch=False, start=0, stop=8), source=Elements(scratch=True, start=0, stop=8), reduce=True)
    """
    steps = _transfers_of_ranks(schedule, ranks)
    is_initial = schedule.initial_chunks()  # shape (ranks, chunks), as `is_wanted`
    is_wanted = schedule.wanted()
    sizes = np.diff(ends)
    if ranks is None:
        ranks = range(schedule.num_ranks)
    rank_plans = []
    for rank in ranks:
        transfers = [transfers_by_rank[rank] for transfers_by_rank in steps]
        rank_plans.append(_plan(rank, transfers, is_initial[rank], is_wanted[rank], sizes, ahead))
    return rank_plans


def _plan(
    rank: int,
    steps: list[list[ChunkTransfer]],
    is_initial: NDArray[np.bool_],
    is_wanted: NDArray[np.bool_],
    sizes: NDArray[np.int64],
    ahead: bool,
) -> Plan:
    """Return the plan of a rank from its transfers in each step; the arrays have an entry per chunk."""
    # The buffer has only chunks that the rank ever has, one behind the other in the order of their numbers.
    in_buffer = is_initial | is_wanted
    for transfers in steps:
        for transfer in transfers:
            if transfer.dst == rank:
                in_buffer[transfer.chunk] = True
    buffer_sizes = sizes * in_buffer
    starts = np.cumsum(buffer_sizes) - buffer_sizes
    stops = starts + sizes  # those of chunks that the rank never has are not used
    run_of = [Run(start, stop) for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    initial_runs = _runs(np.flatnonzero(is_initial).tolist(), run_of)
    initial_run = Run(0, 0)
    if initial_runs:  # one at most, because the chunks that a rank passes follow one another in every collective
        (initial_run,) = initial_runs
    planner = _Planner([_rank_step(transfers, rank, run_of) for transfers in steps], ahead)
    return Plan(
        num_elements=int(buffer_sizes.sum()),
        initial_run=initial_run,
        wanted=_runs(np.flatnonzero(is_wanted).tolist(), run_of),
        transfers=planner.transfers,
        program=planner.program,
        num_scratch=planner.num_scratch,
    )


def _transfers_of_ranks(schedule: Schedule, ranks: Sequence[int] | None) -> list[list[list[ChunkTransfer]]]:
    """Return for each step and each rank the transfers that the rank takes part in.

    If there are many ranks, only the transfers of `ranks` are listed. A list of all transfers is kept in the schedule's
    cache, for all ranks and sizes, unless it is too long.
    """
    steps: list[list[list[ChunkTransfer]]] | None = schedule.cache.get("transfers")
    if steps is not None:
        return steps
    is_wanted_rank = None  # None: all are listed
    if ranks is not None and schedule.num_ranks >= LEAST_RANKS:
        is_wanted_rank = np.zeros(schedule.num_ranks, dtype=bool)
        is_wanted_rank[list(ranks)] = True
    steps = []
    num_listed = 0
    for step in schedule.steps():
        rows = step.by_chunk()
        columns = [rows.src, rows.dst, rows.chunk, rows.reduce]
        if is_wanted_rank is not None:
            is_listed = is_wanted_rank[rows.src] | is_wanted_rank[rows.dst]
            columns = [column[is_listed] for column in columns]
        transfers_by_rank: list[list[ChunkTransfer]] = [[] for _ in range(schedule.num_ranks)]
        for row in zip(*(column.tolist() for column in columns), strict=True):
            transfer = ChunkTransfer._make(row)
            transfers_by_rank[transfer.src].append(transfer)
            transfers_by_rank[transfer.dst].append(transfer)
            num_listed += 2  # at the sender, and at the receiver
        steps.append(transfers_by_rank)
    if is_wanted_rank is None and num_listed <= MOST_KEPT:
        schedule.cache["transfers"] = steps
    return steps


class EquivalentRanks(NamedTuple):
    """Ranks that do the same: rank r does what `ranks[of[r]]` does, with peers that do the same as each other, too.

    `places` has, for each message of these ranks, by its sender, receiver and step, its place among all messages that
    its sender sends and receives: messages of ranks that do the same have the same place.
    """

    ranks: list[int]
    of: list[int]
    places: dict[tuple[int, int, int], int]


def alike(schedule: Schedule, ends: list[int], nodes: NDArray[np.int64]) -> EquivalentRanks:
    """Return which ranks do the same: their programs, and their peers', differ in numbers of chunks and ranks only.

    `ends` are the chunks' ends, as `chunk_ends` returns them; `nodes` has the node of each rank.

    Ranks are distinguished by their transfers (in which step, in which direction and order, how long, within a node or
    not, and which of them are of one chunk), then by those of their peers, until nothing changes. If some ranks do not
    have all chunks, or if there are few ranks, each rank is only equivalent to itself.
    """
    sizes = np.diff(ends)
    _, kind_of_size = np.unique(sizes, return_inverse=True)  # for each chunk a number, equal for chunks of equal size
    key = ("alike", kind_of_size.tobytes(), nodes.tobytes())
    if key in schedule.cache:
        return schedule.cache[key]  # type: ignore[no-any-return]
    num_ranks = schedule.num_ranks
    each_alone = EquivalentRanks(list(range(num_ranks)), list(range(num_ranks)), {})
    # Where chunks are empty, or not in every rank's buffer, the same transfers may be other runs of the buffers.
    all_have_all_chunks = sizes.all() and (schedule.initial_chunks() | schedule.wanted()).all()
    if num_ranks < LEAST_RANKS or not all_have_all_chunks:
        return each_alone
    ends_of_transfers = _ends_of_transfers(schedule, kind_of_size, nodes)
    if ends_of_transfers is None:
        return each_alone
    color = _colors(num_ranks, ends_of_transfers)
    lowest_equivalent = _first_of_equal(color)  # for each rank the lowest one that does the same
    representatives, of = np.unique(lowest_equivalent, return_inverse=True)
    places = _message_places(ends_of_transfers, representatives, num_ranks)
    result = EquivalentRanks(representatives.tolist(), of.tolist(), places)
    schedule.cache[key] = result
    return result


def _message_places(
    ends: _EndsOfTransfers, ranks: NDArray[np.int64], num_ranks: int
) -> dict[tuple[int, int, int], int]:
    """Return the `places` of `EquivalentRanks`: of all messages that one of these ranks sends or receives."""
    is_listed_rank = np.zeros(num_ranks, dtype=bool)
    is_listed_rank[ranks] = True
    # The ends at senders, one for each chunk of a message; all chunks of a message have the message's place.
    is_listed = ends.sends & (is_listed_rank[ends.rank] | is_listed_rank[ends.peer])
    senders = ends.rank[is_listed].tolist()
    receivers = ends.peer[is_listed].tolist()
    steps = ends.step[is_listed].tolist()
    message_places = ends.message_place[is_listed].tolist()
    return dict(zip(zip(senders, receivers, steps, strict=True), message_places, strict=True))


class _EndsOfTransfers(NamedTuple):
    """Both ends of each transfer of a chunk: all that a rank does, one rank after the other, in the order of steps.

    All arrays have one entry per end, so twice as many as there are transfers. `rank` is where the end is, and `peer`
    where the other end is. `place` numbers the ends of each rank from 0. `message_place` is the place of the first
    end of the same message. Each of the `features` is equal for two ranks that do the same.
    """

    rank: NDArray[np.int64]
    peer: NDArray[np.int64]
    step: NDArray[np.int64]
    sends: NDArray[np.bool_]
    place: NDArray[np.int64]
    message_place: NDArray[np.int64]
    features: list[NDArray[Any]]


class _ChunkTransfers(NamedTuple):
    """All transfers of chunks, in the order of steps; the arrays have one entry per transfer."""

    step: NDArray[np.int64]
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    chunk: NDArray[np.int64]
    reduce: NDArray[np.bool_]


def _chunk_transfers(steps: list[Step]) -> _ChunkTransfers:
    """Return the transfers of steps that have one row per chunk. There must be a step, since columns are joined."""
    return _ChunkTransfers(
        step=np.repeat(np.arange(len(steps)), [step.src.size for step in steps]),
        src=np.concatenate([step.src for step in steps]),
        dst=np.concatenate([step.dst for step in steps]),
        chunk=np.concatenate([step.chunk for step in steps]),
        reduce=np.concatenate([step.reduce for step in steps]),
    )


def _first_of_equal(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each entry where the first entry with the same value is: [7, 5, 7] gives [0, 1, 0]."""
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    return first[group]


def _ends_of_transfers(
    schedule: Schedule, kind_of_size: NDArray[np.int64], nodes: NDArray[np.int64]
) -> _EndsOfTransfers | None:
    """Return both ends of all transfers of a schedule, with their features, or None if nothing is sent."""
    steps = [step.by_chunk() for step in schedule.steps()]
    num_steps = len(steps)
    num_sent = sum(step.src.size for step in steps)
    if num_sent == 0:
        return None
    sent = _chunk_transfers(steps)

    # Every array has an entry for each end: first the ends at all senders, then those at all receivers. So the two ends
    # of a transfer are `num_sent` entries apart.
    transfer = np.tile(np.arange(num_sent), 2)
    sends = np.repeat([True, False], num_sent)
    rank = np.concatenate([sent.src, sent.dst])
    peer = np.concatenate([sent.dst, sent.src])

    # Sort the ends by rank, then step, then side (receives first), then transfer, so that how a schedule
    # mixes sends and receives within a step does not count; lexsort has the last key first.
    order = np.lexsort((transfer, sends, sent.step[transfer], rank))  # which end comes to each sorted place
    sorted_place = np.argsort(order)  # the inverse: to which sorted place each end comes
    other_end = sorted_place[(order + num_sent) % (2 * num_sent)]  # the sorted place of the same transfer's other end
    transfer = transfer[order]
    sends = sends[order]
    rank = rank[order]
    peer = peer[order]
    step = sent.step[transfer]
    chunk = sent.chunk[transfer]
    place = number_among_equal(rank)

    # A message is what a rank sends to, or receives from, one peer in one step: equal numbers are one message.
    message = ((rank * num_steps + step) * 2 + sends) * schedule.num_ranks + peer
    message_place = place[_first_of_equal(message)]
    # Two ranks may do the same with different chunks. So a chunk is known by where its rank first uses it.
    chunk_of_rank = rank * schedule.num_chunks + chunk
    first_use = place[_first_of_equal(chunk_of_rank)]
    number_in_message, is_adjacent = _chunk_order(message, chunk)

    features = [
        step,
        sends,
        message_place,
        first_use,
        number_in_message,
        is_adjacent,
        kind_of_size[chunk],
        sent.reduce[transfer],
        place[other_end],
        nodes[rank] == nodes[peer],
    ]
    return _EndsOfTransfers(rank, peer, step, sends, place, message_place, features)


def _chunk_order(message: NDArray[np.int64], chunk: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return each chunk's number in its message, and 1 where it directly follows the chunk before it there, else 0.

    Within a message chunks are sent in ascending order: chunks [4, 9, 3] of one message have the numbers [1, 2, 0], and
    only chunk 4 follows another one directly.
    """
    by_chunk = np.lexsort((chunk, message))  # message by message, and in each by chunk
    number_in_message = np.empty_like(chunk)
    number_in_message[by_chunk] = number_among_equal(message[by_chunk])
    is_adjacent = np.zeros_like(chunk)
    follows_another = number_in_message[by_chunk[1:]] > 0
    is_adjacent[by_chunk[1:]] = (np.diff(chunk[by_chunk]) == 1) & follows_another
    return number_in_message, is_adjacent


def _colors(num_ranks: int, ends: _EndsOfTransfers) -> NDArray[np.int64]:
    """Return a number for each rank, its colour, equal for ranks with equal features whose peers have equal colours.

    Starts with a colour for each list of features, and distinguishes ranks by their peers' colours until that adds no
    more colours.
    """
    packed = _packed(ends.features)
    most_ends = int(ends.place.max()) + 1
    # A row for each rank says all about its ends; -1 fills the rows of ranks that have fewer.
    ends_of_ranks = np.full((num_ranks, most_ends, packed.shape[1]), -1)
    ends_of_ranks[ends.rank, ends.place] = packed
    color = _numbered(ends_of_ranks.reshape(num_ranks, -1))

    num_colors = 0
    while color.max() + 1 > num_colors:
        num_colors = int(color.max()) + 1
        peer_colors = np.full((num_ranks, most_ends + 1), -1)
        peer_colors[ends.rank, ends.place] = color[ends.peer]
        peer_colors[:, -1] = color  # so that ranks of different colours stay different
        color = _numbered(peer_colors)
    return color


def _packed(features: list[NDArray[Any]]) -> NDArray[np.int64]:
    """Return the features in as few columns as possible: equal rows have equal features, and are faster to compare.

    As with the digits of a number, a column times the number of a feature's values leaves room to add the feature.
    """
    columns = [np.zeros(features[0].size, dtype=np.int64)]
    num_values = 1  # of the last column so far
    for feature in features:
        num_values_of_feature = int(feature.max()) + 1
        if num_values * num_values_of_feature > 2**63:  # an int64 has so many values from 0 up: begin another column
            columns.append(np.zeros(feature.size, dtype=np.int64))
            num_values = 1
        columns[-1] = columns[-1] * num_values_of_feature + feature
        num_values *= num_values_of_feature
    return np.stack(columns, axis=1)


def _numbered(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number for each row of a table; equal rows have equal numbers."""
    _, number = np.unique(rows, axis=0, return_inverse=True)
    return number.reshape(-1)  # numpy 2.0 returns a table of one column


def _runs(chunks: Iterable[int], run_of: list[Run]) -> tuple[Run, ...]:
    """Return the elements of these chunks, with adjacent ones merged and without empty ones."""
    runs: list[Run] = []
    for chunk in chunks:
        run = run_of[chunk]
        if runs and runs[-1].stop == run.start:
            runs[-1] = Run(runs[-1].start, run.stop)
        elif run.num_elements > 0:
            runs.append(run)
    return tuple(runs)


class _StepMessage(NamedTuple):
    """What goes between this rank and `peer` in one step: the elements of `runs`, one run after the other."""

    peer: int
    runs: tuple[Run, ...]


class _Arrival(NamedTuple):
    """Elements of a received message from `offset` on; they are added to the elements of `run`, or replace them.

    `message` is the message's number among those that the rank receives in the step.
    """

    message: int
    offset: int
    run: Run
    reduce: bool

    def is_followed_by(self, other: _Arrival) -> bool:
        """Whether another one continues it in the message and in the buffer."""
        end_in_message = self.offset + self.run.num_elements
        continues_in_message = self.message == other.message and end_in_message == other.offset
        continues_in_buffer = self.run.stop == other.run.start
        return continues_in_message and continues_in_buffer and self.reduce == other.reduce


class _ReceivedChunk(NamedTuple):
    """A chunk of a received message, and the number of its transfer among those of the step."""

    chunk: int
    transfer: int
    reduce: bool


class _RankStep(NamedTuple):
    """One step of one rank; `arrivals` are in the order in which sums must be made."""

    sends: list[_StepMessage]
    receives: list[_StepMessage]
    arrivals: list[_Arrival]


def _rank_step(transfers: list[ChunkTransfer], rank: int, run_of: list[Run]) -> _RankStep:
    """Return one step of a rank from its own transfers; messages are in the order of their first transfers.

    `run_of` has the elements of each chunk. All chunks between two ranks travel in one message, in ascending order.
    """
    sent: dict[int, list[int]] = {}  # chunks by receiver
    received: dict[int, list[_ReceivedChunk]] = {}  # by sender
    for number, (src, dst, chunk, reduce) in enumerate(transfers):
        if run_of[chunk].num_elements == 0:
            continue  # an empty chunk needs no message
        if src == rank:
            sent.setdefault(dst, []).append(chunk)
        else:
            received.setdefault(src, []).append(_ReceivedChunk(chunk, number, reduce))
    sends = []
    for peer, chunks in sent.items():
        sends.append(_StepMessage(peer, _runs(sorted(chunks), run_of)))
    receives = []
    for peer, received_chunks in received.items():
        received_chunks.sort(key=lambda received_chunk: received_chunk.chunk)
        chunks = [received_chunk.chunk for received_chunk in received_chunks]
        receives.append(_StepMessage(peer, _runs(chunks, run_of)))
    return _RankStep(sends, receives, _arrivals(received.values(), run_of))


def _arrivals(messages: Iterable[list[_ReceivedChunk]], run_of: list[Run]) -> list[_Arrival]:
    """Return what to do with the chunks of each message, with those merged that continue each other.

    They are in the order of messages and of chunks, in which most can be merged. If several write to the same run, they
    are in the order of the step's transfers, in which sums must be made.
    """
    arrivals: list[_Arrival] = []
    transfer_of: list[int] = []  # the number of each arrival's transfer
    for message, chunks in enumerate(messages):
        offset = 0
        for chunk, transfer, reduce in chunks:
            run = run_of[chunk]
            arrivals.append(_Arrival(message, offset, run, reduce))
            transfer_of.append(transfer)
            offset += run.num_elements
    written_starts = {arrival.run.start for arrival in arrivals}
    several_write_to_one_run = len(written_starts) < len(arrivals)
    if several_write_to_one_run:
        by_transfer = sorted(range(len(arrivals)), key=lambda index: transfer_of[index])
        arrivals = [arrivals[index] for index in by_transfer]
    merged: list[_Arrival] = []
    for arrival in arrivals:
        if merged and merged[-1].is_followed_by(arrival):
            longer = Run(merged[-1].run.start, arrival.run.stop)
            merged[-1] = merged[-1]._replace(run=longer)
        else:
            merged.append(arrival)
    return merged


class _Planner:
    """Plans step by step, all on creation: `transfers`, `program` and `num_scratch` are those of the `Plan`.

    In each step: wait for what the last one received; add it up, if this step sends any of it; post, long messages
    last, since the signal that a receive is ready travels behind them; add it up now, if that was not yet done, while
    the messages travel.
    """

    def __init__(self, steps: list[_RankStep], ahead: bool) -> None:
        self.steps = steps
        self.ahead = ahead
        self.transfers: list[Transfer] = []
        self.program: list[Post | Wait | Write] = []
        self.num_scratch = 0
        self.used_scratch: list[Run] = []  # the runs of the scratch that are in use
        self.pending_sends: list[int] = []  # the numbers of transfers that have not been waited for
        self.receives: list[list[int]] = [[] for _ in steps]  # the transfers that each step receives, once planned
        if ahead and steps:
            self._post(self._plan_receives(0))
        for number in range(len(steps)):
            self._step(number)
        self._finish_all()

    def _step(self, number: int) -> None:
        """Plan the step with this number, and the end of the one before it."""
        postponed: list[_Arrival] = []
        if number > 0:
            arrivals = self._arrivals_in_scratch(number - 1)
            if _sends_any(self.steps[number].sends, arrivals):
                self._finish(number - 1, arrivals)
            else:
                self.program += map(Wait, self.receives[number - 1])
                postponed = arrivals
        # The sends of the step before this one may go on. Those of earlier ones end here, which frees their scratch.
        earlier_sends = [send for send in self.pending_sends if self.transfers[send].step < number - 1]
        for send in earlier_sends:
            self._wait_send(send)
        sends = self._plan_sends(number)
        receives: list[int] = []
        if not self.ahead:
            receives = self._plan_receives(number)
        elif number + 1 < len(self.steps):
            receives = self._plan_receives(number + 1)
        short = [send for send in sends if self.transfers[send].span.num_elements <= LONG]
        long = [send for send in sends if self.transfers[send].span.num_elements > LONG]
        # The peer of a receive gets its ready signal after the messages that are posted before it.
        self._post([*short, *receives, *long])
        if postponed:
            for arrival in postponed:
                self._write(number - 1, arrival)
            self._release_scratch(self.receives[number - 1])

    def _finish_all(self) -> None:
        """Wait for what is left after the last step, and add it up."""
        if self.steps:
            last = len(self.steps) - 1
            self._finish(last, self._arrivals_in_scratch(last))
        for send in list(self.pending_sends):
            self._wait_send(send)

    def _post(self, transfers: list[int]) -> None:
        if transfers:
            self.program.append(Post(tuple(transfers)))

    def _arrivals_in_scratch(self, number: int) -> list[_Arrival]:
        """Return those arrivals of a step that come into the scratch; the others are received where they belong."""
        receives = self.receives[number]
        arrivals = []
        for arrival in self.steps[number].arrivals:
            if self.transfers[receives[arrival.message]].span.scratch:
                arrivals.append(arrival)
        return arrivals

    def _finish(self, number: int, arrivals: list[_Arrival]) -> None:
        """Wait for all receives of a step, write each of these arrivals once it is there, and release the scratch."""
        receives = self.receives[number]
        not_waited_for = list(receives)
        for arrival in arrivals:
            receive = receives[arrival.message]
            if receive in not_waited_for:
                not_waited_for.remove(receive)
                self.program.append(Wait(receive))
            self._write(number, arrival)
        self.program += map(Wait, not_waited_for)
        self._release_scratch(receives)

    def _wait_send(self, send: int) -> None:
        """Wait for a send, and release its scratch."""
        self.pending_sends.remove(send)
        self._release_scratch([send])
        self.program.append(Wait(send))

    def _wait_readers(self, runs: Sequence[Run]) -> None:
        """Wait for the sends that may still be reading these elements of the buffer."""
        for send in list(self.pending_sends):
            span = self.transfers[send].span
            reads_buffer = not span.scratch
            if reads_buffer and _overlap(runs, [Run(span.start, span.stop)]):
                self._wait_send(send)

    def _write(self, number: int, arrival: _Arrival) -> None:
        """Add an arrival of the step with this number to the buffer, or copy it there, from the scratch."""
        self._wait_readers([arrival.run])
        message = self.transfers[self.receives[number][arrival.message]].span
        source = _in_scratch(message.start + arrival.offset, arrival.run.num_elements)
        self.program.append(Write(to=_in_buffer(arrival.run), source=source, reduce=arrival.reduce))

    def _plan_sends(self, number: int) -> list[int]:
        """Add the sends of a step to the transfers, from the buffer if they are one run there; return their numbers."""
        first = len(self.transfers)
        for message in self.steps[number].sends:
            if len(message.runs) == 1:
                (run,) = message.runs
                span = _in_buffer(run)
            else:
                span = self._gather(message.runs)
            self.transfers.append(Transfer(number, message.peer, sends=True, span=span))
        sends = list(range(first, len(self.transfers)))
        self.pending_sends += sends
        return sends

    def _gather(self, runs: Sequence[Run]) -> Elements:
        """Copy runs of the buffer next to each other into the scratch, and return where."""
        span = self._reserve_scratch(runs)
        start = span.start
        for run in runs:
            copy = _in_scratch(start, run.num_elements)
            self.program.append(Write(to=copy, source=_in_buffer(run), reduce=False))
            start = copy.stop
        return span

    def _plan_receives(self, number: int) -> list[int]:
        """Add the receives of a step to the transfers, straight into the buffer if that is safe; return their numbers.

        Sends that read those elements of the buffer are waited for.
        """
        first = len(self.transfers)
        for message_number, message in enumerate(self.steps[number].receives):
            if self._is_direct(number, message_number):
                self._wait_readers(message.runs)
                (run,) = message.runs  # a message of several runs is not direct
                span = _in_buffer(run)
            else:
                span = self._reserve_scratch(message.runs)
            self.transfers.append(Transfer(number, message.peer, sends=False, span=span))
        self.receives[number] = list(range(first, len(self.transfers)))
        return self.receives[number]

    def _is_direct(self, number: int, message_number: int) -> bool:
        """Whether a message may come straight into the buffer: nothing reads or writes there while it is under way."""
        step = self.steps[number]
        runs = step.receives[message_number].runs
        is_added = any(arrival.reduce for arrival in step.arrivals if arrival.message == message_number)
        if len(runs) > 1 or is_added:  # one message comes into one run of elements, and replaces what is there
            return False
        used: list[Run] = []
        # It is under way from the step before, in which its receive is posted, until the end of its own.
        for step_under_way in self.steps[max(0, number - 1) : number + 1]:
            for sent in step_under_way.sends:
                used += sent.runs
        # When it is posted, the arrivals of the step before are still under way, and those of the step before that may
        # be written only after the post.
        for earlier_step in self.steps[max(0, number - 2) : number]:
            used += [arrival.run for arrival in earlier_step.arrivals]
        return not _overlap(runs, used)

    def _reserve_scratch(self, runs: Iterable[Run]) -> Elements:
        """Reserve the first gap of the scratch that is wide enough for these elements, until it is released."""
        num_elements = sum(run.num_elements for run in runs)
        start = 0
        for used in sorted(self.used_scratch):
            if used.start - start >= num_elements:
                break
            start = math.ceil(used.stop / ALIGNED) * ALIGNED
        span = _in_scratch(start, num_elements)
        self.used_scratch.append(Run(span.start, span.stop))
        self.num_scratch = max(self.num_scratch, span.stop)
        return span

    def _release_scratch(self, transfers: Iterable[int]) -> None:
        for number in transfers:
            span = self.transfers[number].span
            if span.scratch:
                self.used_scratch.remove(Run(span.start, span.stop))


def _in_buffer(run: Run) -> Elements:
    return Elements(scratch=False, start=run.start, stop=run.stop)


def _in_scratch(start: int, num_elements: int) -> Elements:
    return Elements(scratch=True, start=start, stop=start + num_elements)


def _sends_any(messages: list[_StepMessage], arrivals: list[_Arrival]) -> bool:
    """Whether these messages send elements of these arrivals."""
    sent = [run for message in messages for run in message.runs]
    return _overlap((arrival.run for arrival in arrivals), sent)


def _overlap(runs: Iterable[Run], other_runs: Sequence[Run]) -> bool:
    """Whether any of these runs has an element in common with any of the others."""
    for start, stop in runs:  # faster than any(…), and called for each message
        for other_start, other_stop in other_runs:
            if start < other_stop and other_start < stop:
                return True
    return False
