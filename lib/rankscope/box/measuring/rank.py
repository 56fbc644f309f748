"""What a rank of a measuring run does: survey its machine; run timed messages, sums, copies and collectives."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...cluster import node_sizes
from ...collectives import build, execute
from ...collectives.process_group import Message, backend_of, starter, takes_batches
from ...collectives.timing import Ranks, TimedTask, go_first, network_id, nothing
from ...common.units import bytes_words
from ...provenance import free_bytes, of_machine
from ..profile import NATIVE, TRANSFERS, Point, PointKey
from .plan import ITEM_BYTES, Protocol, operation_and_size
from .transfers import MeasuredGpu, most_bytes, transfer_points
from .turns import measure_all

# An iteration has several messages in sequence: at most so many, and so many bytes, but at least two.
MOST_EXCHANGES = 8
MOST_EXCHANGED_BYTES = 2**20
# An iteration has several sums or copies in memory: at most so many, and so many bytes, but at least one.
MOST_CALLS = 256
MOST_CALLED_BYTES = 2**22


def survey(device: str) -> dict[str, Any]:
    """Return a description of this rank's machine, which ranks share it, and how much memory a rank may use.

    Also by how much the clock of a rank may differ from rank 0's after its correction, at most; and on rank 0, the
    largest copy to and from its GPU in bytes, 0 if it has none.
    """
    ranks = Ranks(device=_select_device(device))
    nodes = ranks.numbered(network_id())  # the number of each rank's node
    num_ranks_here = node_sizes(nodes)[nodes[ranks.rank]]
    free = _free_bytes(device, num_ranks_here)
    least_free = -ranks.slowest([-float(free)])[0]  # `slowest` is the maximum over all ranks
    transfer_bytes = 0
    if ranks.rank == 0 and torch.cuda.is_available():
        transfer_bytes = most_bytes(MeasuredGpu(_gpu()))
    return {
        **of_machine(),
        "nodes": nodes,
        "free_bytes": int(least_free),
        "transfer_bytes": transfer_bytes,
        "clock_offset_s": ranks.slowest([ranks.clock_offset_s])[0],
    }


def measure_keys(keys: Sequence[PointKey], nodes: Sequence[int], device: str, protocol: Protocol) -> list[Point]:
    """Return a point for each key. Adjacent keys of the same operation and size take turns.

    Only rank 0 copies to and from a GPU.
    """
    if protocol.real_time:
        go_first()  # at real-time priority
    ranks = Ranks(device=_select_device(device))
    points = []
    for (operation, _), group in itertools.groupby(keys, operation_and_size):  # the size only separates groups
        if operation not in TRANSFERS:
            points += points_of(list(group), nodes, ranks, protocol)
        elif ranks.rank == 0:
            points += transfer_points(list(group), protocol, MeasuredGpu(_gpu()))
    return points


def same(value: Any) -> Any:
    """Return the argument. A launch gives each rank the results of all, and so the value that rank 0 passed."""
    return value


def points_of(keys: Sequence[PointKey], nodes: Sequence[int], ranks: Ranks, protocol: Protocol) -> list[Point]:
    """Return the points of keys that take turns; all are of the same operation and size."""
    if "algorithm" in dict(keys[0].options):
        tasks = collective_tasks(keys, ranks)
    else:
        tasks = {key: link_task(key, ranks, nodes) for key in keys}
    timings = measure_all(tasks, ranks, protocol)
    points = []
    for key, task in tasks.items():
        seconds = tuple(iteration_s / task.times for iteration_s in timings[key].seconds)
        points.append(Point(key.what, key.num_bytes, seconds, timings[key].clean, dict(key.options)))
    return points


def _select_device(device: str) -> str:
    """Select the device for this rank's buffers, "cpu" or a GPU of its own for "cuda", and return its name.

    An NCCL rank has selected its GPU before. With other backends, the ranks of a node share its GPUs evenly.
    """
    if device != "cuda":
        return device
    if dist.get_backend() != "nccl":
        # Without a launcher that sets LOCAL_RANK, all ranks are on this machine.
        local_rank = int(os.environ.get("LOCAL_RANK", dist.get_rank()))
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    return _gpu()


def _free_bytes(device: str, num_ranks: int) -> int:
    """Return the bytes a rank may use on its device, shared with the `num_ranks` ranks of its node.

    Gloo copies the buffers of a GPU to the host, so it is limited by the memory of both.
    """
    on_host = free_bytes() // num_ranks
    if device != "cuda":
        return on_host
    ranks_per_gpu = math.ceil(num_ranks / torch.cuda.device_count())
    on_gpu = int(torch.cuda.mem_get_info()[0]) // ranks_per_gpu
    return on_gpu if dist.get_backend() == "nccl" else min(on_host, on_gpu)


def _gpu() -> str:
    return f"cuda:{torch.cuda.current_device()}"


# ---- messages, sums and copies in memory


def link_task(key: PointKey, ranks: Ranks, nodes: Sequence[int]) -> TimedTask:
    """Return this rank's task for a key of a link; `nodes` has the node of each rank."""
    if key.what in ("add", "copy"):
        return _in_memory(key.what, key.num_bytes, ranks)
    is_inside_node = dict(key.options)["link"] == "intra"
    if key.what == "ping_pong":
        return _ping_pong(key.num_bytes, ranks, pair(nodes, is_inside_node))
    return _together(key.num_bytes, ranks, neighbours(nodes, is_inside_node, ranks.rank))


