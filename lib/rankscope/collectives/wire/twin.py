"""`simulate_executor`: what `execute` takes on a cluster, from the very programs that its ranks carry out."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...cluster import Cluster, Link
from ...common.checks import function, number, of_type, one_of, truth
from ...common.frozen import evolve, optional
from ...common.garbage import no_collection
from ...timeline import Span, Timeline
from ..schedule import RUNS_IN, Schedule
from .plan import LANE, Alike, Plan, Post, Transfer, Wait, alike, plans

ELEMENT_BYTES = 4
LinkAt = Callable[[int, int, float], Link]
Name = tuple[int, int, int, int]  # a message: sender, receiver, step, and its place among those of ranks that are alike


def simulate_executor(
    schedule: Schedule,
    num_bytes: int,
    cluster: Cluster,
    link_at: LinkAt | None = None,
    by_node: bool = False,
    detail: str = "messages",
) -> Timeline:
    """Return when each rank of `execute` waits for messages, adds up and copies, all ranks starting at time 0.

    `num_bytes` is as for `simulate`. While `simulate` is the model of the papers, this is what the executor and Gloo
    do. A message may leave once the sender has posted it and the receiver's ready signal has come; the signal leaves
    when the receive is posted, behind what that rank is sending, and takes alpha_s. A rank's card (its node's, for
    messages between nodes that share one) sends one message after the other, in the order in which they may leave;
    messages from several ranks queue at the receiver's card. A send is done when its last byte has left, and that byte
    arrives alpha_s later, so latencies overlap. Adding a byte, or copying one, takes gamma_s_per_byte. The schedule is
    not checked here: use `verify`.

    Links that are not the same for all sizes come as ``link_at(src, dst, num_bytes)``; `by_node` says that they depend
    on the size, and on whether both ranks are on one node, alone. Ranks that do the same are simulated once. Spans are
    on the lane "executor" of each rank, of kind "send" and "receive" while it waits for such a message, "reduce" and
    "copy"; items are steps. With `detail` "ranks" each rank has one span instead, from 0 to its end.

    Raises ValueError for a cluster with another number of ranks, and for bytes that are not a whole number of elements.

    >>> from .. import ALGORITHMS
    >>> cluster = Cluster.uniform(4, Link(alpha_s=1.0, bytes_per_s=2.0))
    >>> simulate_executor(ALGORITHMS["allreduce"]["ring"](4), 32, cluster).makespan_s  # 1 + 6·(1 + 8/2)
    31.0
    """
    of_type("schedule", schedule, Schedule)
    if schedule.num_ranks != of_type("cluster", cluster, Cluster).num_ranks:
        raise ValueError(f"cluster must have the schedule's {schedule.num_ranks} ranks, got {cluster.num_ranks}")
    optional("link_at", link_at, function, "of src, dst and num_bytes")
    one_of("detail", detail, ("messages", "ranks"))
    parts = schedule.num_ranks if schedule.collective in RUNS_IN else 1
    num_elements, rest = divmod(number("num_bytes", num_bytes, 0), ELEMENT_BYTES * parts)
    if rest:
        raise ValueError(f"num_bytes must be a multiple of {ELEMENT_BYTES * parts}, got {num_bytes!r}")
    ends, ranks = schedule.chunk_ends(int(num_elements)), np.arange(schedule.num_ranks)
    same = Alike(ranks.tolist(), ranks.tolist(), {})
    if (link_at is None or truth("by_node", by_node)) and not cluster.overrides and not cluster.shared_nic:
        same = alike(schedule, ends, cluster.node(ranks))
    few = len(same.ranks) < schedule.num_ranks
    with no_collection():  # plans are up to a million tuples
        made = plans(schedule, ends, same.ranks if few else None)
        return _PlanSimulation(made, cluster, link_at, same, detail == "messages").timeline()


@dataclass(slots=True)
class _MessageTimes:
    """What is known of a message so far: infinite where it has not happened."""

    posted_s: float = math.inf  # by the sender
    ready_s: float = math.inf  # when the receiver's ready signal is at the sender
    num_bytes: float = 0.0
    turn: int = 0  # among those that may leave at the same time


class _PlanSimulation:
    """One simulation. A rank goes on with its program until it must wait for a message that is not done."""

    def __init__(
        self, made: list[Plan], cluster: Cluster, link_at: LinkAt | None, same: Alike, with_spans: bool
    ) -> None:
        self._plans, self._cluster, self._same, self._with_spans = made, cluster, same, with_spans
        self._link_at = link_at or (lambda src, dst, num_bytes: cluster.link(src, dst))
        self._cards, self._spans, self._ends_s = Cards(), list[Span](), [0.0] * len(made)
        self._messages: dict[Name, _MessageTimes] = defaultdict(_MessageTimes)
        self._ends: dict[Name, tuple[int, int]] = {}  # ranks that are joined as the message's are
        self._done_s: dict[tuple[int, bool, Name], float] = {}  # (rank that waits, whether it sends, message)
        self._events: list[tuple[float, bool, int, Callable[[float], None]]] = []
        self._count = 0
        self._ranks = [self._carry_out(rank) for rank in range(len(made))]
        self._waits = [next(rank, None) for rank in self._ranks]  # for which message, None at its end

    def timeline(self) -> Timeline:
        while self._events:
            now_s, _, _, happen = heapq.heappop(self._events)
            happen(now_s)
        assert self._waits == [None] * len(self._plans), "a verified schedule does not get stuck"
        if not self._with_spans:
            self._spans = [Span(at, LANE, "collective", -1, 0.0, end_s) for at, end_s in enumerate(self._ends_s)]
        found = Timeline.of(sorted(self._spans, key=lambda span: (span.rank, span.start_s)))
        rows = [np.flatnonzero(found.rank == place) for place in range(len(self._plans))]
        of_ranks = [rows[place] for place in self._same.of]
        rank = np.repeat(np.arange(len(of_ranks)), [one.size for one in of_ranks])
        return evolve(found.take(np.concatenate(of_ranks)), rank=rank)

    def _name(self, place: int, one: Transfer) -> Name:
        rank, of = self._same.ranks[place], self._same.of
        src, dst = (rank, one.peer) if one.sends else (one.peer, rank)
        name = of[src], of[dst], one.step, self._same.places.get((src, dst, one.step), 0)
        self._ends.setdefault(name, (src, dst))
        return name

    def _carry_out(self, rank: int) -> Iterator[tuple[bool, Name]]:
        """Carry on with a rank's program until it waits for a message, which is yielded."""
        now_s, step = 0.0, 0  # the step of what has been received last
        for op in self._plans[rank].program:
            if isinstance(op, Wait):
                one = self._plans[rank].transfers[op.transfer]
                name = self._name(rank, one)
                if (rank, one.sends, name) not in self._done_s:
                    yield one.sends, name
                done_s = self._done_s[rank, one.sends, name]
                step = step if one.sends else one.step
                self._add_span(rank, "send" if one.sends else "receive", one.step, now_s, done_s)
                now_s = max(now_s, done_s)
            elif isinstance(op, Post):
                self._later(now_s, partial(self._post, rank, op))
            else:
                took_s = op.to.num_elements * ELEMENT_BYTES * self._cluster.gamma_s_per_byte
                self._add_span(rank, "reduce" if op.reduce else "copy", step, now_s, now_s + took_s)
                now_s += took_s
        self._ends_s[rank] = now_s

    def _later(self, when_s: float, happen: Callable[[float], None], turn: int = 0) -> None:
        """Let something happen then; of events at the same time those with a turn come last, in the order of turns."""
        self._count += 1
        heapq.heappush(self._events, (when_s, turn > 0, turn or self._count, happen))

    def _add_span(self, rank: int, kind: str, step: int, start_s: float, stop_s: float) -> None:
        if self._with_spans and stop_s > start_s:
            self._spans.append(Span(rank, LANE, kind, step, start_s, stop_s))

    def _post(self, rank: int, op: Post, now_s: float) -> None:
        for place in op.transfers:
            one = self._plans[rank].transfers[place]
            name = self._name(rank, one)
            self._count += 1
            if one.sends:
                message = self._messages[name]
                message.posted_s, message.turn = now_s, self._count
                message.num_bytes = one.span.num_elements * ELEMENT_BYTES
                self._may_begin(name)
            else:
                self._later(now_s, partial(self._signal_ready, name), self._count)

    def _signal_ready(self, name: Name, now_s: float) -> None:
        """Send the receiver's ready signal, which leaves its card behind the messages there."""
        src, dst = self._ends[name]
        out, _ = _cards(self._cluster, (name[1], name[0], *name[2:]))
        self._messages[name].ready_s = self._cards.free_s(out, now_s) + self._link_at(dst, src, 0.0).alpha_s
        self._may_begin(name)

    def _may_begin(self, name: Name) -> None:
        message = self._messages[name]
        start_s = max(message.posted_s, message.ready_s)
        if start_s < math.inf:
            self._later(start_s, partial(self._begin, name), message.turn)

    def _begin(self, name: Name, now_s: float) -> None:
        src, dst = self._ends[name]
        num_bytes = self._messages[name].num_bytes
        alone_s = num_bytes * self._link_at(src, dst, num_bytes).beta_s_per_byte
        out, into = _cards(self._cluster, name)
        self._leaves(out, self._cards.add(name, out, into, alone_s, now_s))

    def _leaves(self, out: Hashable, when_s: float | None) -> None:
        if when_s is not None:
            self._later(when_s, partial(self._leave, out))

    def _leave(self, out: Hashable, now_s: float) -> None:
        name, queued_s, next_s = self._cards.leave(out, now_s)
        src, dst = self._ends[name]
        arrived_s = now_s + queued_s + self._link_at(src, dst, self._messages[name].num_bytes).alpha_s
        self._leaves(out, next_s)
        self._later(arrived_s, partial(self._finish, name[1], False, name))
        self._finish(name[0], True, name, now_s)

    def _finish(self, rank: int, sends: bool, name: Name, now_s: float) -> None:
        self._done_s[rank, sends, name] = now_s
        if self._waits[rank] == (sends, name):
            self._waits[rank] = next(self._ranks[rank], None)


