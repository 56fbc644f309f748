"""`simulate`: when each message of a schedule starts and ends on a cluster, in the single-port Hockney model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster import Cluster
from ..common.checks import number, of_type, one_of
from ..timeline import Timeline
from .schedule import MOST_KEPT, Ints, Phase, Schedule, Step, number_among_equal

Seconds = NDArray[np.float64]
Bytes = NDArray[np.float64]

MOST_MESSAGES = 250_000  # that get spans of their own by default: up to three each, 36 MB in all
_ROUNDING = 8 * float(np.finfo(float).eps)  # relative: more than the few additions of a step round, each by eps / 2
_SAME = 1e-12  # times that differ by less, relative to the latest, are the same: rounding decides nothing
NO_MESSAGE = -1  # as the number of a message: there is none

_KINDS = ("send", "receive", "reduce")  # of the spans for messages

# Kinds of events of `_QueuedStep`. Those of one instant take effect in this order, because rounding must not decide
# which message takes which of several free ports. A message that has left comes last: see `_take_effect`.
_ENDED = 0  # a message has arrived
_ADDED = 1  # a message has been added up
_ENTERED = 2  # a rank has entered the step
_LEFT = 3  # the bytes of a message have left the sender's network card

# The directions of a rank's link to a switch that adds.
_OUTWARDS = 0
_INWARDS = 1


def simulate(schedule: Schedule, num_bytes: float, cluster: Cluster, detail: str | None = None) -> Timeline:
    """Simulate the schedule and return the timeline of its messages and sums. All ranks start at time 0.

    `num_bytes` is each rank's whole buffer, the total array for allgather and reduce_scatter. A message starts when
    both ranks have finished their earlier steps, including the sums of up to `schedule.lag` steps before, and it has a
    port at both. The messages of a rank get its ports in the order of the step, each the first that is free. A message
    holds its ports for alpha_s + bytes / bytes_per_s, and the receiver's until it is added up. A receiver adds one
    message after the other, as they arrive. A shared network card serves the messages of earlier steps first, and those
    of one step in the order in which they are ready; if they are ready at once, in the order of the step. `Cluster`
    describes a switch that adds. The schedule is not checked here: use `verify`.

    Lanes and kinds are "send", "receive" and "reduce" ("send 1", … for further ports), items are steps. `detail` is
    "messages", or "ranks" for a single span per rank, from 0 to its end; None means messages up to `MOST_MESSAGES`.

    Raises ValueError if the cluster has a different number of ranks, `num_bytes` is not a finite number of at least 0,
    or `detail` is unknown.

    >>> from ..cluster import Link
    >>> from . import ALGORITHMS
    >>> cluster = Cluster.uniform(4, Link(alpha_s=1.0, bytes_per_s=2.0))
    >>> simulate(ALGORITHMS["allreduce"]["ring"](4), 8.0, cluster).makespan_s
    12.0
    """
    of_type("schedule", schedule, Schedule)
    of_type("cluster", cluster, Cluster)
    if schedule.num_ranks != cluster.num_ranks:
        raise ValueError(f"cluster must have the schedule's {schedule.num_ranks} ranks, got {cluster.num_ranks}")
    num_bytes = number("num_bytes", num_bytes, 0)
    if detail is not None:
        one_of("detail", detail, ("messages", "ranks"))
    return _ScheduleSimulation(schedule, num_bytes, cluster, detail).run()


class _ChunkSizes:
    """The bytes of the chunks of a schedule; without weights all have equally many."""

    def __init__(self, schedule: Schedule, num_bytes: float) -> None:
        sizes = schedule.chunk_bytes(num_bytes)
        self._bytes_if_equal = float(sizes[0])
        self._bytes_before: Bytes | None = None  # of all chunks before each, and in the end of all; None if equal
        if schedule.weights is not None:
            self._bytes_before = np.r_[0.0, np.cumsum(sizes)]

    @property
    def are_equal(self) -> bool:
        return self._bytes_before is None

    def of_transfers(self, phase: Phase, number: int) -> Bytes:
        """Return the bytes of each transfer in the step of this number within the phase."""
        if self._bytes_before is None:  # then it is enough to know how many chunks they are, which is so in each step
            return np.asarray(phase.num_chunks * self._bytes_if_equal)
        step = phase.step(number)
        return np.asarray(self._bytes_before[step.chunk + step.num_chunks] - self._bytes_before[step.chunk])


class SentMessages(NamedTuple):
    """The messages of a step: when each started, ended and was added up, and the ports that it took."""

    start_s: Seconds
    end_s: Seconds
    done_s: Seconds
    send_port: Ints
    receive_port: Ints


class _Costs(NamedTuple):
    """Seconds of each message of a step: its latency, latency and bytes together, and the time to add it up."""

    alpha_s: Seconds
    message_s: Seconds
    adding_s: Seconds

    @property
    def wire_s(self) -> Seconds:
        """The time of the bytes alone."""
        return self.message_s - self.alpha_s


class _MessageBytes(NamedTuple):
    """The bytes of each message of a step, and how many of them its receiver adds up."""

    sent: Bytes
    added: Bytes


class _CardTimes(NamedTuple):
    """When the network card of each node is free to send, and to receive."""

    sends_s: Seconds
    receives_s: Seconds


class _SimulatedStep(NamedTuple):
    """What the spans of a step are made of."""

    step: int
    routes: Routes
    adding_s: Seconds
    sent: SentMessages


class _ScheduleSimulation:
    """One simulation. From step to step it passes on when each rank is ready, has added up, and each card is free."""

    def __init__(self, schedule: Schedule, num_bytes: float, cluster: Cluster, detail: str | None) -> None:
        self.schedule = schedule
        self.cluster = cluster
        self.detail = detail
        self.ready_s: Seconds = np.zeros(schedule.num_ranks)  # when each rank may enter its next step
        # for each of the last `lag` steps, the oldest first, when each rank was done with all sums up to this step; the
        # entries may share an array, because a step writes to a copy
        self.added_s = deque([np.zeros(schedule.num_ranks)] * schedule.lag, maxlen=schedule.lag)
        self.cards = _CardTimes(np.zeros(cluster.num_nodes), np.zeros(cluster.num_nodes))
        self.records: list[_SimulatedStep] | None = None  # the steps so far, if their messages get spans
        if detail != "ranks":
            self.records = []
        self.chunk_sizes = _ChunkSizes(schedule, num_bytes)

    def run(self) -> Timeline:
        num_steps = 0
        num_messages = 0
        for routes in all_routes(self.schedule, self.cluster.ports):
            num_messages += routes.num_messages * routes.num_steps
            if self.detail is None and num_messages > MOST_MESSAGES:
                self.records = None  # too many for a span each, which nobody has asked for
            self._phase(routes, first_step=num_steps)
            num_steps += routes.num_steps
        if self.records is None:
            return self._timeline_of_ranks()
        return self._timeline_of_messages(self.records)

    def _phase(self, routes: Routes, first_step: int) -> None:
        """Let the steps of a phase take place; the number of its first one is `first_step`."""
        if routes.num_steps == 0:  # then it has no first step, whose costs are asked for below
            return
        alpha_s, beta_s_per_byte = self.cluster.costs(routes.src, routes.dst)

        def costs_of(num_bytes: _MessageBytes) -> _Costs:
            message_s = alpha_s + num_bytes.sent * beta_s_per_byte
            return _Costs(alpha_s, message_s, num_bytes.added * self.cluster.gamma_s_per_byte)

        may_merge = self._may_merge(routes)
        costs = costs_of(routes.bytes_of(self.chunk_sizes, number=0))  # of the first step, and of all that are like it
        # The steps of a phase have the same senders and receivers, and differ in their chunks only. That changes their
        # costs if chunks differ in size, or if a switch may merge messages, because it merges those of the same chunks.
        costs_are_equal = self.chunk_sizes.are_equal and not may_merge
        # `_equal_steps` skips steps, so it records nothing, and does not know when shared cards are free.
        if costs_are_equal and self.records is None and not self.cluster.shared_nic:
            self._equal_steps(routes, costs, first_step)
            return
        for index in range(routes.num_steps):
            if not self.chunk_sizes.are_equal and index > 0:  # those of the first step are known
                costs = costs_of(routes.bytes_of(self.chunk_sizes, index))
            merged = None
            if may_merge:
                merged = routes.merged(self.chunk_sizes, index)
            if merged is None:
                self._step(routes, costs, first_step + index)
            else:
                merged_costs = costs_of(_MessageBytes(merged.crossing, merged.added))
                self._step(routes, merged_costs, first_step + index, merged)

    def _may_merge(self, routes: Routes) -> bool:
        """Whether a switch may merge messages: several meet at a rank, and none leaves its node."""
        if not self.cluster.switch_adds or not routes.meet_at_a_rank:
            return False
        return np.array_equal(self.cluster.node(routes.src), self.cluster.node(routes.dst))

    def _equal_steps(self, routes: Routes, costs: _Costs, first_step: int) -> None:
        """Let the steps of a phase take place if each costs the same, and skip those that can be foreseen.

        A step only adds constants to times and takes maxima of them. So if all times before it are later by the same
        amount, so are all times after it. Hence, once a step has moved all times by the same amount, each further step
        moves them by that amount again. Whether it has is checked after 1, 2, 4, 8, … steps only, because a check costs
        about as much as a step.
        """
        shift: Callable[[Seconds], Seconds] | None = None  # does what `_step` does, but faster, if ranks form rings
        if self.schedule.lag == 1 and routes.shift is not None:  # it computes only `ready_s`: see `_state`
            shift = _shifting(routes.shift, costs)
        for index in range(routes.num_steps):
            num_done = index + 1
            is_power_of_two = (num_done & (num_done - 1)) == 0
            before_s = self._state() if is_power_of_two else None
            if shift is not None:
                self.ready_s = shift(self.ready_s)
            else:
                self._step(routes, costs, first_step + index)
            if before_s is None:
                continue
            after_s = self._state()
            moved_s = after_s - before_s
            if moved_s.max() - moved_s.min() <= _ROUNDING * after_s.max():
                self.ready_s, *added_s = after_s + moved_s * (routes.num_steps - num_done)  # rows as of `_state`
                # These take the place of all entries before, since they are as many. With a lag of 1 there are none:
                # the old entry stays, which decides nothing because a rank is ready no earlier.
                self.added_s.extend(added_s)
                return

    def _state(self) -> Seconds:
        """All times that the next step depends on, in rows with an entry per rank.

        If the lag is 1, a rank is ready only once it has added up, so `ready_s` is all.
        """
        if self.schedule.lag == 1:
            return self.ready_s[None]
        return np.array([self.ready_s, *self.added_s])

    def _step(self, routes: Routes, costs: _Costs, step: int, merged: SwitchSums | None = None) -> None:
        """Let one step take place: record its messages, and bring `ready_s` and `added_s` up to date."""
        enter_s = np.maximum(self.ready_s, self.added_s[0])  # [0] is `lag` steps before this one
        # Time decides which message gets which port, and in which order messages of several levels get to a card.
        needs_queues = routes.num_ports > 0 or (self.cluster.shared_nic and len(routes.levels) > 1)
        if merged is not None:
            sent = self._in_switch(routes, enter_s, costs, merged)
        elif needs_queues:
            sent = _QueuedStep(routes, self.cluster, self.cards, enter_s, self.added_s[-1], costs).run()
        else:
            sent = self._by_level(routes, enter_s, costs)
        ready_s = enter_s.copy()
        np.maximum.at(ready_s, routes.src, sent.end_s)
        np.maximum.at(ready_s, routes.dst, sent.end_s)
        added_s = self.added_s[-1].copy()
        np.maximum.at(added_s, routes.dst, sent.done_s)
        self.added_s.append(added_s)
        self.ready_s = ready_s
        if self.schedule.lag == 1:  # the next step needs these sums, and `_state` and `_shifting` have `ready_s` only
            self.ready_s = np.maximum(ready_s, added_s)
        if self.records is not None:
            self.records.append(_SimulatedStep(step, routes, costs.adding_s, sent))

    def _by_level(self, routes: Routes, enter_s: Seconds, costs: _Costs) -> SentMessages:
        """Send the messages of a step, level by level.

        A message waits for the only port at each end; a receiver's is free once it has added up the message before.
        """
        added_s = self.added_s[-1].copy()  # when each rank is free to add
        # by message; the additional last entry, which NO_MESSAGE refers to, stays 0: there is nothing to wait for
        start_s = np.zeros(routes.num_messages + 1)
        end_s = np.zeros(routes.num_messages + 1)
        done_s = np.zeros(routes.num_messages + 1)
        for level in routes.levels:
            src = routes.src[level]
            dst = routes.dst[level]
            start = np.maximum(enter_s[src], enter_s[dst])
            if level is not routes.levels[0]:  # those of the first level wait for no other: this saves the look-ups
                start = np.maximum(start, end_s[routes.previous_send[level]])
                start = np.maximum(start, done_s[routes.previous_receive[level]])
            end = start + costs.message_s[level]
            if self.cluster.shared_nic:
                self._pass_cards(src, dst, start, end, costs.wire_s[level], costs.alpha_s[level])
            start_s[level] = start
            end_s[level] = end
            done_s[level] = _add_up(dst, end, costs.adding_s[level], added_s)
        return SentMessages(start_s[:-1], end_s[:-1], done_s[:-1], routes.send_port, routes.receive_port)

    def _in_switch(self, routes: Routes, enter_s: Seconds, costs: _Costs, merged: SwitchSums) -> SentMessages:
        """Send the messages of a step through a switch that adds, which merges those of a group.

        All messages of a rank share its link. Those of a group are sent once the last of them may start; until then a
        message that has started waits. Ports do not limit messages here, so each message of a rank has its own.
        """
        start_s = np.maximum(enter_s[routes.src], enter_s[routes.dst])  # by message
        group_start_s = np.zeros(merged.group.max() + 1)
        np.maximum.at(group_start_s, merged.group, start_s[merged.message])
        sent_s = start_s.copy()
        np.maximum.at(sent_s, merged.message, group_start_s[merged.group])
        end_s = sent_s + costs.message_s
        # A copy, because `_add_up` writes to it, and the array in `added_s` remains that of the step before.
        done_s = _add_up(routes.dst, end_s, costs.adding_s, self.added_s[-1].copy())
        send_port = number_among_equal(routes.src)
        receive_port = number_among_equal(routes.dst)
        return SentMessages(start_s, end_s, done_s, send_port, receive_port)

    def _pass_cards(
        self, src: Ints, dst: Ints, start_s: Seconds, end_s: Seconds, wire_s: Seconds, alpha_s: Seconds
    ) -> None:
        """Set `end_s` of the messages between nodes: their bytes leave a node's card, and arrive at one, in turn.

        All arrays have an entry per message. A card sends, or receives, one message in each group of `_one_each`.
        """
        source_node = self.cluster.node(src)
        target_node = self.cluster.node(dst)
        crossing = np.flatnonzero(source_node != target_node)  # the messages between nodes
        left_s = start_s.copy()  # when the last byte of each message has left
        for entries in _one_each(source_node[crossing], start_s[crossing]):
            message = crossing[entries]
            card = source_node[message]
            left_s[message] = np.maximum(start_s[message], self.cards.sends_s[card]) + wire_s[message]
            self.cards.sends_s[card] = left_s[message]
        for entries in _one_each(target_node[crossing], left_s[crossing]):
            message = crossing[entries]
            card = target_node[message]
            # The first bytes arrive while the others still leave, so a receiving card that is free adds no time.
            arrived_s = np.maximum(left_s[message], self.cards.receives_s[card] + wire_s[message])
            self.cards.receives_s[card] = arrived_s
            end_s[message] = arrived_s + alpha_s[message]

    def _timeline_of_ranks(self) -> Timeline:
        """A span for each rank, from 0 to its end."""
        ends_s = np.maximum(self.ready_s, self.added_s[-1])
        ranks = np.arange(ends_s.size)
        return Timeline(
            rank=ranks,
            lane=np.zeros_like(ranks),
            kind=np.zeros_like(ranks),
            item=np.full_like(ranks, -1),  # -1: of no item
            start_s=np.zeros(ends_s.size),
            stop_s=ends_s,
            lanes=("collective",),
            kinds=(self.schedule.collective,),
        )

    def _timeline_of_messages(self, records: list[_SimulatedStep]) -> Timeline:
        """A span for each message at its sender, one at its receiver, and one for adding if that takes time."""
        num_ports = 1
        for record in records:
            last_sending = int(record.sent.send_port.max(initial=0))
            last_receiving = int(record.sent.receive_port.max(initial=0))
            num_ports = max(num_ports, 1 + last_sending, 1 + last_receiving)
        lanes = [*_port_lanes("send", num_ports), *_port_lanes("receive", num_ports), "reduce"]
        reduce_lane = 2 * num_ports

        no_spans = _span_columns(0, "send", 0, np.empty(0, dtype=np.int64), np.empty(0), np.empty(0))
        spans = [no_spans]  # so that a schedule without steps has columns, too
        for step, routes, adding_s, sent in records:
            adds = adding_s > 0
            adder = routes.dst[adds]
            adding_from_s = (sent.done_s - adding_s)[adds]
            adding_until_s = sent.done_s[adds]
            receive_lane = num_ports + sent.receive_port  # behind the lanes of all ports for sending
            spans += [
                _span_columns(sent.send_port, "send", step, routes.src, sent.start_s, sent.end_s),
                _span_columns(receive_lane, "receive", step, routes.dst, sent.start_s, sent.end_s),
                _span_columns(reduce_lane, "reduce", step, adder, adding_from_s, adding_until_s),
            ]
        rank, lane, kind, item, start_s, stop_s = (np.concatenate(column) for column in zip(*spans, strict=True))
        return Timeline(rank, lane, kind, item, start_s, stop_s, tuple(lanes), _KINDS)


def _port_lanes(verb: str, num_ports: int) -> list[str]:
    """The names of the lanes of a rank's ports: "send", "send 1", …"""
    return [verb, *(f"{verb} {port}" for port in range(1, num_ports))]


