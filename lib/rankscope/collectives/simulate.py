"""`simulate`: when each message of a schedule starts and ends on a cluster, in the single-port Hockney model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster import Cluster
from ..common.checks import number, of_type, one_of
from ..timeline import Timeline
from .schedule import MOST_KEPT, Ints, Phase, Schedule, turns

Seconds = NDArray[np.float64]

MOST_MESSAGES = 250_000  # that get spans of their own by default
_EPS = float(np.finfo(float).eps)
_SAME = 1e-12  # times that differ by less, relative to the latest, are the same: rounding decides nothing


def simulate(schedule: Schedule, num_bytes: float, cluster: Cluster, detail: str | None = None) -> Timeline:
    """Return when each message of the schedule is sent, received and added up if all ranks start at time 0.

    `num_bytes` is each rank's whole buffer, the total array for allgather and reduce_scatter. A message starts when
    both ranks have finished their earlier steps, adding included (that up to `schedule.lag` steps before), and it has a
    port at both. The messages of a rank get its ports in the order of the step, each the first that is free. A message
    holds its ports for alpha_s + bytes / bytes_per_s, the receiver's until it is added up. A receiver adds one message
    after the other, as they arrive. A shared network card serves the messages of earlier steps first, and those of one
    step in the order in which they are ready, or of the step where they are ready at once. What a switch that adds does
    stands in `Cluster`. The schedule is not checked here: use `verify`.

    Lanes and kinds are "send", "receive" and "reduce" ("send 1", … for further ports), items are steps. `detail` is
    "messages", or "ranks" for a single span per rank, from 0 to its end; None means messages up to `MOST_MESSAGES`.

    Raises ValueError for a cluster with another number of ranks, and for bytes that are not a finite number of at least
    0.

    >>> from ..cluster import Link
    >>> from . import ALGORITHMS
    >>> cluster = Cluster.uniform(4, Link(alpha_s=1.0, bytes_per_s=2.0))
    >>> simulate(ALGORITHMS["allreduce"]["ring"](4), 8.0, cluster).makespan_s
    12.0
    """
    of_type("schedule", schedule, Schedule)
    if schedule.num_ranks != of_type("cluster", cluster, Cluster).num_ranks:
        raise ValueError(f"cluster must have the schedule's {schedule.num_ranks} ranks, got {cluster.num_ranks}")
    num_bytes = number("num_bytes", num_bytes, 0)
    if detail is not None:
        one_of("detail", detail, ("messages", "ranks"))
    return _ScheduleSimulation(schedule, num_bytes, cluster, detail).timeline()


class Sent(NamedTuple):
    """What became of a step's messages: when each started, ended and was added up, and the ports that it took."""

    start_s: Seconds
    end_s: Seconds
    done_s: Seconds
    send_port: Ints
    receive_port: Ints


_ENDED, _ADDED, _ENTERED, _LEFT = range(4)  # events of an instant, in this order; _LEFT is for the sender's card