def pair(nodes: Sequence[int], inside: bool) -> tuple[int, int]:
    """Return the first two ranks that share a node (`inside`), or that do not.

    >>> pair([0, 0, 1, 1], inside=True), pair([0, 0, 1, 1], inside=False)
    ((0, 1), (0, 2))
    """
    pairs = itertools.combinations(range(len(nodes)), 2)
    return next((first, second) for first, second in pairs if (nodes[first] == nodes[second]) == inside)


def neighbours(nodes: Sequence[int], inside: bool, rank: int) -> tuple[int, int] | None:
    """Return the ranks that a rank receives from and sends to, in the ring of its node or in the ring across nodes.

    The latter connects the ranks with the same position on their nodes. Returns None if the rank would be alone.

    >>> neighbours([0, 0, 0, 1, 1, 1], inside=True, rank=0), neighbours([0, 0, 0, 1, 1, 1], inside=False, rank=1)
    ((2, 1), (4, 4))
    """
    if inside:
        ring = [other for other, node in enumerate(nodes) if node == nodes[rank]]
    else:
        # The position of a rank on its node is the number of ranks before it that share its node.
        positions = [list(nodes[:other]).count(node) for other, node in enumerate(nodes)]
        ring = [other for other, position in enumerate(positions) if position == positions[rank]]
    if len(ring) == 1:
        return None
    index = ring.index(rank)
    return ring[index - 1], ring[(index + 1) % len(ring)]