def _span_columns(
    lane: Ints | int, kind: str, step: int, rank: Ints, start_s: Seconds, stop_s: Seconds
) -> tuple[NDArray[Any], ...]:
    """The columns of a `Timeline` for spans of one kind and step: rank, lane, kind, item, start_s, stop_s."""
    lanes = np.broadcast_to(lane, rank.shape)
    kinds = np.full_like(rank, _KINDS.index(kind))
    items = np.full_like(rank, step)
    return rank, lanes, kinds, items, start_s, stop_s


class _Side:
    """The ports of all ranks on the sending or the receiving side of a step."""

    def __init__(self, rank_of: Ints, num_ranks: int, num_ports: int) -> None:
        self.rank_of: list[int] = rank_of.tolist()  # of each message
        self.waiting = [deque[int]() for _ in range(num_ranks)]  # messages that wait for a port of the rank, in order
        for message, rank in enumerate(self.rank_of):
            self.waiting[rank].append(message)
        self.free = [list(range(num_ports)) for _ in range(num_ranks)]  # a heap of ports for each rank
        self.port_of = [0] * len(self.rank_of)  # the port that each message took


class _PortEvent(NamedTuple):
    """Something that happens in a `_QueuedStep`; `subject` is a rank if the kind is `_ENTERED`, otherwise a message."""

    time_s: float
    kind: int
    subject: int


