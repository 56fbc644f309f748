"""A step in which messages wait for ports, as events in the order of time."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

import numpy as np

from ..cluster import Cluster
from .messages import SAME, Messages, Seconds, Times
from .steps import Bools

# Kinds of events. Those of one instant take effect in this order, because rounding must not decide which message takes
# which of several free ports, or which comes first to a card.
_ENDED, _ADDED, _STARTS, _LEFT = range(4)


def in_queues(
    cluster: Cluster, each: Messages, crosses: Bools, enter_s: Seconds, added_s: Seconds, cards_s: Seconds
) -> Times:
    """Play a step in which some ranks have more messages than ports, from when each rank enters it.

    The messages of a rank get its ports in the order of the step, each the first that is free. Those that cross shared
    cards leave one, and arrive at another, one after the other. `added_s`, when each rank is free to add, and
    `cards_s`, when the cards are free to send and to receive, are brought up to date.
    """
    senders = _Side(each.src.tolist(), cluster.ports or 1)
    receivers = _Side(each.dst.tolist(), cluster.ports or 1)
    both_enter_s = np.maximum(enter_s[each.src], enter_s[each.dst])
    out = cluster.node(each.src)
    into = cluster.node(each.dst)
    num_lacking = [2] * each.src.size  # ports that each message still waits for
    start_s, end_s, done_s = np.zeros((3, each.src.size))
    events: list[tuple[float, int, int]] = []  # a heap of times, kinds and messages

    def admit(messages: list[int], now_s: float) -> None:
        """Let messages start once they have a port on both sides and both ranks have entered the step."""
        for message in messages:
            num_lacking[message] -= 1
            if num_lacking[message] == 0:
                heappush(events, (max(now_s, both_enter_s[message]), _STARTS, message))

    def take_effect(kind: int, message: int, now_s: float) -> None:
        if kind == _STARTS:
            start_s[message] = now_s
            if crosses[message]:
                left_s = max(now_s, cards_s[0, out[message]]) + each.wire_s[message]
                cards_s[0, out[message]] = left_s
                heappush(events, (left_s, _LEFT, message))
            else:
                heappush(events, (now_s + each.alpha_s[message] + each.wire_s[message], _ENDED, message))
        elif kind == _LEFT:
            # The first bytes arrive while the others still leave, so a receiving card that is free adds no time.
            arrived_s = max(now_s, cards_s[1, into[message]] + each.wire_s[message])
            cards_s[1, into[message]] = arrived_s
            heappush(events, (arrived_s + each.alpha_s[message], _ENDED, message))
        elif kind == _ENDED:
            end_s[message] = now_s
            admit(senders.release(message), now_s)
            rank = each.dst[message]
            if each.adding_s[message] > 0:
                added_s[rank] = max(now_s, added_s[rank]) + each.adding_s[message]
                heappush(events, (added_s[rank], _ADDED, message))
            else:
                take_effect(_ADDED, message, now_s)
        else:
            done_s[message] = now_s
            admit(receivers.release(message), now_s)

    for side in (senders, receivers):
        for rank in side.waiting:
            admit(side.give_ports(rank), 0.0)
    while events:
        now_s = events[0][0]
        instant: list[tuple[int, int]] = []  # kinds and messages; times that differ by rounding only are the same
        while events and events[0][0] - now_s <= SAME * now_s:
            instant.append(heappop(events)[1:])
        first_kind = min(kind for kind, _ in instant)
        for kind, message in sorted(instant):
            if kind == first_kind:
                take_effect(kind, message, now_s)
            else:  # after those of earlier kinds that follow from these
                heappush(events, (now_s, kind, message))
    ports = [np.array(side.port_of, dtype=np.int64) for side in (senders, receivers)]
    return Times(start_s, end_s, start_s, end_s, done_s, each.adding_s, *ports)


class _Side:
    """The ports of all ranks on the sending or on the receiving side."""

    def __init__(self, rank_of: list[int], num_ports: int) -> None:
        self.rank_of = rank_of  # of each message
        self.port_of = [0] * len(rank_of)  # that each message took
        self.waiting: dict[int, deque[int]] = {}  # messages of each rank that wait for a port, in their order
        for message, rank in enumerate(rank_of):
            self.waiting.setdefault(rank, deque()).append(message)
        self.free = {rank: list(range(num_ports)) for rank in self.waiting}  # a heap of ports for each rank

    def give_ports(self, rank: int) -> list[int]:
        """Give the free ports of a rank to the messages that wait for them, and return these."""
        given = []
        while self.free[rank] and self.waiting[rank]:
            message = self.waiting[rank].popleft()
            self.port_of[message] = heappop(self.free[rank])
            given.append(message)
        return given

    def release(self, message: int) -> list[int]:
        """Free a message's port, and return the message that takes it, if there is one."""
        rank = self.rank_of[message]
        heappush(self.free[rank], self.port_of[message])
        return self.give_ports(rank)