def _cards(cluster: Cluster, name: Name) -> tuple[Hashable, Hashable]:
    """The cards that a message goes out of and into: those of its ranks, of its nodes, or of its own."""
    src, dst, *_ = name
    if cluster.ports is None:
        return name, name
    nodes = src // cluster.gpus_per_node, dst // cluster.gpus_per_node
    if cluster.shared_nic and nodes[0] != nodes[1]:
        return ("node", nodes[0]), ("node", nodes[1])
    return src, dst


class _CardQueue:
    """Bytes that wait to get into a card, in seconds of its time; `num_senders` messages come at its full rate each."""

    def __init__(self) -> None:
        self.left_s = self.at_s = 0.0
        self.num_senders = 0

    def advance(self, to_s: float) -> None:
        self.left_s = max(0.0, self.left_s + (self.num_senders - 1) * (to_s - self.at_s))
        self.at_s = to_s


class Cards:
    """The messages under way. Messages and cards have any names; each call says what time it is, which never goes back.

    A card sends one message after the other, in the order in which they are added, each as if it were alone. Messages
    that come into a card from several others at the same time wait in a queue, as packets do in a switch.
    """

    def __init__(self) -> None:
        self._leaving: dict[Hashable, deque[tuple[Hashable, Hashable, float]]] = {}
        self._free_s: dict[Hashable, float] = {}  # when all that has been added will have left
        self._queues: dict[Hashable, _CardQueue] = {}

    def add(self, name: Hashable, out: Hashable, into: Hashable, alone_s: float, now_s: float) -> float | None:
        """Let a message go that takes `alone_s`; return when it will have left if it begins at once, or None."""
        line = self._leaving.setdefault(out, deque())
        line.append((name, into, alone_s))
        self._free_s[out] = max(now_s, self._free_s.get(out, 0.0)) + alone_s
        return self._begin(out, now_s) if len(line) == 1 else None

    def free_s(self, out: Hashable, now_s: float) -> float:
        """Return when a signal of no bytes would leave this card: behind all that is there."""
        return max(now_s, self._free_s.get(out, 0.0))

    def leave(self, out: Hashable, now_s: float) -> tuple[Any, float, float | None]:
        """End the message that is leaving this card.

        Return its name, how long its last byte has still to wait before it is through the other card, and when the
        next message will have left, or None.
        """
        line = self._leaving[out]
        name, into, _ = line.popleft()
        queue = self._queues[into]
        queue.advance(now_s)
        queue.num_senders -= 1
        return name, queue.left_s, self._begin(out, now_s) if line else None

    def _begin(self, out: Hashable, now_s: float) -> float:
        _, into, alone_s = self._leaving[out][0]
        queue = self._queues.setdefault(into, _CardQueue())
        queue.advance(now_s)
        queue.num_senders += 1
        return now_s + alone_s