class _QueuedStep:
    """One step as events in the order of time, in which messages wait for ports, cards and adders.

    The `cards` are those of the simulation; the step brings them up to date.
    """

    def __init__(
        self, routes: Routes, cluster: Cluster, cards: _CardTimes, enter_s: Seconds, added_s: Seconds, costs: _Costs
    ) -> None:
        num_ranks = enter_s.size
        num_ports = routes.num_ports
        if num_ports == 0:  # then ranks have one port, since a step in which all have enough ports is never queued
            num_ports = 1
        self._senders = _Side(routes.src, num_ranks, num_ports)
        self._receivers = _Side(routes.dst, num_ranks, num_ports)
        self._source_node: list[int] = cluster.node(routes.src).tolist()
        self._target_node: list[int] = cluster.node(routes.dst).tolist()
        self._shared_nic = cluster.shared_nic
        self._cards = cards
        self._alpha_s: list[float] = costs.alpha_s.tolist()
        self._wire_s: list[float] = costs.wire_s.tolist()
        self._adding_s: list[float] = costs.adding_s.tolist()
        self._added_s: list[float] = added_s.tolist()  # when each rank is done with all sums so far
        self._start_s = [0.0] * routes.num_messages
        self._end_s = [0.0] * routes.num_messages
        self._done_s = [0.0] * routes.num_messages
        self._num_lacking = [2] * routes.num_messages  # ports that a message still waits for
        self._startable: list[int] = []  # messages that have both ports, and start at the end of this instant
        self._events = [_PortEvent(time_s, _ENTERED, rank) for rank, time_s in enumerate(enter_s.tolist())]
        heapify(self._events)

    def run(self) -> SentMessages:
        while self._events:
            self._take_effect(self._next_instant())
        return SentMessages(
            np.array(self._start_s),
            np.array(self._end_s),
            np.array(self._done_s),
            np.array(self._senders.port_of),
            np.array(self._receivers.port_of),
        )

    def _next_instant(self) -> list[_PortEvent]:
        """Take the earliest events off the heap; times that differ by rounding only are the same instant."""
        instant = []
        until_s = self._events[0].time_s * (1 + _SAME)
        while self._events and self._events[0].time_s <= until_s:
            instant.append(heappop(self._events))
        return instant

    def _take_effect(self, instant: list[_PortEvent]) -> None:
        """Let the events of an instant take effect, by kind, and start all messages that then have both ports."""
        now_s = instant[-1].time_s  # the latest of these times, which differ by rounding only
        only_left = all(event.kind == _LEFT for event in instant)
        for event in sorted(instant, key=lambda event: (event.kind, event.subject)):
            if event.kind == _ENDED:
                self._end(event.subject, event.time_s)
            elif event.kind == _ADDED:
                self._finish(event.subject, event.time_s)
            elif event.kind == _ENTERED:
                self._give_ports(self._senders, event.subject)
                self._give_ports(self._receivers, event.subject)
            elif only_left:
                self._arrive(event.subject, event.time_s)
            else:
                # Messages that start now may leave at this same instant, too, and then arrive before this one if they
                # come first in the step. So all arrivals wait until nothing else happens at the instant.
                heappush(self._events, event)
        for message in sorted(self._startable):  # in the order of the step
            self._start(message, now_s)
        self._startable.clear()

    def _give_ports(self, side: _Side, rank: int) -> None:
        """Give the free ports of a rank to the messages that wait for them; those with both ports may start."""
        waiting = side.waiting[rank]
        free = side.free[rank]
        while waiting and free:
            message = waiting.popleft()
            side.port_of[message] = heappop(free)
            self._num_lacking[message] -= 1
            if self._num_lacking[message] == 0:
                self._startable.append(message)

    def _release(self, side: _Side, message: int) -> None:
        """Free a message's port for the next message of its rank."""
        rank = side.rank_of[message]
        heappush(side.free[rank], side.port_of[message])
        self._give_ports(side, rank)

    def _start(self, message: int, now_s: float) -> None:
        """Start a message, which may have to pass a shared card first."""
        self._start_s[message] = now_s
        card = self._source_node[message]
        if self._shared_nic and card != self._target_node[message]:
            left_s = max(now_s, float(self._cards.sends_s[card])) + self._wire_s[message]
            self._cards.sends_s[card] = left_s
            heappush(self._events, _PortEvent(left_s, _LEFT, message))
        else:
            end_s = now_s + self._alpha_s[message] + self._wire_s[message]
            heappush(self._events, _PortEvent(end_s, _ENDED, message))

    def _arrive(self, message: int, left_s: float) -> None:
        """Let the bytes of a message pass the receiver's card; the first arrive while the others still leave."""
        card = self._target_node[message]
        arrived_s = max(left_s, float(self._cards.receives_s[card]) + self._wire_s[message])
        self._cards.receives_s[card] = arrived_s
        heappush(self._events, _PortEvent(arrived_s + self._alpha_s[message], _ENDED, message))

    def _end(self, message: int, now_s: float) -> None:
        """A message has arrived: its sender's port is free, and the receiver adds it up if that takes time."""
        self._end_s[message] = now_s
        self._release(self._senders, message)
        if self._adding_s[message] == 0:
            self._finish(message, now_s)
            return
        rank = self._receivers.rank_of[message]
        self._added_s[rank] = max(now_s, self._added_s[rank]) + self._adding_s[message]
        heappush(self._events, _PortEvent(self._added_s[rank], _ADDED, message))

    def _finish(self, message: int, now_s: float) -> None:
        """The message has been added up, or needs no adding."""
        self._done_s[message] = now_s
        self._release(self._receivers, message)


