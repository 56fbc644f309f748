"""A second way to tell what the executor takes: packets, one tick of a clock after the other, no shares, no events.

Each rank's program runs as a generator. In a tick every rank's card lets out one packet, of its messages one after the
other, into a queue at the receiver's card, which takes in one packet a tick. All times are whole ticks.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from rankscope.collectives import Schedule
from rankscope.collectives.wire.plan import Plan, Post, Transfer, Wait, plans

Name = tuple[int, int, int]


class Wire:
    """What is posted, ready, sent and received, by (src, dst, step); values are ticks or numbers of packets."""

    def __init__(self) -> None:
        self.posted: list[
            tuple[int, Name]
        ] = []  # who posted what: the sender its message, the receiver its ready signal
        self.left: dict[Name, int] = {}  # packets that are still to leave
        self.ready: dict[Name, int] = {}  # tick from which they may
        self.sent: dict[Name, int] = {}
        self.arrived: dict[Name, int] = {}
        self.leaving: dict[int, list[Name]] = {}  # by card, signals and messages in the order in which they go
        self.queued: dict[int, list[tuple[Name, bool]]] = {}  # packets by receiver, and whether it is the last


def name_of(rank: int, transfer: Transfer) -> Name:
    if transfer.sends:
        return rank, transfer.peer, transfer.step
    return transfer.peer, rank, transfer.step


def program(rank: int, rank_plan: Plan, wire: Wire, now: list[int]) -> Iterator[None]:
    for op in rank_plan.program:
        if isinstance(op, Post):
            for transfer in (rank_plan.transfers[number] for number in op.transfers):
                name = name_of(rank, transfer)
                wire.posted.append((rank, name))
                if transfer.sends:
                    wire.left[name] = transfer.span.stop - transfer.span.start
        elif isinstance(op, Wait):
            transfer = rank_plan.transfers[op.transfer]
            name = name_of(rank, transfer)
            ends = wire.sent if transfer.sends else wire.arrived
            while ends.get(name, now[0] + 1) > now[0]:
                yield


def ticks(schedule: Schedule, num_elements: int, alpha: int) -> int:
    """Return when the last rank is through, where a packet is an element, and takes a tick."""
    wire = Wire()
    now = [0]
    end = 0
    all_plans = plans(schedule, schedule.chunk_ends(num_elements))
    ranks = {rank: program(rank, rank_plan, wire, now) for rank, rank_plan in enumerate(all_plans)}
    for now[0] in count():
        for rank in list(ranks):
            if next(ranks[rank], "end") == "end":
                del ranks[rank]
                end = now[0]
        if not ranks:
            return end
        pass_packets(wire, now[0], alpha)
    raise AssertionError


def pass_packets(wire: Wire, now: int, alpha: int) -> None:
    for rank, name in list(wire.posted):
        is_ready_signal = name[1] == rank
        if is_ready_signal or wire.ready.get(name, now + 1) <= now:
            wire.leaving.setdefault(rank, []).append(name)
            wire.posted.remove((rank, name))
    for rank, line in wire.leaving.items():
        while line and line[0][1] == rank:  # ready signals take no time, but their turn
            wire.ready[line.pop(0)] = now + alpha
        if line:
            name = line[0]
            wire.left[name] -= 1
            wire.queued.setdefault(name[1], []).append((name, not wire.left[name]))
            if not wire.left[name]:
                wire.sent[name] = now + 1
                line.pop(0)
    for packets in wire.queued.values():
        if packets:
            name, last = packets.pop(0)
            if last:
                wire.arrived[name] = now + 1 + alpha
