"""`simulate_executor`: the time of `execute` on a cluster, from the same programs that its ranks carry out."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from ...cluster import Cluster, Link
from ...common.checks import function, number, of_type, one_of, truth
from ...common.frozen import optional
from ...timeline import Span, Timeline
from ..schedule import RUNS_IN, Schedule
from .plan import LANE, EquivalentRanks, Plan, Post, Transfer, Wait, alike, plans

ELEMENT_BYTES = 4  # as of float32
LinkAt = Callable[[int, int, float], Link]


class _MessageName(NamedTuple):
    """What identifies a message: an index of its sender and of its receiver, its step, and its place.

    An index stands for all ranks that do the same; `place` is that of `EquivalentRanks`, and distinguishes the messages
    between these.
    """

    src: int
    dst: int
    step: int
    place: int


def simulate_executor(
    schedule: Schedule,
    num_bytes: int,
    cluster: Cluster,
    link_at: LinkAt | None = None,
    by_node: bool = False,
    detail: str = "messages",
) -> Timeline:
    """Simulate `execute` and return the timeline of each rank's waits, sums and copies. All ranks start at time 0.

    `num_bytes` is as for `simulate`. While `simulate` is the model of the papers, this one follows the executor and
    Gloo. A message may leave once the sender has posted it and the receiver's ready signal has arrived. The signal
    leaves when the receive is posted, after the messages that the receiver is sending itself, and takes alpha_s. A
    rank's network card (its node's, for messages between nodes that share one) sends one message at a time, in the
    order in which they may leave; messages from several ranks queue at the receiver's card. A send is done when its
    last byte has left, and that byte arrives alpha_s later, so latencies overlap. Adding or copying a byte takes
    gamma_s_per_byte. The schedule is not checked here: use `verify`.

    `cluster.ports` does not change the number of cards: what a rank of the executor sends at once shares its one card,
    so that two messages take as long as one after the other. Only None, as in formulas that ignore incast, lets no
    message wait for another one, except at shared cards. `cluster.switch_adds` has no effect, since the executor's
    ranks add everything.

    If links depend on the size, pass a function ``link_at(src, dst, num_bytes)``. Set `by_node` if it depends only on
    the size and on whether both ranks are on the same node. Ranks that do the same are simulated once. Spans are on the
    lane "executor" of each rank: "send" and "receive" while it waits for such a message, "reduce" and "copy"; items are
    steps. If `detail` is "ranks", each rank has one span instead, from 0 to its end.

    Raises ValueError if the cluster has a different number of ranks, or `num_bytes` is not a whole number of elements
    that `Schedule.chunk_ends` can cut.

    >>> from .. import ALGORITHMS
    >>> cluster = Cluster.uniform(4, Link(alpha_s=1.0, bytes_per_s=2.0))
    >>> simulate_executor(ALGORITHMS["allreduce"]["ring"](4), 32, cluster).makespan_s  # 1 + 6·(1 + 8/2)
    31.0
    """
    of_type("schedule", schedule, Schedule)
    of_type("cluster", cluster, Cluster)
    if schedule.num_ranks != cluster.num_ranks:
        raise ValueError(f"cluster must have the schedule's {schedule.num_ranks} ranks, got {cluster.num_ranks}")
    optional("link_at", link_at, function, "of src, dst and num_bytes")
    truth("by_node", by_node)
    one_of("detail", detail, ("messages", "ranks"))
    ends = tensor_chunk_ends(schedule, num_bytes)
    ranks = np.arange(schedule.num_ranks)
    same = EquivalentRanks(ranks=ranks.tolist(), of=ranks.tolist(), places={})  # each rank only to itself
    # `alike` compares messages by their sizes and by whether they leave their node. With links of single pairs, or
    # cards that ranks share, messages that are alike in this may still take different times.
    links_depend_on_nodes_only = (link_at is None or by_node) and not cluster.overrides
    if links_depend_on_nodes_only and not cluster.shared_nic:
        same = alike(schedule, ends, cluster.node(ranks))
    planned_ranks = None  # all of them, which `plans` lists only once for all sizes
    if len(same.ranks) < schedule.num_ranks:
        planned_ranks = same.ranks
    rank_plans = plans(schedule, ends, planned_ranks)
    return _PlanSimulation(rank_plans, cluster, link_at, same, detail == "messages").run()


def tensor_chunk_ends(schedule: Schedule, num_bytes: int) -> list[int]:
    """Return the ends of the chunks of a rank's tensor, in elements, if the whole buffer has `num_bytes`.

    Raises ValueError if that is not a whole number of elements per tensor, or as `Schedule.chunk_ends` does.
    """
    num_tensors = 1  # that make up the whole buffer
    if schedule.collective in RUNS_IN:
        num_tensors = schedule.num_ranks  # each rank passes its own run of the buffer
    num_elements, remainder = divmod(number("num_bytes", num_bytes, 0), ELEMENT_BYTES * num_tensors)
    if remainder != 0:
        raise ValueError(f"num_bytes must be a multiple of {ELEMENT_BYTES * num_tensors}, got {num_bytes!r}")
    return schedule.chunk_ends(int(num_elements))


@dataclass(slots=True)
class _MessageTimes:
    """The times of a message so far; infinite for what has not happened."""

    posted_s: float = math.inf  # by the sender
    ready_s: float = math.inf  # when the receiver's ready signal is at the sender
    num_bytes: float = 0.0
    post_number: int = 0  # among all that was posted


class _Waiting(NamedTuple):
    """What a rank waits for: that it has sent, or received, a message."""

    sends: bool
    name: _MessageName


class _ExecutorEvent(NamedTuple):
    """An action that takes place at a time. Of those at the same time, the ones that come last have the flag.

    Messages begin, and ready signals leave, last: all that is posted at that time is known then, so that they get to
    their cards in the order in which they were posted. `number` is different for each event, and decides between all
    others.
    """

    time_s: float
    comes_last: bool
    number: int
    action: Callable[[float], None]


class _PlanSimulation:
    """One simulation. A rank goes on with its program until it must wait for a message that is not done.

    Only `same.ranks` are simulated, each for all ranks that do the same. An `index` is a place among these.
    """

    def __init__(
        self, rank_plans: list[Plan], cluster: Cluster, link_at: LinkAt | None, same: EquivalentRanks, with_spans: bool
    ) -> None:
        self._plans = rank_plans
        self._cluster = cluster
        self._same = same
        self._with_spans = with_spans
        self._link_at = link_at
        self._cards = Cards()
        self._spans: list[Span] = []
        self._ends_s = [0.0] * len(rank_plans)
        self._messages: dict[_MessageName, _MessageTimes] = defaultdict(_MessageTimes)
        # sender and receiver of one of the messages of each name
        self._ranks_of: dict[_MessageName, tuple[int, int]] = {}
        # when a message was sent, or received: by the index of the rank, whether it sends, and the message
        self._done_s: dict[tuple[int, bool, _MessageName], float] = {}
        self._events: list[_ExecutorEvent] = []  # a heap
        self._count = 0  # of events and of posted messages, which it numbers from 1
        self._programs = [self._carry_out(index) for index in range(len(rank_plans))]
        # what each rank waits for, None at the end of its program; starts the programs
        self._waits = [next(program, None) for program in self._programs]

    def run(self) -> Timeline:
        while self._events:
            event = heapq.heappop(self._events)
            event.action(event.time_s)
        assert self._waits == [None] * len(self._plans), "a verified schedule does not get stuck"
        if not self._with_spans:
            no_item = -1
            for index, end_s in enumerate(self._ends_s):
                self._spans.append(Span(index, LANE, "collective", no_item, 0.0, end_s))
        # Spans have the index as their rank. Each rank gets a copy of the spans of its index.
        simulated = Timeline.of(sorted(self._spans, key=lambda span: (span.rank, span.start_s)))
        rows_of_index = [np.flatnonzero(simulated.rank == index) for index in range(len(self._plans))]
        rows_of_rank = [rows_of_index[index] for index in self._same.of]
        rank = np.repeat(np.arange(len(rows_of_rank)), [rows.size for rows in rows_of_rank])
        return replace(simulated.take(np.concatenate(rows_of_rank)), rank=rank)

    def _link(self, src: int, dst: int, num_bytes: float) -> Link:
        if self._link_at is None:
            return self._cluster.link(src, dst)
        return self._link_at(src, dst, num_bytes)

    def _message_name(self, index: int, transfer: Transfer) -> _MessageName:
        """Return the name of the message of a transfer, and remember two ranks that it goes between."""
        if transfer.sends:
            src = self._same.ranks[index]
            dst = transfer.peer
        else:
            src = transfer.peer
            dst = self._same.ranks[index]
        # Where each rank is only equivalent to itself, there are no places: ranks and step name the message.
        place = self._same.places.get((src, dst, transfer.step), 0)
        index_of_rank = self._same.of
        name = _MessageName(index_of_rank[src], index_of_rank[dst], transfer.step, place)
        self._ranks_of.setdefault(name, (src, dst))
        return name

    def _carry_out(self, index: int) -> Iterator[_Waiting]:
        """Carry on with a rank's program, and yield whenever it waits for a message, until that is done."""
        now_s = 0.0
        step = 0  # of the last message that was received
        for op in self._plans[index].program:
            if isinstance(op, Wait):
                transfer = self._plans[index].transfers[op.transfer]
                name = self._message_name(index, transfer)
                if (index, transfer.sends, name) not in self._done_s:
                    yield _Waiting(transfer.sends, name)
                done_s = self._done_s[index, transfer.sends, name]
                kind = "send"
                if not transfer.sends:
                    kind = "receive"
                    step = transfer.step
                self._add_span(index, kind, transfer.step, now_s, done_s)
                now_s = max(now_s, done_s)
            elif isinstance(op, Post):
                # Not at once: after sums, this program is ahead of the events of the other ranks.
                self._later(now_s, partial(self._post, index, op))
            else:
                end_s = now_s + op.to.num_elements * ELEMENT_BYTES * self._cluster.gamma_s_per_byte
                self._add_span(index, "reduce" if op.reduce else "copy", step, now_s, end_s)
                now_s = end_s
        self._ends_s[index] = now_s

    def _later(self, when_s: float, action: Callable[[float], None], post_number: int | None = None) -> None:
        """Schedule an action. Those with a `post_number` come after all others at the same time, in their order."""
        self._count += 1
        if post_number is None:
            event = _ExecutorEvent(when_s, False, self._count, action)
        else:
            event = _ExecutorEvent(when_s, True, post_number, action)
        heapq.heappush(self._events, event)

    def _add_span(self, index: int, kind: str, step: int, start_s: float, stop_s: float) -> None:
        if self._with_spans and stop_s > start_s:
            self._spans.append(Span(index, LANE, kind, step, start_s, stop_s))

    def _post(self, index: int, op: Post, now_s: float) -> None:
        """Post the sends and receives of an operation, in order."""
        for transfer_number in op.transfers:
            transfer = self._plans[index].transfers[transfer_number]
            name = self._message_name(index, transfer)
            self._count += 1
            if transfer.sends:
                message = self._messages[name]
                message.posted_s = now_s
                message.post_number = self._count
                message.num_bytes = transfer.span.num_elements * ELEMENT_BYTES
                self._begin_if_ready(name)
            else:
                self._later(now_s, partial(self._signal_ready, name), self._count)

    def _signal_ready(self, name: _MessageName, now_s: float) -> None:
        """Send the receiver's ready signal, which leaves its card behind the messages there."""
        src, dst = self._ranks_of[name]
        signal = name._replace(src=name.dst, dst=name.src)  # it goes the other way
        card, _ = _cards(self._cluster, signal)
        latency_s = self._link(dst, src, 0.0).alpha_s
        self._messages[name].ready_s = self._cards.free_s(card, now_s) + latency_s
        self._begin_if_ready(name)

    def _begin_if_ready(self, name: _MessageName) -> None:
        """Begin a message once it is posted and its ready signal has arrived; called when either has happened."""
        message = self._messages[name]
        start_s = max(message.posted_s, message.ready_s)
        if start_s < math.inf:
            self._later(start_s, partial(self._begin, name), message.post_number)

    def _begin(self, name: _MessageName, now_s: float) -> None:
        src, dst = self._ranks_of[name]
        num_bytes = self._messages[name].num_bytes
        alone_s = num_bytes * self._link(src, dst, num_bytes).beta_s_per_byte
        out, into = _cards(self._cluster, name)
        left_s = self._cards.add(name, out, into, alone_s, now_s)
        if left_s is not None:  # otherwise it waits behind others, and `_leave` schedules it when its turn comes
            self._later(left_s, partial(self._leave, out))

    def _leave(self, out: Hashable, now_s: float) -> None:
        """A message has left its card: its sender is done now, and its receiver once it has passed the other card."""
        departure = self._cards.leave(out, now_s)
        name = departure.name
        src, dst = self._ranks_of[name]
        latency_s = self._link(src, dst, self._messages[name].num_bytes).alpha_s
        if departure.next_s is not None:
            self._later(departure.next_s, partial(self._leave, out))
        self._later(now_s + departure.queued_s + latency_s, partial(self._finish, name.dst, False, name))
        self._finish(name.src, True, name, now_s)

    def _finish(self, index: int, sends: bool, name: _MessageName, now_s: float) -> None:
        """A rank has sent, or received, a message, and goes on with its program if it waits for that."""
        self._done_s[index, sends, name] = now_s
        if self._waits[index] == _Waiting(sends, name):
            self._waits[index] = next(self._programs[index], None)