def _shifting(shape: tuple[int, int, int], costs: _Costs) -> Callable[[Seconds], Seconds]:
    """Return a function for steps in which each rank sends to the next along an axis, and waits for both messages.

    The function takes and returns when each rank is ready. `shape` is (outer, along, inner) as of `_shift`, so index 1
    of each array below counts along the axis, and [:, 0] follows [:, -1]. `end` and `done` have the times of each
    message at its sender. All arrays are made once, because these are the most frequent steps of all. Two of them take
    turns as the result, because the caller still needs the last one, to compare it with the next.
    """
    cost = costs.message_s.reshape(shape)
    adding = costs.adding_s.reshape(shape)
    adds = bool(costs.adding_s.any())
    end = np.empty(shape)
    done = end  # a message that is not added up is done when it ends
    if adds:
        done = np.empty(shape)
    results = [np.empty(shape), np.empty(shape)]

    def step(ready_s: Seconds) -> Seconds:
        ready = ready_s.reshape(shape)
        ready_after = results[0]  # not `ready`, which is results[1], or the caller's
        results.reverse()  # so that the next call writes into the other one
        np.maximum(ready[:, :-1], ready[:, 1:], out=end[:, :-1])  # a message starts when sender and receiver are ready
        np.maximum(ready[:, -1], ready[:, 0], out=end[:, -1])
        np.add(end, cost, out=end)
        if adds:
            np.add(end, adding, out=done)
        np.maximum(end[:, 1:], done[:, :-1], out=ready_after[:, 1:])  # it has sent its own and added up the other
        np.maximum(end[:, 0], done[:, -1], out=ready_after[:, 0])
        return ready_after.reshape(-1)

    return step


