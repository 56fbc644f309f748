"""Messages between ranks, alone and all at once, and sums and copies in memory: what a model is fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..collectives.wire.group import TAGS, Posted, backend_of, starter, takes_batches
from .measure import Ranks, Task
from .measure_plan import ITEM_BYTES
from .points import Key

EXCHANGES, CHAIN_BYTES = 8, 2**20  # one after the other in an iteration, so many or so many bytes of them, but two
CALLS, CALL_BYTES = 256, 2**22  # sums or copies in an iteration, likewise, but one


def link_task(key: Key, ranks: Ranks, nodes: Sequence[int]) -> tuple[Task, int]:
    """Return what this rank does for such a key, and by how much the seconds of an iteration must be divided.

    `nodes` has the node of each rank.
    """
    what, num_bytes, options = key
    if what in ("add", "copy"):
        return _in_memory(what, num_bytes, ranks)
    inside = dict(options)["link"] == "intra"
    if what == "ping_pong":
        return _ping_pong(num_bytes, ranks, pair(nodes, inside)), 2
    return _together(num_bytes, ranks, neighbours(nodes, inside, ranks.rank))


def pair(nodes: Sequence[int], inside: bool) -> tuple[int, int]:
    """Return two ranks of one node, or of two nodes: the first there are.

    >>> pair([0, 0, 1, 1], inside=True), pair([0, 0, 1, 1], inside=False)
    ((0, 1), (0, 2))
    """
    ranks = range(len(nodes))
    return next((a, b) for a in ranks for b in ranks[a + 1 :] if (nodes[a] == nodes[b]) == inside)


def neighbours(nodes: Sequence[int], inside: bool, rank: int) -> tuple[int, int] | None:
    """Return whom a rank receives from and whom it sends to, in the ring through its node, or that through the nodes.

    The latter joins the ranks that come at the same place on their nodes. None where the rank would be alone.

    >>> neighbours([0, 0, 0, 1, 1, 1], inside=True, rank=0), neighbours([0, 0, 0, 1, 1, 1], inside=False, rank=1)
    ((2, 1), (4, 4))
    """
    place = {r: list(nodes[:r]).count(nodes[r]) for r in range(len(nodes))}
    ring = [r for r in place if (nodes[r] == nodes[rank] if inside else place[r] == place[rank])]
    at = ring.index(rank)
    return (ring[at - 1], ring[(at + 1) % len(ring)]) if len(ring) > 1 else None


def _ping_pong(num_bytes: int, ranks: Ranks, ends: tuple[int, int]) -> Task:
    """There and back. Where it can be, both have posted their receive before the start: nothing waits for "ready"."""
    if ranks.rank not in ends:
        return Task(lambda: None)
    first = ranks.rank == ends[0]
    peer = ends[1] if first else ends[0]
    views = [torch.zeros(num_bytes // ITEM_BYTES, device=ranks.device) for _ in range(2)]
    start, works = starter(ranks.group, views[0]), [None, None]
    sends, receives = [Posted(0, 0, True, peer, TAGS)], [Posted(1, 1, False, peer, TAGS)]
    early = not takes_batches(backend_of(ranks.group, views[0]))

    def send() -> None:
        start(sends, views, works)

    def receive() -> None:
        start(receives, views, works)

    def run() -> None:
        if first:
            send()
        if not early:
            receive()
        _wait(works[1])
        if not first:
            send()

    return Task(run, receive if early else lambda: None, lambda: _wait(works[0]))


def _together(num_bytes: int, ranks: Ranks, ring: tuple[int, int] | None) -> tuple[Task, int]:
    """Exchanges one after the other, each receive posted one step ahead, as `Executor` has it."""
    number = min(EXCHANGES, max(2, CHAIN_BYTES // num_bytes))
    if ring is None:
        return Task(lambda: None), number
    views = [torch.zeros(num_bytes // ITEM_BYTES, device=ranks.device) for _ in range(3)]
    start, ahead = starter(ranks.group, views[0]), not takes_batches(backend_of(ranks.group, views[0]))
    works: list[Any] = [None] * (2 * number)  # the receives, then the sends
    receives = [Posted(step, 1 + step % 2, False, ring[0], TAGS + step) for step in range(number)]
    sends = [Posted(number + step, 0, True, ring[1], TAGS + step) for step in range(number)]
    steps = [[sends[step], *receives[step + ahead : step + ahead + 1]] for step in range(number)]

    def run() -> None:
        for step, posted in enumerate(steps):
            start(posted, views, works)
            _wait(works[step])
            if step:
                _wait(works[number + step - 1])
        _wait(works[-1])

    return Task(run, lambda: start(receives[:1], views, works) if ahead else None), number


def _in_memory(what: str, num_bytes: int, ranks: Ranks) -> tuple[Task, int]:
    number = min(CALLS, max(1, CALL_BYTES // num_bytes))
    to, source = (torch.zeros(num_bytes // ITEM_BYTES, device=ranks.device) for _ in range(2))
    call = to.add_ if what == "add" else to.copy_

    def run() -> None:
        for _ in range(number):
            call(source)

    return Task(run), number


def _wait(work: Any) -> None:
    work.wait()