class _ScheduleSimulation:
    """One simulation: `ready_s` is when each rank may enter its next step."""

    def __init__(self, schedule: Schedule, num_bytes: float, cluster: Cluster, detail: str | None) -> None:
        self.schedule, self.cluster = schedule, cluster
        self.ready_s: Seconds = np.zeros(schedule.num_ranks)
        # of the last `lag` steps, when each rank had added up what it received
        self.added_s = deque([np.zeros(schedule.num_ranks)] * schedule.lag, maxlen=schedule.lag)
        # when each node's network card is free, to send and to receive
        self.out_s, self.in_s = np.zeros(cluster.num_nodes), np.zeros(cluster.num_nodes)
        self.records: list[tuple[Any, ...]] | None = [] if detail != "ranks" else None
        sizes = schedule.chunk_bytes(num_bytes)
        shares = None if schedule.weights is None else np.r_[0.0, np.cumsum(sizes)]
        step = messages = 0
        for routes in all_routes(schedule, cluster.ports):
            messages += routes.num_messages * routes.num_steps
            if detail is None and messages > MOST_MESSAGES:
                self.records = None
            self._phase(routes, shares, sizes[0], step)
            step += routes.num_steps

    def _phase(self, routes: Routes, shares: Seconds | None, chunk_bytes: float, first: int) -> None:
        alpha_s, beta = self.cluster.costs(routes.src, routes.dst)
        alike = self.records is None and not self.cluster.shared_nic and shares is None
        meets = self.cluster.switch_adds and routes.meets
        meets = meets and np.array_equal(self.cluster.node(routes.src), self.cluster.node(routes.dst))
        alike = alike and not meets  # what meets in the switch depends on the chunks
        shift: Callable[[Seconds], Seconds] | None = None
        for nth in range(routes.num_steps):
            if nth == 0 or shares is not None:
                sent, added = routes.bytes_of(shares, chunk_bytes, nth)
                costs_s, adding_s = alpha_s + sent * beta, added * self.cluster.gamma_s_per_byte
            if nth == 0 and alike and self.schedule.lag == 1 and routes.shift is not None:
                shift = _shifting(routes.shift, costs_s, adding_s)
            before_s = self._state() if alike and nth & (nth + 1) == 0 else None
            merged = routes.merged(shares, chunk_bytes, nth, self.schedule.num_ranks) if meets else None
            if shift is not None:
                self.ready_s = shift(self.ready_s)
            elif merged is not None:
                crossing_s, adding = alpha_s + merged.crossing * beta, merged.added * self.cluster.gamma_s_per_byte
                self._step(routes, alpha_s, crossing_s, adding, first + nth, merged)
            else:
                self._step(routes, alpha_s, costs_s, adding_s, first + nth)
            if before_s is not None:
                after_s = self._state()
                moved_s = after_s - before_s
                if moved_s.max() - moved_s.min() <= 8 * _EPS * after_s.max():
                    # All ranks moved on by the same time, and do so for ever: a step is linear in max and plus.
                    self.ready_s, *added_s = after_s + moved_s * (routes.num_steps - 1 - nth)
                    self.added_s.extend(added_s)
                    return

    def _state(self) -> Seconds:
        """All that the next step depends on, a row a time: with a lag of 1 no rank goes on before it has added up."""
        return np.array([self.ready_s, *self.added_s]) if self.schedule.lag > 1 else self.ready_s[None]

    def _step(
        self,
        routes: Routes,
        alpha_s: Seconds,
        costs_s: Seconds,
        adding_s: Seconds,
        number: int,
        merged: Merged | None = None,
    ) -> None:
        enter_s = np.maximum(self.ready_s, self.added_s[0])
        if merged is not None:
            sent = self._in_switch(routes, enter_s, costs_s, adding_s, merged)
        elif routes.num_ports or (self.cluster.shared_nic and len(routes.levels) > 1):
            sent = self._queued(routes, enter_s, alpha_s, costs_s, adding_s)
        else:
            sent = self._by_level(routes, enter_s, alpha_s, costs_s, adding_s)
        ready_s, added_s = enter_s.copy(), self.added_s[-1].copy()  # when each rank is done with all sums so far
        np.maximum.at(ready_s, routes.src, sent.end_s)
        np.maximum.at(ready_s, routes.dst, sent.end_s)
        np.maximum.at(added_s, routes.dst, sent.done_s)
        self.added_s.append(added_s)
        self.ready_s = np.maximum(ready_s, added_s) if self.schedule.lag == 1 else ready_s
        if self.records is not None:
            self.records.append((number, routes, adding_s, sent))

    def _by_level(
        self, routes: Routes, enter_s: Seconds, alpha_s: Seconds, costs_s: Seconds, adding_s: Seconds
    ) -> Sent:
        """A message waits for the one port at each end; a receiver's is free once it has added what came."""
        added_s = self.added_s[-1].copy()
        start_s, end_s, done_s = (np.zeros(routes.num_messages + 1) for _ in range(3))  # the last entry: no message
        for level in routes.levels:
            src, dst = routes.src[level], routes.dst[level]
            start = np.maximum(enter_s[src], enter_s[dst])
            if level is not routes.levels[0]:
                start = np.maximum(start, end_s[routes.after_send[level]])
                start = np.maximum(start, done_s[routes.after_receive[level]])
            end = start + costs_s[level]
            if self.cluster.shared_nic:
                self._pass_cards(src, dst, start, end, (costs_s - alpha_s)[level], alpha_s[level])
            start_s[level], end_s[level] = start, end
            done_s[level] = _add_up(dst, end, adding_s[level], added_s)
        return Sent(start_s[:-1], end_s[:-1], done_s[:-1], routes.send_port, routes.receive_port)

    def _in_switch(self, routes: Routes, enter_s: Seconds, costs_s: Seconds, adding_s: Seconds, merged: Merged) -> Sent:
        """All messages of a rank share its link; those that the switch merges wait for the last one's start."""
        start_s = np.maximum(enter_s[routes.src], enter_s[routes.dst])
        latest_s, end_s = np.zeros(merged.group.max() + 1), start_s.copy()
        np.maximum.at(latest_s, merged.group, start_s[merged.message])
        np.maximum.at(end_s, merged.message, latest_s[merged.group])
        end_s += costs_s
        done_s = _add_up(routes.dst, end_s, adding_s, self.added_s[-1].copy())
        return Sent(start_s, end_s, done_s, turns(routes.src), turns(routes.dst))

    def _queued(self, routes: Routes, enter_s: Seconds, alpha_s: Seconds, costs_s: Seconds, adding_s: Seconds) -> Sent:
        """The step as events in the order of time, where ports, cards and adders are waited for."""
        ends, num_messages = (routes.src.tolist(), routes.dst.tolist()), routes.num_messages
        nodes = self.cluster.node(routes.src).tolist(), self.cluster.node(routes.dst).tolist()
        alpha, wire, adding = alpha_s.tolist(), (costs_s - alpha_s).tolist(), adding_s.tolist()
        added_s = self.added_s[-1].tolist()
        start_s, end_s, done_s = ([0.0] * num_messages for _ in range(3))
        # of the sending side and of the receiving one: who waits at each rank, its free ports, and the ports taken
        lines = [[deque[int]() for _ in enter_s] for _ in ends]
        free = [[list(range(routes.num_ports or 1)) for _ in enter_s] for _ in ends]
        taken = [[0] * num_messages for _ in ends]
        lacking, startable = [2] * num_messages, list[int]()  # ports that a message still waits for
        for line, ranks in zip(lines, ends, strict=True):
            for message, rank in enumerate(ranks):
                line[rank].append(message)

        def give_ports(side: int, rank: int) -> None:
            while lines[side][rank] and free[side][rank]:
                message = lines[side][rank].popleft()
                taken[side][message] = heappop(free[side][rank])
                lacking[message] -= 1
                if not lacking[message]:
                    startable.append(message)

        def release(side: int, message: int) -> None:
            rank = ends[side][message]
            heappush(free[side][rank], taken[side][message])
            give_ports(side, rank)

        events = [(time_s, _ENTERED, rank) for rank, time_s in enumerate(enter_s.tolist())]
        heapify(events)
        while events:
            instant, until_s = list[tuple[float, int, int]](), events[0][0] * (1 + _SAME)
            while events and events[0][0] <= until_s:
                instant.append(heappop(events))
            now_s, arriving = instant[-1][0], all(kind == _LEFT for _, kind, _ in instant)
            for time_s, kind, at in sorted(instant, key=itemgetter(1, 2)):
                if kind == _ENTERED:
                    give_ports(0, at)
                    give_ports(1, at)
                elif kind == _LEFT and not arriving:
                    heappush(events, (time_s, kind, at))  # after all that starts now, and may leave at once
                elif kind == _LEFT:
                    card = nodes[1][at]
                    self.in_s[card] = max(time_s, self.in_s[card] + wire[at])
                    heappush(events, (float(self.in_s[card]) + alpha[at], _ENDED, at))
                elif kind == _ENDED:
                    end_s[at] = time_s
                    release(0, at)
                    if adding[at] > 0:
                        added_s[ends[1][at]] = max(time_s, added_s[ends[1][at]]) + adding[at]
                        heappush(events, (added_s[ends[1][at]], _ADDED, at))
                if kind == _ADDED or (kind == _ENDED and not adding[at]):
                    done_s[at] = time_s
                    release(1, at)
            for at in sorted(startable):
                start_s[at], card = now_s, nodes[0][at]
                if self.cluster.shared_nic and card != nodes[1][at]:
                    self.out_s[card] = max(now_s, self.out_s[card]) + wire[at]
                    heappush(events, (float(self.out_s[card]), _LEFT, at))
                else:
                    heappush(events, (now_s + alpha[at] + wire[at], _ENDED, at))
            startable.clear()
        return Sent(*map(np.array, (start_s, end_s, done_s)), *map(np.array, taken))

    def _pass_cards(
        self, src: Ints, dst: Ints, start_s: Seconds, end_s: Seconds, wire_s: Seconds, alpha_s: Seconds
    ) -> None:
        """Set when messages between nodes end: their bytes leave a node's card, and arrive at one, in turn."""
        leaves, enters = self.cluster.node(src), self.cluster.node(dst)
        away = np.flatnonzero(leaves != enters)
        gone_s = start_s.copy()
        for turn in _one_each(leaves[away], start_s[away]):
            at = away[turn]
            gone_s[at] = self.out_s[leaves[at]] = np.maximum(start_s[at], self.out_s[leaves[at]]) + wire_s[at]
        for turn in _one_each(enters[away], gone_s[away]):
            at = away[turn]
            self.in_s[enters[at]] = np.maximum(gone_s[at], self.in_s[enters[at]] + wire_s[at])
            end_s[at] = self.in_s[enters[at]] + alpha_s[at]

    def timeline(self) -> Timeline:
        """A span for each message at its sender, one at its receiver, and one for the adding where that takes time."""
        if self.records is None:
            ends_s = np.maximum(self.ready_s, self.added_s[-1])
            ranks, none = np.arange(ends_s.size), np.zeros(ends_s.size, dtype=np.int64)
            name = self.schedule.collective
            return Timeline(ranks, none, none, none - 1, np.zeros(ends_s.size), ends_s, ("collective",), (name,))
        most = (max(sent.send_port.max(initial=0), sent.receive_port.max(initial=0)) for *_, sent in self.records)
        ports = 1 + int(max(most, default=0))
        lanes = [f"{verb} {port}" if port else verb for verb in ("send", "receive") for port in range(ports)]
        empty = np.empty(0, dtype=np.int64)
        columns: list[tuple[Any, ...]] = [(empty,) * 4 + (np.empty(0),) * 2]
        for place, routes, adding_s, (start_s, end_s, done_s, send_port, receive_port) in self.records:
            kind, adds = np.zeros_like(routes.src), adding_s > 0
            columns.append((routes.src, send_port, kind, kind + place, start_s, end_s))
            columns.append((routes.dst, receive_port + ports, kind + 1, kind + place, start_s, end_s))
            adder, kind = routes.dst[adds], kind[adds]
            columns.append((adder, kind + 2 * ports, kind + 2, kind + place, (done_s - adding_s)[adds], done_s[adds]))
        rank, lane, kind, item, start_s, stop_s = (np.concatenate(column) for column in zip(*columns, strict=True))
        return Timeline(rank, lane, kind, item, start_s, stop_s, (*lanes, "reduce"), ("send", "receive", "reduce"))