class SwitchSums(NamedTuple):
    """The bytes of a step in which a switch that adds merges messages.

    `crossing` are the bytes that cross the sender's link outwards or the receiver's inwards, whichever are more, and
    `added` those that the receiver still adds up; both have an entry per message. `message` and `group` have an entry
    per transfer that is merged: its message, and the group of transfers that are one sum, or copies of one chunk.
    """

    crossing: Bytes
    added: Bytes
    message: Ints
    group: Ints


class Messages(NamedTuple):
    """The message of each transfer, and the first transfer of each message; messages are in the order of those."""

    message: Ints
    first: Ints


def messages(num_ranks: int, src: Ints, dst: Ints) -> Messages:
    """Return which transfers make up which message: those of a step between the same two ranks are one."""
    _, first, pair = np.unique(src * num_ranks + dst, return_index=True, return_inverse=True)
    # `pair` numbers the pairs of ranks by sender and receiver. Number them by their first transfers instead.
    pairs_in_order = np.argsort(first, kind="stable")
    number_of_pair = np.empty_like(pairs_in_order)
    number_of_pair[pairs_in_order] = np.arange(pairs_in_order.size)
    return Messages(number_of_pair[pair], first[pairs_in_order])


class _PortUse(NamedTuple):
    """For each message the port of its rank that it takes, and the message that has the rank's only port before it."""

    port: Ints
    previous: Ints


