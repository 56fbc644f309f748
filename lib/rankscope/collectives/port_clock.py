"""The clock of `simulate`: a message holds a port of both its ranks for alpha_s + bytes / bytes_per_s."""

from __future__ import annotations

from collections import defaultdict, deque
from heapq import heappop, heappush

import numpy as np

from ..cluster import Cluster
from .messages import Bytes, Messages, Seconds, Times, latest
from .schedule import Schedule
from .steps import Ints, Step
from .switch_sums import switch_sums


class PortClock:
    """`times_s` are when each rank is ready for its next step, and done with all sums up to each of the last steps.

    There are as many of the latter as the schedule's lag, the oldest first. The last one is when the rank is done with
    all. An executor has any number of ports, and no switch that adds.
    """

    def __init__(self, cluster: Cluster, schedule: Schedule, executor: bool) -> None:
        self.ports = None if executor else cluster.ports
        self.switch = cluster if cluster.switch_adds and not executor else None
        self.executor = executor
        self.before_s = np.zeros(cluster.num_ranks)  # when each rank has entered the step before
        self.gamma_s_per_byte = cluster.gamma_s_per_byte
        self.used_before = np.zeros((cluster.num_ranks, schedule.num_chunks), dtype=bool)  # chunks, in that step
        self.times_s = [np.zeros(cluster.num_ranks) for _ in range(1 + schedule.lag)]
        # when each rank's own card, and the one that the ranks of each node share, is free to send, and to receive
        self.cards_s = np.zeros((2, cluster.num_ranks + cluster.num_nodes))

    def pass_step(self, each: Messages, step: Step, row_bytes: Bytes) -> Times:
        """Return the times of the messages of the next step."""
        ready_s, *sums_s = self.times_s
        enter_s = np.maximum(ready_s, sums_s[0])
        added_s = sums_s[-1].copy()
        start_s = np.maximum(enter_s[each.src], enter_s[each.dst])
        if self.executor:
            start_s = np.maximum(start_s, self.before_s[each.dst] + each.signal_s)
            self.before_s = enter_s
            later_s = each.adding_s + self._copying_s(each, step, row_bytes)
            each = each._replace(adding_s=0.0 * later_s)  # not as each message arrives, but after the last one
        merged = None
        if self.switch is not None and each.most_at_a_rank > 1:
            merged = switch_sums(self.switch, each, step, row_bytes, start_s)
        has_ports = self.ports is None or each.most_at_a_rank <= self.ports
        has_cards = each.most_at_a_card <= 1 or not each.queues.any()
        if merged is None and not (has_ports and has_cards):
            times = wait_in_queues(self.ports or each.most_at_a_rank, each, start_s, added_s, self.cards_s)
        else:
            end_s = start_s + each.alpha_s + each.wire_s
            if merged is not None:
                end_s, adding_s = merged
                each = each._replace(adding_s=adding_s)
            elif each.queues.any():  # each card has one message, but may not be free yet
                rows = np.flatnonzero(each.queues)
                out, into, wire_s = each.out[rows], each.into[rows], each.wire_s[rows]
                out_s, into_s = self.cards_s
                out_s[out] = np.maximum(start_s[rows], out_s[out]) + wire_s
                into_s[into] = np.maximum(out_s[out], into_s[into] + wire_s)
                end_s[rows] = into_s[into] + each.alpha_s[rows]
            done_s = _add_up(each, end_s, added_s)
            ports = each.send_port, each.receive_port
            times = Times(each.src, each.dst, start_s, end_s, done_s, each.adding_s, *ports)
        if self.executor:  # it adds once all messages of a step have come
            received_s = latest(enter_s, each.dst, times.end_s)[each.dst]
            done_s = _add_up(each._replace(adding_s=later_s), received_s, added_s)
            waits_s = _waits_from_s(each.dst, enter_s, times.end_s)
            times = times._replace(start_s=waits_s, done_s=done_s, adding_s=later_s)
        ready_s = latest(latest(enter_s, each.src, times.end_s), each.dst, times.end_s)
        # A rank adds nothing before its next messages arrive: with this, the times of all ranks can move alike.
        self.times_s = [ready_s, *sums_s[1:], np.maximum(added_s, ready_s)]
        return times

    def _copying_s(self, each: Messages, step: Step, row_bytes: Bytes) -> Seconds:
        """How long an executor copies messages that cannot come straight into their place.

        It still uses that in the step before, in which it posts the receive.
        """
        rows = step.by_chunk()
        is_used = self.used_before[rows.dst, rows.chunk]
        self.used_before[:] = False
        self.used_before[rows.src, rows.chunk] = self.used_before[rows.dst, rows.chunk] = True
        copied = np.bincount(np.repeat(each.of_row, step.num_chunks), is_used, each.src.size) > 0
        replaced = np.bincount(each.of_row, row_bytes * ~step.reduce, each.src.size)  # bytes
        return np.asarray(copied * replaced * self.gamma_s_per_byte)