def _shifting(shape: tuple[int, ...], costs_s: Seconds, adding_s: Seconds) -> Callable[[Seconds], Seconds]:
    """A function for steps in which each rank sends to the next along an axis and waits for both of its messages.

    It returns when each rank has finished; the result is overwritten by the call after the next.
    """
    cost, adding, adds = costs_s.reshape(shape), adding_s.reshape(shape), bool(adding_s.any())
    end, *results = (np.empty(shape) for _ in range(3))
    done = np.empty(shape) if adds else end

    def step(ready_s: Seconds) -> Seconds:
        ready, after = ready_s.reshape(shape), results[0]
        results.reverse()
        np.maximum(ready[:, :-1], ready[:, 1:], out=end[:, :-1])
        np.maximum(ready[:, -1], ready[:, 0], out=end[:, -1])
        np.add(end, cost, out=end)
        if adds:
            np.add(end, adding, out=done)
        np.maximum(end[:, 1:], done[:, :-1], out=after[:, 1:])
        np.maximum(end[:, 0], done[:, -1], out=after[:, 0])
        return after.reshape(-1)

    return step


class Merged(NamedTuple):
    """What a switch that adds makes of a step.

    `crossing` are the bytes that cross the sender's link outwards or the receiver's inwards, whichever are more, for
    each message; `added` those that its receiver still adds up. ``message[i]`` takes part in the sum, or in the copying
    to several, ``group[i]``.
    """

    crossing: Seconds
    added: Seconds
    message: Ints
    group: Ints