class Routes:
    """The messages of each step of a phase: all transfers from one rank to one other are one message.

    Message i takes port `send_port[i]` of its sender. If that is the sender's only port, `previous_send[i]` is the
    message that takes it before, or NO_MESSAGE. `receive_port` and `previous_receive` are the same for the receiver.
    `levels` groups the messages so that each waits only for messages of earlier groups. If ranks have several ports,
    and some have more messages than that, time decides which message takes which port: `num_ports` is their number
    then, and otherwise 0. `shift` is as of `_shift`.
    """

    def __init__(self, num_ranks: int, phase: Phase, ports: int | None) -> None:
        self.message, first = messages(num_ranks, phase.src, phase.dst)
        self.src = phase.src[first]
        self.dst = phase.dst[first]
        self.num_messages = first.size
        self.num_steps = phase.num_steps
        self._phase = phase
        self._num_ranks = num_ranks
        self.send_port, self.previous_send = _on_ports(self.src, ports)
        self.receive_port, self.previous_receive = _on_ports(self.dst, ports)
        most_sends = np.bincount(self.src).max(initial=0)
        most_receives = np.bincount(self.dst).max(initial=0)
        most_per_rank = max(most_sends, most_receives)
        self.meet_at_a_rank = most_per_rank > 1  # only then may a switch merge messages
        self.num_ports = 0
        if ports is not None and 1 < ports < most_per_rank:
            self.num_ports = ports
        self.levels = self._levels()
        self.shift = _shift(num_ranks, self.src, self.dst)

    def bytes_of(self, chunk_sizes: _ChunkSizes, number: int) -> _MessageBytes:
        """Return the bytes of each message in the step of this number within the phase."""
        transfer_bytes = chunk_sizes.of_transfers(self._phase, number)
        added_bytes = transfer_bytes * self._phase.reduce
        return _MessageBytes(self._sum_by_message(transfer_bytes), self._sum_by_message(added_bytes))

    def _sum_by_message(self, transfer_bytes: Bytes) -> Bytes:
        sums = np.bincount(self.message, transfer_bytes, minlength=self.num_messages)
        return sums.astype(float)  # of no transfers, bincount returns whole numbers

    def merged(self, chunk_sizes: _ChunkSizes, number: int) -> SwitchSums | None:
        """Return the bytes of a step if a switch that adds merges messages, or None if it has nothing to merge.

        `number` is that of the step within the phase.
        """
        step = self._phase.step(number)
        transfers = _switch_transfers(step)
        is_merged = transfers.is_merged
        if not is_merged.any():
            return None
        transfer_bytes = chunk_sizes.of_transfers(self._phase, number)
        link_bytes = _bytes_at_switch(transfers, transfer_bytes, self._num_ranks)
        crossing = np.maximum(link_bytes[_OUTWARDS, self.src], link_bytes[_INWARDS, self.dst])
        is_added = step.reduce & ~is_merged  # by the receiver; the switch has added up those that are merged
        added = self._sum_by_message(transfer_bytes * is_added)
        return SwitchSums(crossing, added, self.message[is_merged], transfers.group[is_merged])

    def _levels(self) -> list[Ints]:
        """Return the messages of each level; a message is a level above those that have its ports before it."""
        if not self.num_messages:
            return []
        level = np.zeros(self.num_messages, dtype=np.int64)
        # Only the messages of ranks with one port have others before them. These have lower numbers, so that their
        # levels are known.
        if (self.previous_send != NO_MESSAGE).any() or (self.previous_receive != NO_MESSAGE).any():
            pairs = zip(self.previous_send.tolist(), self.previous_receive.tolist(), strict=True)
            for message, (previous_send, previous_receive) in enumerate(pairs):
                if previous_send != NO_MESSAGE:
                    level[message] = level[previous_send] + 1
                if previous_receive != NO_MESSAGE:
                    level[message] = max(level[message], level[previous_receive] + 1)
        by_level = np.argsort(level, kind="stable")
        first_of_next_levels = np.flatnonzero(np.diff(level[by_level])) + 1
        return np.split(by_level, first_of_next_levels)