def _ping_pong(num_bytes: int, ranks: Ranks, ends: tuple[int, int]) -> TimedTask:
    """Return the task of a message that the first of the two `ends` sends, and the second one sends back.

    Other ranks do nothing. Gloo lets a rank post its receive before the clock starts, so that no send waits for a
    receiver. NCCL does not, because it starts sends and receives together.
    """
    if ranks.rank not in ends:
        return TimedTask(nothing, times=2)  # as on the ends: each rank divides the slowest one's seconds by its `times`
    first, second = ends
    is_first = ranks.rank == first
    peer = second if is_first else first
    buffers = [torch.zeros(num_bytes // ITEM_BYTES, device=ranks.device) for _ in range(2)]
    send = Message(place=0, sends=True, peer=peer, step=0)
    receive = Message(place=1, sends=False, peer=peer, step=0)
    works: dict[Message, Any] = {}  # `start` puts here what to wait for
    start = starter(ranks.group, buffers[0])
    posts_early = not takes_batches(backend_of(ranks.group, buffers[0]))

    def prepare() -> None:
        if posts_early:
            start([receive], buffers.__getitem__, works)

    def run() -> None:
        if is_first:
            start([send], buffers.__getitem__, works)
        if not posts_early:
            start([receive], buffers.__getitem__, works)
        works[receive].wait()
        if not is_first:
            start([send], buffers.__getitem__, works)

    def finish() -> None:
        # Not timed: the first rank's time, the longer one, ends with the answer, after both messages have arrived.
        works[send].wait()

    return TimedTask(run, prepare, finish, times=2)


def _together(num_bytes: int, ranks: Ranks, ring: tuple[int, int] | None) -> TimedTask:
    """Return the task of several exchanges in sequence: in each step, every rank sends to the next rank of a ring.

    `ring` is the rank that this one receives from, and the rank that it sends to; None if it has nobody to exchange
    with. As in `execute`, each receive is posted one step ahead if the backend allows that.
    """
    # With a single step, no receive would be posted ahead while the clock runs, but only before.
    num_steps = min(MOST_EXCHANGES, max(2, MOST_EXCHANGED_BYTES // num_bytes))
    if ring is None:
        return TimedTask(nothing, times=num_steps)  # as on the ranks of a ring, for the reason in `_ping_pong`
    before, after = ring
    # Buffer 0 is sent. Two receives may be posted at the same time, so buffers 1 and 2 receive in turn, and each step
    # has a tag of its own.
    buffers = [torch.zeros(num_bytes // ITEM_BYTES, device=ranks.device) for _ in range(3)]
    receives = []
    sends = []
    for step in range(num_steps):
        receives.append(Message(place=1 + step % 2, sends=False, peer=before, step=step))
        sends.append(Message(place=0, sends=True, peer=after, step=step))
    works: dict[Message, Any] = {}  # `start` puts here what to wait for
    start = starter(ranks.group, buffers[0])
    posts_early = not takes_batches(backend_of(ranks.group, buffers[0]))
    messages_of_steps = []
    for step in range(num_steps):
        messages = [sends[step]]
        receive_step = step + 1 if posts_early else step
        if receive_step < num_steps:
            messages.append(receives[receive_step])
        messages_of_steps.append(messages)

    def prepare() -> None:
        if posts_early:
            start([receives[0]], buffers.__getitem__, works)

    def run() -> None:
        for step, messages in enumerate(messages_of_steps):
            start(messages, buffers.__getitem__, works)
            works[receives[step]].wait()
            if step > 0:  # A send may last until the next step has received.
                works[sends[step - 1]].wait()
        works[sends[-1]].wait()

    return TimedTask(run, prepare, times=num_steps)


def _in_memory(what: str, num_bytes: int, ranks: Ranks) -> TimedTask:
    """Return the task of several sums ("add") or copies ("copy") of a buffer in this rank's memory."""
    num_calls = min(MOST_CALLS, max(1, MOST_CALLED_BYTES // num_bytes))
    target = torch.zeros(num_bytes // ITEM_BYTES, device=ranks.device)
    source = torch.zeros(num_bytes // ITEM_BYTES, device=ranks.device)
    call = target.add_ if what == "add" else target.copy_

    def run() -> None:
        for _ in range(num_calls):
            call(source)

    return TimedTask(run, times=num_calls)


# ---- collectives

# The elements of a collective's input are random whole numbers up to this, times the rank's number from 1. So misplaced
# elements show, and sums over up to 700 ranks stay below 2**24, up to which float32 holds every whole number.
PATTERN = 61
CollectiveFunction = Callable[[Tensor], Tensor]


def collective_tasks(keys: Sequence[PointKey], ranks: Ranks) -> dict[PointKey, TimedTask]:
    """Return this rank's tasks for keys of one collective and size, after checking the result of each.

    Raises RuntimeError for a wrong result, with the first wrong element.
    """
    buffers = CollectiveBuffers(keys[0].what, keys[0].num_bytes, ranks)
    tasks = {}
    for key in keys:
        run = method(key, buffers, ranks)
        check(key, run, buffers)
        # `run=run` binds the function of this key, not that of the last one.
        tasks[key] = TimedTask(lambda run=run: run(buffers.input), buffers.fill)  # type: ignore[misc]
    return tasks


class CollectiveBuffers:
    """A rank's input to a collective and its expected result.

    All ranks know the same pattern of the whole buffer. A rank contributes the pattern times its number from 1.
    """

    def __init__(self, collective: str, num_bytes: int, ranks: Ranks) -> None:
        self.collective = collective
        self._rank = ranks.rank
        self._size = ranks.size
        elements = num_bytes // ITEM_BYTES
        self._share = elements // ranks.size  # elements of a rank if each has a part of the buffer
        random = torch.Generator().manual_seed(0)
        pattern = torch.randint(1, PATTERN + 1, (elements,), generator=random, dtype=torch.float32)
        self._pattern: Tensor = pattern.to(ranks.device)
        part = slice(None)
        if collective == "allgather":  # each rank contributes only its own part
            part = self._part(ranks.rank)
        self.input = self._contribution(ranks.rank, part)
        out_elements = self._share if collective == "reduce_scatter" else elements
        # Elements that a collective leaves out show, because nan is equal to nothing.
        self.out = torch.full((out_elements,), torch.nan, device=ranks.device)

    def fill(self) -> None:
        """Restore the input, which a collective in place has overwritten."""
        if self.collective == "allreduce":
            torch.mul(self._pattern, self._rank + 1, out=self.input)

    def right(self) -> Tensor:
        """Return the expected result."""
        total = self._size * (self._size + 1) // 2  # the sum of the ranks' numbers from 1
        if self.collective == "allreduce":
            return torch.mul(self._pattern, total)
        if self.collective == "reduce_scatter":
            return torch.mul(self._pattern[self._part(self._rank)], total)
        if self.collective == "broadcast":
            return self._contribution(0, slice(None))
        received = []
        for sender in range(self._size):
            # In an all-to-all, a rank receives its own part from each; in an allgather, it receives the sender's part.
            owner = self._rank if self.collective == "all_to_all" else sender
            received.append(self._contribution(sender, self._part(owner)))
        return torch.cat(received)

    def _part(self, rank: int) -> slice:
        """Return the elements of the whole buffer that belong to a rank."""
        return slice(rank * self._share, (rank + 1) * self._share)

    def _contribution(self, rank: int, part: slice) -> Tensor:
        """Return what a rank contributes to a part of the buffer."""
        return torch.mul(self._pattern[part], rank + 1)


def method(key: PointKey, buffers: CollectiveBuffers, ranks: Ranks) -> CollectiveFunction:
    """Return the function that runs a key's collective and returns the result.

    All ranks must call this at the same point, because it lets them agree on a schedule.
    """
    collective = key.what
    builder_options: dict[str, Any] = dict(key.options)
    name = builder_options.pop("algorithm")
    in_place = builder_options.pop("in_place")
    if name == NATIVE:
        run = _native(collective, buffers, ranks)
    else:
        schedule = build(collective, name, ranks.size, **builder_options)

        def run(tensor: Tensor) -> Tensor:
            result = execute(schedule, tensor, ranks.group)
            assert result is not None  # only of a barrier, or on a rank without output: no such collective is measured
            return result

    if in_place or collective != "allreduce":
        return run
    # An allreduce works in place, so out of place means that the input is copied first.
    return lambda tensor: run(buffers.out.copy_(tensor))


def check(key: PointKey, run: CollectiveFunction, buffers: CollectiveBuffers) -> None:
    """Run one iteration; raises RuntimeError unless every element of its result is right."""
    buffers.fill()
    result = run(buffers.input)
    right = buffers.right()
    if result.shape != right.shape:
        raise RuntimeError(f"{_named(key)} returned {result.numel()} elements instead of {right.numel()}")
    wrong = torch.nonzero(result != right)
    if wrong.numel():
        first = int(wrong[0])
        problem = f"element {first} is {result[first].item():g}, not {right[first].item():g}"
        extent = f"{wrong.shape[0]} of {right.numel()} are wrong"
        raise RuntimeError(f"{_named(key)} gave a wrong result: {problem}, {extent}")


def _named(key: PointKey) -> str:
    return f"{key.what} by {dict(key.options)['algorithm']} of {bytes_words(key.num_bytes)}"


def _native(collective: str, buffers: CollectiveBuffers, ranks: Ranks) -> CollectiveFunction:
    """Return the backend's own collective. It fills the input of an allreduce, and `buffers.out` of all others."""
    group = ranks.group  # its own methods also work for a group that torch.distributed does not know
    out = buffers.out
    options = dist.AllreduceOptions()  # by default a sum

    def broadcast(tensor: Tensor) -> Any:
        if ranks.rank == 0:  # A broadcast sends and receives in place, so the root's input is copied first.
            out.copy_(tensor)
        return group.broadcast(out, 0)

    starts: dict[str, Callable[[Tensor], Any]] = {
        "allreduce": lambda tensor: group.allreduce([tensor], options),
        "broadcast": broadcast,
        "allgather": lambda tensor: group._allgather_base(out, tensor),
        "reduce_scatter": lambda tensor: group._reduce_scatter_base(out, tensor),
        "all_to_all": lambda tensor: group.alltoall_base(out, tensor, [], []),  # []: in equal parts
    }

    def run(tensor: Tensor) -> Tensor:
        starts[collective](tensor).wait()
        return tensor if collective == "allreduce" else out

    return run