def _cards(cluster: Cluster, name: _MessageName) -> tuple[Hashable, Hashable]:
    """Return the cards that a message goes out of and into: those of its ranks, of its nodes, or of its own."""
    if cluster.shared_nic:  # then each rank is simulated, so that the name has ranks
        source_node = name.src // cluster.gpus_per_node
        target_node = name.dst // cluster.gpus_per_node
        if source_node != target_node:
            return ("node", source_node), ("node", target_node)
    if cluster.ports is None:  # no other message waits; any number of ports stands for one card
        return name, name
    return name.src, name.dst


class _CardQueue:
    """The bytes that wait to get into a card, measured by the time that the card needs for them.

    Each of `num_senders` messages brings bytes as fast as the card takes them, so the backlog of n senders grows by
    n - 1 seconds per second; without senders it shrinks.
    """

    def __init__(self) -> None:
        self.backlog_s = 0.0
        self.at_s = 0.0  # when the backlog was that
        self.num_senders = 0

    def advance(self, to_s: float) -> None:
        self.backlog_s = max(0.0, self.backlog_s + (self.num_senders - 1) * (to_s - self.at_s))
        self.at_s = to_s


class _Outgoing(NamedTuple):
    """A message that leaves a card, the card that it goes into, and its time if it were alone."""

    name: Any
    into: Hashable
    alone_s: float