class _SwitchTransfers(NamedTuple):
    """How a switch that adds groups the transfers of a step; all arrays have an entry per transfer.

    The switch adds what several ranks send into the same run of chunks of one rank, and copies a run that one rank
    sends to several. That one rank is the `hub` of a transfer, and the other one its `rim`. `group` has the same number
    for transfers with the same hub, direction and run, and `is_first` marks one transfer of each group. `is_merged`
    says whether a transfer's group has several rims, so that there is something to merge. `goes_to_hub` is true for
    what is added.
    """

    hub: Ints
    rim: Ints
    goes_to_hub: NDArray[np.bool_]
    group: Ints
    is_first: NDArray[np.bool_]
    is_merged: NDArray[np.bool_]


def _switch_transfers(step: Step) -> _SwitchTransfers:
    """Return the groups of the transfers of a step."""
    hub = np.where(step.reduce, step.dst, step.src)
    rim = np.where(step.reduce, step.src, step.dst)
    keys = np.array([hub, step.reduce, step.chunk, step.num_chunks])  # equal columns are one group
    order = np.lexsort(keys)
    # where a sorted column differs from the one before it; the first one does, because no key is -1
    begins_group = (np.diff(keys[:, order], prepend=-1) != 0).any(axis=0)
    group = np.empty_like(order)
    group[order] = np.cumsum(begins_group) - 1
    is_first = number_among_equal(group) == 0
    first_rim = np.empty_like(rim)  # of each group
    first_rim[group[is_first]] = rim[is_first]
    num_others = np.bincount(group, rim != first_rim[group])  # of each group: transfers with another rim than the first
    return _SwitchTransfers(hub, rim, step.reduce, group, is_first, is_merged=num_others[group] > 0)


def _bytes_at_switch(transfers: _SwitchTransfers, transfer_bytes: Bytes, num_ranks: int) -> Bytes:
    """Return the bytes over each rank's link to a switch that adds, in a step, of shape (2 directions, num_ranks)."""
    hub = transfers.hub
    direction_at_hub = np.where(transfers.goes_to_hub, _INWARDS, _OUTWARDS)
    direction_at_rim = np.where(transfers.goes_to_hub, _OUTWARDS, _INWARDS)
    link_bytes = np.zeros((2, num_ranks))
    np.add.at(link_bytes, (direction_at_rim, transfers.rim), transfer_bytes)
    # A merged group crosses the hub's link once.
    crosses = transfers.is_first | ~transfers.is_merged
    np.add.at(link_bytes, (direction_at_hub[crosses], hub[crosses]), transfer_bytes[crosses])
    # The hub takes part in a merged group as each rim does: its own share of a sum goes out to the switch, and its own
    # copy of what it sends comes back.
    is_own = transfers.is_first & transfers.is_merged
    np.add.at(link_bytes, (direction_at_rim[is_own], hub[is_own]), transfer_bytes[is_own])
    return link_bytes


