"""What a rank of a measuring run does: survey its machine; run timed messages, sums, copies and collectives."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...cluster import node_sizes
from ...collectives import build
from ...collectives.timing import Ranks, TimedTask, go_first, network_id
from ...collectives.wire.group import TAGS, Posted, backend_of, starter, takes_batches
from ...collectives.wire.run import executor
from ...common.units import bytes_words
from ...provenance import free_bytes, of_machine
from ..profile import NATIVE, TRANSFERS, Key, Point
from .plan import ITEM_BYTES, Protocol
from .transfers import MeasuredGpu, most_bytes, transfer_points
from .turns import measure_all

EXCHANGES, CHAIN_BYTES = 8, 2**20  # messages in sequence per iteration: this many or this many bytes, at least two
CALLS, CALL_BYTES = 256, 2**22  # sums or copies per iteration, likewise, at least one


def survey(device: str) -> dict[str, Any]:
    """Return a description of this rank's machine, which ranks share it, and how much memory a rank may use.

    Rank 0 also returns the largest copy to and from its GPU in bytes, 0 if it has none.
    """
    ranks = Ranks(device=_own(device))
    nodes = ranks.numbered(network_id())
    free = _free_bytes(device, node_sizes(nodes)[nodes[ranks.rank]])
    return {
        **of_machine(),
        "nodes": nodes,
        "free_bytes": -int(ranks.slowest([-float(free)])[0]),  # the minimum over all ranks
        "transfer_bytes": most_bytes(MeasuredGpu(_gpu())) if ranks.rank == 0 and torch.cuda.is_available() else 0,
        "clock_offset_s": ranks.slowest([ranks.clock_offset_s])[0],
    }


def measure_keys(keys: Sequence[Key], nodes: Sequence[int], device: str, protocol: Protocol) -> list[Point]:
    """Return a point for each key. Adjacent keys of the same operation and size take turns.

    Only rank 0 copies to and from a GPU.
    """
    if protocol.real_time:
        go_first()
    ranks = Ranks(device=_own(device))
    points = []
    for _, some in itertools.groupby(keys, lambda key: key[:2]):
        chosen = list(some)
        if chosen[0][0] not in TRANSFERS:
            points += points_of(chosen, nodes, ranks, protocol)
        elif ranks.rank == 0:
            points += transfer_points(chosen, protocol, MeasuredGpu(_gpu()))
    return points


def same(value: Any) -> Any:
    """Return the argument that rank 0 passed."""
    return value


def points_of(keys: Sequence[Key], nodes: Sequence[int], ranks: Ranks, protocol: Protocol) -> list[Point]:
    """Return the points of keys that take turns."""
    if "algorithm" in dict(keys[0][2]):
        tasks = collective_tasks(keys, ranks)
    else:
        tasks = {key: link_task(key, ranks, nodes) for key in keys}
    found = measure_all(tasks, ranks, protocol)
    return [
        Point(what, num_bytes, tuple(one / task.times for one in found[key][0]), found[key][1], dict(options))
        for key, task in tasks.items()
        for what, num_bytes, options in [key]
    ]


def _own(device: str) -> str:
    """This rank's device. NCCL ranks already have their GPU; with other backends ranks take the GPUs in turn."""
    if device != "cuda":
        return device
    if dist.get_backend() != "nccl":
        place = int(os.environ.get("LOCAL_RANK", dist.get_rank()))
        torch.cuda.set_device(place % torch.cuda.device_count())
    return _gpu()


def _free_bytes(device: str, num_ranks: int) -> int:
    """The bytes a rank may use on its device, shared with the ranks of its node; Gloo copies GPU buffers to the
    host."""
    on_host = free_bytes() // num_ranks
    if device != "cuda":
        return on_host
    on_gpu = int(torch.cuda.mem_get_info()[0]) // -(-num_ranks // torch.cuda.device_count())
    return on_gpu if dist.get_backend() == "nccl" else min(on_host, on_gpu)


def _gpu() -> str:
    return f"cuda:{torch.cuda.current_device()}"


# ---- messages, sums and copies in memory


def link_task(key: Key, ranks: Ranks, nodes: Sequence[int]) -> TimedTask:
    """Return this rank's task for a key of a link; `nodes` has the node of each rank."""
    what, num_bytes, options = key
    if what in ("add", "copy"):
        return _in_memory(what, num_bytes, ranks)
    inside = dict(options)["link"] == "intra"
    if what == "ping_pong":
        return _ping_pong(num_bytes, ranks, pair(nodes, inside))
    return _together(num_bytes, ranks, neighbours(nodes, inside, ranks.rank))