def _add_up(each: Messages, arrived_s: Seconds, added_s: Seconds) -> Seconds:
    """Return when each message is added up; `added_s`, when each rank is free to add, is brought up to date.

    A rank adds up one message after the other, in the order in which they arrive.
    """
    done_s = arrived_s.copy()
    adds = np.flatnonzero(each.adding_s)
    turns = adds[None]  # all at once
    if each.most_at_a_rank > 1:
        turns = adds[np.argsort(arrived_s[adds], kind="stable")][:, None]
    for turn in turns:
        rank = each.dst[turn]
        done_s[turn] = added_s[rank] = np.maximum(arrived_s[turn], added_s[rank]) + each.adding_s[turn]
    return done_s


def _waits_from_s(dst: Ints, enter_s: Seconds, arrived_s: Seconds) -> Seconds:
    """Return when a rank begins to wait for each message: after those that have arrived before it."""
    waits_s = enter_s[dst]
    order = np.lexsort((arrived_s, dst))
    follows = np.flatnonzero(np.diff(dst[order]) == 0)  # the places of those that another one of the rank follows
    waits_s[order[follows + 1]] = arrived_s[order[follows]]
    return waits_s


_SAME = 1e-12  # times that differ by less, relative to the later one, are the same instant

# Kinds of events. Those of one instant take effect in this order, because rounding must not decide which message takes
# which of several free ports, or which comes first to a card.
_ENDED, _ADDED, _STARTS, _LEFT = range(4)


def wait_in_queues(num_ports: int, each: Messages, enter_s: Seconds, added_s: Seconds, cards_s: Seconds) -> Times:
    """Play a step whose messages wait for ports or cards, from when both ranks of each message enter it.

    The messages of a rank get its ports in the order of the step, each the first that is free. Those that queue at
    cards leave one, and arrive at another, one after the other. `added_s`, when each rank is free to add, and
    `cards_s`, when the cards are free to send and to receive, are brought up to date.
    """
    rank_of = each.src.tolist(), each.dst.tolist()
    out, into, queues = each.out.tolist(), each.into.tolist(), each.queues.tolist()
    alpha_s, wire_s, adding_s = each.alpha_s.tolist(), each.wire_s.tolist(), each.adding_s.tolist()
    start_s, end_s, done_s = np.zeros((3, each.src.size))
    port_of = np.zeros((2, each.src.size), dtype=np.int64)
    has_one_port = [False] * each.src.size
    waiting: dict[tuple[int, int], deque[int]] = defaultdict(deque)  # messages by side, 0 to send, and rank
    for side, ranks in enumerate(rank_of):
        for message, rank in enumerate(ranks):
            waiting[side, rank].append(message)
    free = {end: list(range(num_ports)) for end in waiting}  # a heap of ports
    events: list[tuple[float, int, int]] = []  # a heap of times, kinds and messages
    instant: list[tuple[int, int]] = []  # a heap of the kinds and messages of one instant

    def give_ports(side: int, rank: int, now_s: float) -> None:
        """Give free ports to the messages that wait for them; a message starts once it has one at both its ranks."""
        while free[side, rank] and waiting[side, rank]:
            message = waiting[side, rank].popleft()
            port_of[side, message] = heappop(free[side, rank])
            if has_one_port[message]:
                heappush(events, (max(now_s, enter_s[message]), _STARTS, message))
            has_one_port[message] = True

    def release(side: int, message: int, now_s: float) -> None:
        rank = rank_of[side][message]
        heappush(free[side, rank], int(port_of[side, message]))
        give_ports(side, rank, now_s)

    for side, rank in waiting:
        give_ports(side, rank, 0.0)
    now_s = 0.0
    while events or instant:
        if not instant:
            now_s = events[0][0]
        while events and events[0][0] - now_s <= _SAME * now_s:
            heappush(instant, heappop(events)[1:])
        kind, message = heappop(instant)
        if kind == _STARTS:
            start_s[message] = now_s
            if queues[message]:
                cards_s[0, out[message]] = max(now_s, cards_s[0, out[message]]) + wire_s[message]
                heappush(events, (cards_s[0, out[message]], _LEFT, message))
            else:
                heappush(events, (now_s + alpha_s[message] + wire_s[message], _ENDED, message))
        elif kind == _LEFT:
            # The first bytes arrive while the others still leave, so a receiving card that is free adds no time.
            cards_s[1, into[message]] = max(now_s, cards_s[1, into[message]] + wire_s[message])
            heappush(events, (cards_s[1, into[message]] + alpha_s[message], _ENDED, message))
        elif kind == _ENDED:
            end_s[message] = done_s[message] = now_s
            release(0, message, now_s)
            if adding_s[message]:
                rank = rank_of[1][message]
                added_s[rank] = done_s[message] = max(now_s, added_s[rank]) + adding_s[message]
            heappush(events, (done_s[message], _ADDED, message))
        else:
            release(1, message, now_s)
    return Times(each.src, each.dst, start_s, end_s, done_s, each.adding_s, *port_of)