class Departure(NamedTuple):
    """A message that has left its card.

    `queued_s` is how long its last byte still waits before it has passed the other card; `next_s` is when the next
    message will have left, or None if there is none.
    """

    name: Any
    queued_s: float
    next_s: float | None


class Cards:
    """The messages under way. Messages and cards have any names; each call passes the time, which never goes back.

    A card sends one message after the other, in the order in which they are added, each as if it were alone. Messages
    that come into a card from several others at the same time wait in a queue, as packets do in a switch.
    """

    def __init__(self) -> None:
        self._leaving: dict[Hashable, deque[_Outgoing]] = {}  # by card, the first one is leaving now
        self._free_s: dict[Hashable, float] = {}  # when all messages that have been added will have left
        self._queues: dict[Hashable, _CardQueue] = {}

    def add(self, name: Hashable, out: Hashable, into: Hashable, alone_s: float, now_s: float) -> float | None:
        """Add a message that takes `alone_s` from one card into another.

        Return when it will have left if it begins at once, and None if it comes behind others.
        """
        line = self._leaving.setdefault(out, deque())
        line.append(_Outgoing(name, into, alone_s))
        self._free_s[out] = self.free_s(out, now_s) + alone_s
        if len(line) > 1:
            return None
        return self._begin(line[0], now_s)

    def free_s(self, out: Hashable, now_s: float) -> float:
        """Return when a signal of no bytes would leave this card, behind all messages that were added."""
        return max(now_s, self._free_s.get(out, 0.0))

    def leave(self, out: Hashable, now_s: float) -> Departure:
        """End the message that is leaving this card, and begin the next one."""
        line = self._leaving[out]
        message = line.popleft()
        queue = self._queues[message.into]
        queue.advance(now_s)
        queue.num_senders -= 1
        queued_s = queue.backlog_s
        next_s = None
        if line:
            next_s = self._begin(line[0], now_s)
        return Departure(message.name, queued_s, next_s)

    def _begin(self, message: _Outgoing, now_s: float) -> float:
        """Let a message begin to leave its card, and return when it will have left."""
        queue = self._queues.setdefault(message.into, _CardQueue())
        queue.advance(now_s)
        queue.num_senders += 1
        return now_s + message.alone_s