def pair(nodes: Sequence[int], inside: bool) -> tuple[int, int]:
    """Return the first two ranks that share a node (`inside`), or that do not.

    >>> pair([0, 0, 1, 1], inside=True), pair([0, 0, 1, 1], inside=False)
    ((0, 1), (0, 2))
    """
    ranks = range(len(nodes))
    return next((a, b) for a in ranks for b in ranks[a + 1 :] if (nodes[a] == nodes[b]) == inside)


def neighbours(nodes: Sequence[int], inside: bool, rank: int) -> tuple[int, int] | None:
    """Return the ranks that a rank receives from and sends to, in the ring of its node or in the ring across nodes.

    The latter connects the ranks with the same position on their nodes. Returns None if the rank would be alone.

    >>> neighbours([0, 0, 0, 1, 1, 1], inside=True, rank=0), neighbours([0, 0, 0, 1, 1, 1], inside=False, rank=1)
    ((2, 1), (4, 4))
    """
    place = {r: list(nodes[:r]).count(nodes[r]) for r in range(len(nodes))}
    ring = [r for r in place if (nodes[r] == nodes[rank] if inside else place[r] == place[rank])]
    at = ring.index(rank)
    return (ring[at - 1], ring[(at + 1) % len(ring)]) if len(ring) > 1 else None