def all_routes(schedule: Schedule, ports: int | None) -> Iterator[Routes]:
    """Yield the routes of each phase; those of a small schedule are made once, for all sizes and clusters."""
    key = ("routes", ports)
    if key in schedule.cache:
        yield from schedule.cache[key]
        return
    routes_to_cache: list[Routes] = []
    num_rows = 0
    for phase in schedule.phases():
        routes = Routes(schedule.num_ranks, phase, ports)
        num_rows += 1 + phase.src.size  # at least 1, because an empty phase takes memory, too
        if num_rows <= MOST_KEPT:
            routes_to_cache.append(routes)
        yield routes
    if num_rows <= MOST_KEPT:
        schedule.cache[key] = routes_to_cache


def _on_ports(rank: Ints, ports: int | None) -> _PortUse:
    """Give each message of a step a port of its rank, which `rank` names for each message.

    If a rank has one port, all its messages take it, one after the other. Otherwise each message takes a port of its
    own, as if there were enough; where there are not, `_QueuedStep` decides on the ports.
    """
    previous = np.full(rank.size, NO_MESSAGE)
    most_per_rank = np.bincount(rank).max(initial=0)
    if most_per_rank < 2:  # the usual case, which needs no sorting
        return _PortUse(np.zeros_like(rank), previous)
    number_in_rank = number_among_equal(rank)
    if ports != 1:
        return _PortUse(number_in_rank, previous)
    by_rank = np.argsort(rank, kind="stable")  # the messages, rank by rank
    # Of `by_rank`, all entries but the first one of each rank: the message before them has the port before.
    entries = np.flatnonzero(number_in_rank[by_rank] > 0)
    previous[by_rank[entries]] = by_rank[entries - 1]
    return _PortUse(np.zeros_like(rank), previous)


def _shift(num_ranks: int, src: Ints, dst: Ints) -> tuple[int, int, int] | None:
    """Return a shape (outer, along, inner) in which each rank sends one message to the next along the middle axis.

    Ranks are numbered in the order of an array of this shape, and the last along the axis sends to the first. Return
    None if there is no such shape.
    """
    ranks = np.arange(num_ranks)
    if not np.array_equal(src, ranks):  # not every rank sends, or some send several messages
        return None
    inner = int((dst - src).max())  # how far the next rank is
    back = int((src - dst).max())  # how far the first rank of the axis is from the last one
    if inner <= 0:  # no rank sends to a higher one, which happens only in schedules that `verify` refuses
        return None
    along = back // inner + 1  # ranks along the axis, if all of them are `inner` apart, which is checked below
    if along < 2 or num_ranks % (along * inner) != 0:  # an axis of one rank, or ranks do not fill the shape
        return None
    place = ranks // inner % along  # of each rank along the axis
    next_rank = np.where(place == along - 1, ranks - back, ranks + inner)
    if not np.array_equal(dst, next_rank):
        return None
    return num_ranks // (along * inner), along, inner


def _add_up(dst: Ints, end_s: Seconds, adding_s: Seconds, added_s: Seconds) -> Seconds:
    """Return when each message is added up, and bring `added_s` up to date, which is when each rank is free to add.

    A rank adds up one message after the other, in the order in which they arrive.
    """
    done_s = end_s.copy()
    if not adding_s.any():
        return done_s
    for arrived in _one_each(dst, end_s):
        message = arrived[adding_s[arrived] > 0]
        done_s[message] = np.maximum(end_s[message], added_s[dst[message]]) + adding_s[message]
        added_s[dst[message]] = done_s[message]
    return done_s


def _one_each(key: Ints, time_s: Seconds) -> list[Ints]:
    """Return groups of entries in which each key occurs once: the first in time of each key, then the second, …

    Entries whose times differ only by rounding are at one instant, and keep their order.
    """
    in_time = np.argsort(time_s, kind="stable")
    # whether each entry, in the order of time, is later than the one before; for the first one it does not matter
    is_later = np.diff(time_s[in_time], prepend=0.0) > time_s[in_time] * _SAME
    instant = np.empty_like(in_time)  # the number of each entry's instant
    instant[in_time] = np.cumsum(is_later)
    order = np.lexsort((instant, key))  # by key, and for each by instant; the sort is stable
    ordered_key = key[order]
    if not (ordered_key[1:] == ordered_key[:-1]).any():  # no key occurs twice, or there are no entries at all
        return [order]
    number_in_key = number_among_equal(ordered_key)
    return [order[number_in_key == number] for number in range(int(number_in_key.max()) + 1)]
