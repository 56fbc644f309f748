"""Timed tasks of a rank: messages between ranks, and sums in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ...collectives.process_group import Message, backend_of, starter, takes_batches
from ...collectives.timing import Ranks, TimedTask
from ..points import PointKey
from .plan import ITEM_BYTES

# An iteration has several exchanges in sequence: at most so many, and so many bytes, but at least two, so that a
# receive is posted ahead while the clock runs.
MOST_EXCHANGES = 8
MOST_EXCHANGED_BYTES = 2**20
SUMMED_BYTES = 2**22  # in an iteration, unless a single sum has more


class Phase(NamedTuple):
    """Messages that a rank starts together, and the messages that it then waits for."""

    starts: list[Message]
    awaits: list[Message]


def link_task(key: PointKey, ranks: Ranks, nodes: Sequence[int]) -> TimedTask:
    """Return this rank's task for a key of a link or of memory; `nodes` has the node of each rank."""
    if key.what == "add":
        return _sums(key.num_bytes, ranks)
    rings = rings_of(nodes, inside=dict(key.options)["link"] == "intra")
    if key.what == "ping_pong":
        return _messages(_ping_pong(ranks.rank, rings[0]), key.num_bytes, 2, ranks)
    times = min(MOST_EXCHANGES, max(2, MOST_EXCHANGED_BYTES // key.num_bytes))
    return _messages(_together(ranks.rank, rings, times), key.num_bytes, times, ranks)


def rings_of(nodes: Sequence[int], inside: bool) -> list[list[int]]:
    """Return rings of two ranks or more: those of each node, or those across nodes.

    The latter connect the ranks with the same position on their nodes.

    >>> rings_of([0, 0, 0, 1, 1], inside=True), rings_of([0, 0, 0, 1, 1], inside=False)
    ([[0, 1, 2], [3, 4]], [[0, 3], [1, 4]])
    """
    rings: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        position = nodes[:rank].count(node)
        rings.setdefault(node if inside else position, []).append(rank)
    return [ring for ring in rings.values() if len(ring) > 1]


def _ping_pong(rank: int, ring: Sequence[int]) -> list[Phase]:
    """Return the phases of a message that the first rank of a ring sends to the second, which sends it back.

    Others do nothing. The time of the first rank, which ends with the answer, is the longer one.
    """
    if rank not in ring[:2]:
        return []
    first, second, *_ = ring
    peer = second if rank == first else first
    send = Message(place=0, sends=True, peer=peer, step=0)
    receive = Message(place=1, sends=False, peer=peer, step=0)
    if rank == first:
        return [Phase([send, receive], [receive])]
    return [Phase([receive], [receive]), Phase([send], [])]


def _together(rank: int, rings: Sequence[Sequence[int]], num_steps: int) -> list[Phase]:
    """Return the phases of exchanges: in each step, every rank sends to the next rank of its ring."""
    phases = []
    last_send: list[Message] = []
    for ring in rings:
        if rank not in ring:
            continue
        index = ring.index(rank)
        for step in range(num_steps):
            send = Message(0, sends=True, peer=ring[(index + 1) % len(ring)], step=step)
            # Two receives may be posted at the same time, so they use buffers 1 and 2 in turn.
            receive = Message(1 + step % 2, sends=False, peer=ring[index - 1], step=step)
            phases.append(Phase([send, receive], [receive, *last_send]))
            last_send = [send]  # it may last until the next step has received
    return [*phases, Phase([], last_send)]


def _messages(phases: Sequence[Phase], num_bytes: int, times: int, ranks: Ranks) -> TimedTask:
    """Return the task of going through the phases.

    As in `execute`, Gloo posts each receive one phase ahead, the first before the clock starts, so that no send waits
    for its receiver. NCCL does not, because it starts sends and receives together.
    """
    buffers = torch.zeros((3, num_bytes // ITEM_BYTES), device=ranks.device)
    start = starter(ranks.group, buffers)
    ahead = not takes_batches(backend_of(ranks.group, buffers))
    starts: list[list[Message]] = [[] for _ in range(len(phases) + 1)]  # the first are before the clock starts
    for index, phase in enumerate(phases):
        for message in phase.starts:
            is_ahead = ahead and not message.sends
            starts[index if is_ahead else index + 1].append(message)
    works: dict[Message, Any] = {}

    def prepare() -> None:
        start(starts[0], buffers.__getitem__, works)

    def run() -> None:
        for started, phase in zip(starts[1:], phases, strict=True):
            start(started, buffers.__getitem__, works)
            for message in phase.awaits:
                works.pop(message).wait()

    def finish() -> None:
        for work in works.values():
            work.wait()
        works.clear()

    # Each rank divides the slowest one's seconds by `times`, so they are the same on a rank that does nothing.
    return TimedTask(run, prepare, finish, times)


def _sums(num_bytes: int, ranks: Ranks) -> TimedTask:
    """Return the task of several sums of two buffers in this rank's memory."""
    times = max(1, SUMMED_BYTES // num_bytes)
    target, source = torch.zeros((2, num_bytes // ITEM_BYTES), device=ranks.device)

    def run() -> None:
        for _ in range(times):
            target.add_(source)

    return TimedTask(run, times=times)