def _ping_pong(num_bytes: int, ranks: Ranks, ends: tuple[int, int]) -> TimedTask:
    """There and back. If the backend can, both post their receive before the start, so neither waits for ready."""
    if ranks.rank not in ends:
        return TimedTask(lambda: None, times=2)
    first = ranks.rank == ends[0]
    peer = ends[1] if first else ends[0]
    views = [torch.zeros(num_bytes // ITEM_BYTES, device=ranks.device) for _ in range(2)]
    start = starter(ranks.group, views[0])
    works: list[Any] = [None, None]
    sends, receives = [Posted(0, 0, True, peer, TAGS)], [Posted(1, 1, False, peer, TAGS)]
    early = not takes_batches(backend_of(ranks.group, views[0]))

    def run() -> None:
        if first:
            start(sends, views, works)
        if not early:
            start(receives, views, works)
        works[1].wait()
        if not first:
            start(sends, views, works)

    return TimedTask(run, lambda: start(receives, views, works) if early else None, lambda: works[0].wait(), times=2)


def _together(num_bytes: int, ranks: Ranks, ring: tuple[int, int] | None) -> TimedTask:
    """Exchanges in sequence, each receive posted one step ahead, as `execute` does."""
    number = min(EXCHANGES, max(2, CHAIN_BYTES // num_bytes))
    if ring is None:
        return TimedTask(lambda: None, times=number)
    views = [torch.zeros(num_bytes // ITEM_BYTES, device=ranks.device) for _ in range(3)]
    start, ahead = starter(ranks.group, views[0]), not takes_batches(backend_of(ranks.group, views[0]))
    works: list[Any] = [None] * (2 * number)  # the receives, then the sends
    receives = [Posted(step, 1 + step % 2, False, ring[0], TAGS + step) for step in range(number)]
    sends = [Posted(number + step, 0, True, ring[1], TAGS + step) for step in range(number)]
    steps = [[sends[step], *receives[step + ahead : step + ahead + 1]] for step in range(number)]

    def run() -> None:
        for step, posted in enumerate(steps):
            start(posted, views, works)
            works[step].wait()
            if step:
                works[number + step - 1].wait()
        works[-1].wait()

    return TimedTask(run, lambda: start(receives[:1], views, works) if ahead else None, times=number)


def _in_memory(what: str, num_bytes: int, ranks: Ranks) -> TimedTask:
    number = min(CALLS, max(1, CALL_BYTES // num_bytes))
    to, source = (torch.zeros(num_bytes // ITEM_BYTES, device=ranks.device) for _ in range(2))
    call = to.add_ if what == "add" else to.copy_

    def run() -> None:
        for _ in range(number):
            call(source)

    return TimedTask(run, times=number)


# ---- collectives

PATTERN = 61  # random, from 1: misplaced elements show; sums stay exact in float32 for 700 ranks
CollectiveFunction = Callable[[Tensor], Tensor]


def collective_tasks(keys: Sequence[Key], ranks: Ranks) -> dict[Key, TimedTask]:
    """Return this rank's tasks for keys of one collective and size, after checking the result of each.

    Raises RuntimeError for a wrong result, with the first wrong element.
    """
    buffers = CollectiveBuffers(keys[0][0], keys[0][1], ranks)
    tasks = {}
    for key in keys:
        run = method(key, buffers, ranks)
        check(key, run, buffers)
        tasks[key] = TimedTask(lambda run=run: run(buffers.given), buffers.fill)  # type: ignore[misc]
    return tasks


class CollectiveBuffers:
    """A rank's input to a collective (integers that identify their rank and position) and its expected result."""

    def __init__(self, collective: str, num_bytes: int, ranks: Ranks) -> None:
        self.collective, self._rank, self._size = collective, ranks.rank, ranks.size
        elements = num_bytes // ITEM_BYTES
        self._each = elements // ranks.size
        random = torch.Generator().manual_seed(0)
        pattern = torch.randint(1, PATTERN + 1, (elements,), generator=random, dtype=torch.float32)
        self._pattern: Tensor = pattern.to(ranks.device)
        self.given = self._of(ranks.rank, self._run(ranks.rank) if collective == "allgather" else slice(None))
        own = self._each if collective == "reduce_scatter" else elements
        self.out = torch.full((own,), torch.nan, device=ranks.device)

    def fill(self) -> None:
        """Restore the input, which a collective in place has overwritten."""
        if self.collective == "allreduce":
            torch.mul(self._pattern, self._rank + 1, out=self.given)

    def right(self) -> Tensor:
        """Return the expected result."""
        total = self._size * (self._size + 1) // 2
        if self.collective == "allreduce":
            return torch.mul(self._pattern, total)
        if self.collective == "reduce_scatter":
            return torch.mul(self._pattern[self._run(self._rank)], total)
        if self.collective == "broadcast":
            return self._of(0, slice(None))
        place = self._rank if self.collective == "all_to_all" else None
        return torch.cat([self._of(r, self._run(r if place is None else place)) for r in range(self._size)])

    def _run(self, rank: int) -> slice:
        return slice(rank * self._each, (rank + 1) * self._each)

    def _of(self, rank: int, where: slice) -> Tensor:
        return torch.mul(self._pattern[where], rank + 1)


def method(key: Key, buffers: CollectiveBuffers, ranks: Ranks) -> CollectiveFunction:
    """Return the function that runs a key; all ranks must call this at the same point."""
    collective, _, options = key
    chosen: dict[str, Any] = dict(options)
    name, in_place = chosen.pop("algorithm"), chosen.pop("in_place")
    if name == NATIVE:
        run = _native(collective, buffers, ranks)
    else:  # only collectives that are not measured return None
        run = executor(build(collective, name, ranks.size, **chosen), buffers.given, ranks.group)  # type: ignore[assignment]
    if in_place or collective != "allreduce":
        return run
    return lambda given: run(buffers.out.copy_(given))


def check(key: Key, run: CollectiveFunction, buffers: CollectiveBuffers) -> None:
    """Run one iteration; raises RuntimeError unless every element of its result is right."""
    buffers.fill()
    found, right = run(buffers.given), buffers.right()
    if found.shape != right.shape:
        raise RuntimeError(f"{_named(key)} returned {found.numel()} elements instead of {right.numel()}")
    wrong = torch.nonzero(found != right)
    if wrong.numel():
        first = int(wrong[0])
        what = f"element {first} is {found[first].item():g}, not {right[first].item():g}"
        raise RuntimeError(f"{_named(key)} gave a wrong result: {what}, {wrong.shape[0]} of {right.numel()} are wrong")


def _named(key: Key) -> str:
    what, num_bytes, options = key
    return f"{what} by {dict(options)['algorithm']} of {bytes_words(num_bytes)}"


def _native(collective: str, buffers: CollectiveBuffers, ranks: Ranks) -> CollectiveFunction:
    group, out, options = ranks.group, buffers.out, dist.AllreduceOptions()
    starts: dict[str, Callable[[Tensor], Any]] = {
        "allreduce": lambda given: group.allreduce([given], options),
        "broadcast": lambda given: group.broadcast(out.copy_(given) if ranks.rank == 0 else out, 0),
        "allgather": lambda given: group._allgather_base(out, given),
        "reduce_scatter": lambda given: group._reduce_scatter_base(out, given),
        "all_to_all": lambda given: group.alltoall_base(out, given, [], []),
    }

    def run(given: Tensor) -> Tensor:
        starts[collective](given).wait()
        return given if collective == "allreduce" else out

    return run