def messages(num_ranks: int, src: Ints, dst: Ints) -> tuple[Ints, Ints]:
    """Return the message of each transfer, and the first transfer of each message, which are in the order of those."""
    _, first, place = np.unique(src * num_ranks + dst, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    number = np.empty_like(order)
    number[order] = np.arange(order.size)
    return number[place], first[order]


class Routes:
    """The messages of each step of a phase: all transfers from one rank to one other are one message.

    Message i takes port `send_port[i]` of its sender, where message `after_send[i]` is before it (-1: none), and so on
    for the receiver; `levels` groups the messages so that each waits only for messages of earlier groups. Where ranks
    have several ports, and some have more messages than that, time decides who takes which: `num_ports` is their number
    then, and else 0.
    """

    def __init__(self, num_ranks: int, phase: Phase, ports: int | None) -> None:
        self.message, first = messages(num_ranks, phase.src, phase.dst)
        self.src, self.dst = phase.src[first], phase.dst[first]
        self.num_messages, self.num_steps = first.size, phase.num_steps
        self._phase = phase
        self.send_port, self.after_send = _on_ports(self.src, ports)
        self.receive_port, self.after_receive = _on_ports(self.dst, ports)
        most = max(np.bincount(rank).max(initial=0) for rank in (self.src, self.dst))
        self.num_ports = ports if ports and 1 < ports < most else 0
        self.levels = self._levels()
        self.shift = _shift(num_ranks, self.src, self.dst)
        self.meets = most > 1  # at a rank: only there may a switch merge messages

    def bytes_of(self, shares: Seconds | None, num_bytes: float, number: int) -> tuple[Seconds, Seconds]:
        """Return the bytes of each message in this step, and how many of them are added up.

        `shares[c]` are the bytes of all chunks before c, or None where all chunks are of one size.
        """
        phase, rows = self._phase, self._row_bytes(shares, num_bytes, number)
        sent: Seconds = np.bincount(self.message, rows, self.num_messages).astype(float)
        added: Seconds = np.bincount(self.message, rows * phase.reduce, self.num_messages).astype(float)
        return sent, added

    def _row_bytes(self, shares: Seconds | None, num_bytes: float, number: int) -> Seconds:
        if shares is None:
            return np.asarray(self._phase.num_chunks * num_bytes)
        step = self._phase.step(number)
        return np.asarray(shares[step.chunk + step.num_chunks] - shares[step.chunk])

    def merged(self, shares: Seconds | None, num_bytes: float, number: int, num_ranks: int) -> Merged | None:
        """Return what a switch that adds makes of this step, None where it has nothing to merge.

        It adds what several ranks send into the same run of chunks of one rank, and copies what one rank sends to
        several; `hub` is that one rank.
        """
        step, rows = self._phase.step(number), self._row_bytes(shares, num_bytes, number)
        inwards = step.reduce.astype(np.int64)
        hub, rim = np.where(step.reduce, step.dst, step.src), np.where(step.reduce, step.src, step.dst)
        keys = np.array([hub, inwards, step.chunk, step.num_chunks])
        order = np.lexsort(keys)
        group = np.empty_like(order)
        group[order] = np.cumsum((np.diff(keys[:, order], prepend=-1) != 0).any(axis=0)) - 1
        first = turns(group) == 0
        one = np.empty_like(rim)
        one[group[first]] = rim[first]  # a rank of each group, which is of several if another is in it
        several = np.bincount(group, rim != one[group])[group] > 0
        if not several.any():
            return None
        own, once = several & first, first | ~several
        crossing = np.zeros((2, num_ranks))  # outwards and inwards
        np.add.at(crossing, (1 - inwards, rim), rows)
        np.add.at(crossing, (inwards[once], hub[once]), rows[once])
        np.add.at(crossing, (1 - inwards[own], hub[own]), rows[own])  # the hub's own share, or its own copy
        added = np.bincount(self.message, rows * (step.reduce & ~several), self.num_messages)
        most = np.maximum(crossing[0, self.src], crossing[1, self.dst])
        return Merged(most, added.astype(float), self.message[several], group[several])

    def _levels(self) -> list[Ints]:
        if not self.num_messages:
            return []
        level = np.zeros(self.num_messages, dtype=np.int64)
        if (self.after_send >= 0).any() or (self.after_receive >= 0).any():
            for i, (one, other) in enumerate(zip(self.after_send.tolist(), self.after_receive.tolist(), strict=True)):
                level[i] = max(level[one] + 1 if one >= 0 else 0, level[other] + 1 if other >= 0 else 0)
        order = np.argsort(level, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(level[order])) + 1)


