"""Timed tasks of a rank: messages between ranks, and sums in memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from ...collectives.process_group import Message, backend_of, starter, takes_batches
from ..points import PointKey
from .plan import ITEM_BYTES
from .timing import Ranks, TimedTask, nothing, times_in_a_row


def ring_of(nodes: Sequence[int], rank: int, inside: bool) -> list[int]:
    """Return a rank's ring, in which it comes first: that of its node, or one across nodes.

    The latter connects the ranks with the same position on their nodes.

    >>> ring_of([0, 0, 0, 1, 1], 1, inside=True), ring_of([0, 0, 0, 1, 1], 1, inside=False)
    ([1, 2, 0], [1, 4])
    """
    groups = list(nodes)
    if not inside:  # The position of a rank on its node is the number of ranks before it that share its node.
        groups = [groups[:other].count(node) for other, node in enumerate(nodes)]
    ring = [other for other, group in enumerate(groups) if group == groups[rank]]
    index = ring.index(rank)
    return ring[index:] + ring[:index]


def link_task(key: PointKey, ranks: Ranks, nodes: Sequence[int]) -> TimedTask:
    """Return this rank's task for a key of memory or of a link; `nodes` has the node of each rank.

    The latter is several exchanges in sequence: in each, every rank sends to the next one of its ring. Gloo posts the
    receives before the clock starts, so that no send waits for its receiver. NCCL does not, because it starts the send
    and the receive of a step together.
    """
    items = key.num_bytes // ITEM_BYTES
    if key.what == "add":
        target, source = torch.zeros((2, items), device=ranks.device)
        return TimedTask(lambda: target.add_(source))
    ring = ring_of(nodes, ranks.rank, inside=dict(key.options)["link"] == "intra")
    if len(ring) == 1:
        return TimedTask(nothing)
    num_steps = times_in_a_row(key.num_bytes)
    tensors = torch.zeros((num_steps + 1, items), device=ranks.device)  # the last one is sent
    receives = [Message(step, sends=False, peer=ring[-1], step=step) for step in range(num_steps)]
    sends = [Message(num_steps, sends=True, peer=ring[1], step=step) for step in range(num_steps)]
    start = starter(ranks.group, tensors)
    is_batched = takes_batches(backend_of(ranks.group, tensors))
    works: dict[Message, Any] = {}
    steps = itertools.cycle(zip(sends, receives, strict=True))

    def prepare() -> None:
        if not is_batched:
            start(receives, tensors.__getitem__, works)

    def run() -> None:
        send, receive = next(steps)
        start([send, receive] if is_batched else [send], tensors.__getitem__, works)
        works[receive].wait()
        works[send].wait()

    return TimedTask(run, prepare, num_steps)
