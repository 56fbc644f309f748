"""What the steps of a phase have in common for a simulator: their messages, and who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .schedule import MOST_KEPT, Ints, Phase, Schedule

Seconds = NDArray[np.float64]


class Shift(NamedTuple):
    """Every rank sends to the next along one axis of a grid: the ranks as (outer, along, inner)."""

    outer: int
    along: int
    inner: int


class Routes:
    """The messages of each step of a phase: all transfers from one rank to one other are one message.

    Message i takes port `send_port[i]` of its sender, where message `after_send[i]` is before it (-1: none), and so on
    for the receiver; `levels` groups the messages so that each waits only for messages of earlier groups.
    """

    def __init__(self, num_ranks: int, phase: Phase, ports: int | None) -> None:
        _, rows, place = np.unique(phase.src * num_ranks + phase.dst, return_index=True, return_inverse=True)
        order = np.argsort(rows, kind="stable")  # messages in the order of their first transfers
        rank_of = np.empty_like(order)
        rank_of[order] = np.arange(order.size)
        self.message = rank_of[place]  # of each transfer
        self.src, self.dst = phase.src[rows[order]], phase.dst[rows[order]]
        self.num_messages, self.num_steps = order.size, phase.num_steps
        self._phase = phase
        self.send_port, self.after_send = _turns(self.src, ports)
        self.receive_port, self.after_receive = _turns(self.dst, ports)
        self.levels = self._levels()
        self.shift = _shift(num_ranks, self.src, self.dst)

    def bytes_of(self, shares: Seconds | None, num_bytes: float, number: int) -> tuple[Seconds, Seconds]:
        """Return the bytes of each message in this step, and how many of them are added up.

        `shares[c]` are the bytes of all chunks before c, or None where all chunks are of one size.
        """
        phase = self._phase
        if shares is None:
            rows = phase.num_chunks * num_bytes
        else:
            step = phase.step(number)
            rows = shares[step.chunk + step.num_chunks] - shares[step.chunk]
        sent: Seconds = np.bincount(self.message, rows, self.num_messages).astype(float)
        added: Seconds = np.bincount(self.message, rows * phase.reduce, self.num_messages).astype(float)
        return sent, added

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
    if key in schedule.kept:
        yield from schedule.kept[key]
        return
    made, num_rows = list[Routes](), 0
    for phase in schedule.phases():
        routes = Routes(schedule.num_ranks, phase, ports)
        num_rows += 1 + phase.src.size  # of which a message may have many
        if num_rows <= MOST_KEPT:
            made.append(routes)
        yield routes
    if num_rows <= MOST_KEPT:
        schedule.kept[key] = made


def _turns(rank: Ints, ports: int | None) -> tuple[Ints, Ints]:
    """For each message the port of its rank that it takes, and the message that has that port before it, or -1."""
    turn, before = np.zeros_like(rank), np.full(rank.size, -1)
    if np.unique(rank).size == rank.size:
        return turn, before
    order = np.argsort(rank, kind="stable")
    first = np.r_[True, np.diff(rank[order]) != 0]
    place = np.arange(rank.size) - np.maximum.accumulate(np.where(first, np.arange(rank.size), 0))
    turn[order] = place if ports is None else place % ports
    if ports is not None:
        waits = place >= ports
        before[order[waits]] = order[np.flatnonzero(waits) - ports]
    return turn, before


def _shift(num_ranks: int, src: Ints, dst: Ints) -> Shift | None:
    """The shift that this is, if each rank sends one message to the next along an axis."""
    ranks = np.arange(num_ranks)
    if src.size != num_ranks or num_ranks < 2 or not np.array_equal(src, ranks):
        return None
    inner, back = int((dst - src).max()), int((src - dst).max())
    along = back // inner + 1 if inner > 0 else 1
    if along < 2 or num_ranks % (along * inner):
        return None
    wraps = ranks // inner % along == along - 1
    same = np.array_equal(dst, ranks + np.where(wraps, -(along - 1) * inner, inner))
    return Shift(num_ranks // (along * inner), along, inner) if same else None