def all_routes(schedule: Schedule, ports: int | None) -> Iterator[Routes]:
    """Yield the routes of each phase; those of a small schedule are made once, for all sizes and clusters."""
    key = "routes", ports
    if key in schedule.cache:
        yield from schedule.cache[key]
        return
    made, num_rows = list[Routes](), 0
    for phase in schedule.phases():
        routes = Routes(schedule.num_ranks, phase, ports)
        num_rows += 1 + phase.src.size  # a message may have many rows
        if num_rows <= MOST_KEPT:
            made.append(routes)
        yield routes
    if num_rows <= MOST_KEPT:
        schedule.cache[key] = made


def _on_ports(rank: Ints, ports: int | None) -> tuple[Ints, Ints]:
    """For each message the port of its rank that it takes, and the message that has the only port before it, or -1."""
    before = np.full(rank.size, -1)
    if np.bincount(rank).max(initial=0) < 2:
        return np.zeros_like(rank), before
    turn = turns(rank)
    if ports != 1:
        return turn, before
    order = np.argsort(rank, kind="stable")
    waits = np.flatnonzero(turn[order])
    before[order[waits]] = order[waits - 1]
    return np.zeros_like(rank), before


def _shift(num_ranks: int, src: Ints, dst: Ints) -> tuple[int, int, int] | None:
    """The ranks as (outer, along, inner), if each sends one message to the next along this axis of a grid."""
    ranks = np.arange(num_ranks)
    if src.size != num_ranks or num_ranks < 2 or not np.array_equal(src, ranks):
        return None
    inner, back = int((dst - src).max()), int((src - dst).max())
    along = back // inner + 1 if inner > 0 else 1
    if along < 2 or num_ranks % (along * inner):
        return None
    wraps = ranks // inner % along == along - 1
    same = np.array_equal(dst, ranks + np.where(wraps, -(along - 1) * inner, inner))
    return (num_ranks // (along * inner), along, inner) if same else None


def _add_up(dst: Ints, end_s: Seconds, adding_s: Seconds, added_s: Seconds) -> Seconds:
    """When each message is added up: a rank adds one after the other, as they arrive; `added_s` is when it is free."""
    done_s = end_s.copy()
    for turn in _one_each(dst, end_s) if adding_s.any() else ():
        turn = turn[adding_s[turn] > 0]
        done_s[turn] = added_s[dst[turn]] = np.maximum(end_s[turn], added_s[dst[turn]]) + adding_s[turn]
    return done_s


def _one_each(place: Ints, time_s: Seconds) -> list[Ints]:
    """Groups of entries in which each place comes once: the first in time at each place, then the second, …"""
    order = np.argsort(time_s, kind="stable")
    instant = np.cumsum(np.diff(time_s[order], prepend=0.0) > time_s[order] * _SAME)
    instant[order] = instant.copy()
    order = np.lexsort((instant, place))  # stable
    ordered = place[order]
    if not (ordered[1:] == ordered[:-1]).any():
        return [order]
    turn = turns(ordered)
    return [order[turn == now] for now in range(int(turn.max()) + 1)]
