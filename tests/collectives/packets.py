"""A second way to tell what the executor takes: packets, one tick of a clock after the other, no shares, no events.

Each rank's program runs as a generator. In a tick every rank's card lets out one packet, of its messages in turn, that
the receiver's card, which takes in one as well, has room for. All times are whole ticks.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from rankscope.collectives import Schedule
from rankscope.collectives.cuts import chunk_ends
from rankscope.collectives.wire_messages import rank_steps
from rankscope.collectives.wire_plan import Plan, Post, Wait, plan

Name = tuple[int, int, int]


class Wire:
    """What is posted, ready, sent and received, by (src, dst, step); values are ticks or numbers of packets."""

    def __init__(self) -> None:
        self.posted: dict[Name, int] = {}  # packets that are still to leave
        self.ready: dict[Name, int] = {}  # tick from which they may
        self.sent: dict[Name, int] = {}
        self.arrived: dict[Name, int] = {}
        self.turn: list[Name] = []


def program(rank: int, made: Plan, wire: Wire, alpha: int, now: list[int]) -> Iterator[None]:
    for op in made.program:
        if isinstance(op, Post):
            for one in (made.transfers[number] for number in op.transfers):
                if one.sends:
                    wire.posted[rank, one.peer, one.step] = one.span.stop - one.span.start
                    wire.turn.append((rank, one.peer, one.step))
                else:
                    wire.ready[one.peer, rank, one.step] = now[0] + alpha
        elif isinstance(op, Wait):
            one = made.transfers[op.transfer]
            name = (rank, one.peer, one.step) if one.sends else (one.peer, rank, one.step)
            ends = wire.sent if one.sends else wire.arrived
            while ends.get(name, now[0] + 1) > now[0]:
                yield


def ticks(schedule: Schedule, num_elements: int, alpha: int) -> int:
    """Return when the last rank is through, where a packet is an element, and takes a tick."""
    ends = chunk_ends(schedule, num_elements)
    wire, now, end = Wire(), [0], 0
    ranks = {
        rank: program(rank, plan(rank_steps(schedule, rank, ends)), wire, alpha, now)
        for rank in range(schedule.num_ranks)
    }
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
    out: set[int] = set()
    into: set[int] = set()
    for name in list(wire.turn):
        src, dst, _ = name
        if src in out or dst in into or wire.ready.get(name, now + 1) > now:
            continue
        out.add(src)
        into.add(dst)
        wire.posted[name] -= 1
        wire.turn.remove(name)
        if wire.posted[name]:
            wire.turn.append(name)  # behind all others
        else:
            wire.sent[name], wire.arrived[name] = now + 1, now + 1 + alpha
