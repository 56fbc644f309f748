"""`execute`: a schedule carried out by real ranks, point to point over a process group of torch.distributed.

Each rank carries out its own steps one by one. It posts its receives one step ahead, because Gloo lets a message leave
only once its receiver is ready: otherwise each step would take two latencies. And it writes nothing into elements that
a message may still be reading: an allreduce that did gave wrong sums on slow networks.
"""

from __future__ import annotations

import hashlib
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..common.checks import of_type, one_of
from .process_group import Message, backend_of, failure, group_of, starter, takes_batches
from .schedule import SUMS, Schedule
from .verify import verify

if TYPE_CHECKING:
    from torch import Tensor

    from ..timeline import Recorder

# The calls that the ranks of each group have agreed on, each with memory that is used again: a buffer, and scratch.
_agreed_calls: weakref.WeakKeyDictionary[Any, dict[Any, list[Tensor]]] = weakref.WeakKeyDictionary()


def execute(
    schedule: Schedule, tensor: Tensor, group: Any = None, op: str = "sum", recorder: Recorder | None = None
) -> Tensor | None:
    """Execute this rank's part of a collective and return its result, or None if the rank has none.

    Every rank of `group` must call this with the same schedule, op, dtype and, unless the schedule has weights, number
    of elements. Inputs and outputs are those of `run_local`, and so are the results, bit for bit: scatter and
    reduce_scatter take whole buffers and return the rank's own run; gather and allgather take own runs and return whole
    buffers; all_to_all takes and returns one run per rank; broadcast and scatter read only the root's tensor. allreduce
    works in place and returns the tensor itself; all others return a new tensor and leave the input unchanged. Tensors
    must be contiguous. What a backend cannot send from a GPU goes through the host.

    If a `recorder` is given, it records this rank's time as spans on the lane "executor", with steps as items: "send"
    and "receive" while the rank waits for such a message, "reduce" and "copy", and "post" for starting messages.

    `group` is a process group made by torch.distributed or `in_threads`, or None for the default group. The first call
    of each kind verifies the schedule and compares the call across ranks; later calls start at once.

    Raises ScheduleError if the schedule does not `verify`; ValueError if the tensor or `op` does not match it or the
    ranks disagree; RuntimeError, which names step and peer, if a message fails or does not arrive within the group's
    timeout. After a RuntimeError the group can no longer be used.

    >>> import torch
    >>> from rankscope.ranks import in_threads
    >>> from . import ALGORITHMS
    >>> ring = ALGORITHMS["allreduce"]["ring"](3)
    >>> in_threads(3, lambda rank, group: execute(ring, torch.arange(4) * 10**rank, group).tolist())
    [[0, 111, 222, 333], [0, 111, 222, 333], [0, 111, 222, 333]]
    """
    import torch

    from .local import OPS, shape_of

    of_type("schedule", schedule, Schedule)
    of_type("tensor", tensor, torch.Tensor)
    group = group_of(group)
    if schedule.collective == "barrier":  # it does not even read the tensor, but sends bytes of its own
        tensor = torch.zeros(schedule.num_chunks, dtype=torch.uint8, device=tensor.device)
    part, (kept, *scratch) = _agreed_part(schedule, tensor, group, op)
    passed = tensor.detach().view(-1)
    if not takes_batches(backend_of(group, tensor)):
        passed = passed.cpu()  # only NCCL sends from a GPU
    is_in_place = schedule.collective == "allreduce"
    buffer = passed
    if not is_in_place:
        # A buffer that is the result is the caller's.
        buffer = passed.new_empty(part.ends[-1]) if part.is_result else kept
        if part.offset is not None:
            buffer[part.offset : part.offset + passed.numel()] = passed
    _carry_out(part, [buffer, *scratch], starter(group, tensor), OPS[op], recorder)
    if schedule.collective == "barrier" or not part.wanted:
        return None
    if not part.is_result:
        buffer = torch.cat([buffer[run] for run in part.wanted])
    if op == "avg" and schedule.collective in SUMS:
        buffer.div_(schedule.num_ranks)
    if not is_in_place:
        return buffer.to(tensor.device).view(shape_of(schedule, tensor, part.ends, buffer.numel()))
    if buffer.device != tensor.device:
        tensor.detach().view(-1).copy_(buffer)
    return tensor


def _carry_out(
    part: Part,
    memories: list[Tensor],
    start: Callable[..., None],
    combine: Callable[..., Tensor],
    recorder: Recorder | None,
) -> None:
    """Carry out a rank's steps in its memories, and record them."""
    note = None if recorder is None else _noting(recorder)

    @cache
    def view(place: Place) -> Tensor:
        return memories[place.memory][place.start : place.stop]

    works: dict[Message, Any] = {}  # kept until the end: to free one earlier would wait for Gloo's own thread
    for number, step in enumerate(part.steps, start=-1):
        start(step.posts, view, works)
        if note:
            note("post", number)
        for message in step.waits:
            try:
                works[message].wait()
            except RuntimeError as error:
                raise failure(message, error) from error
            if note:
                note("send" if message.sends else "receive", number)
        for _, target, source, is_added in step.writes:
            if is_added:
                combine(view(target), view(source), out=view(target))
            else:
                view(target).copy_(view(source))
            if note:
                note("reduce" if is_added else "copy", number)


def _noting(recorder: Recorder) -> Callable[[str, int], None]:
    """Return a function that records what the rank did, in a step, since the last call."""
    began_ns = time.perf_counter_ns()

    def note(kind: str, step: int) -> None:
        nonlocal began_ns
        now_ns = time.perf_counter_ns()
        recorder.add("executor", kind, step, began_ns, now_ns)
        began_ns = now_ns

    return note


# ---- what a rank does


class Place(NamedTuple):
    """Elements of a rank's memory: of the whole buffer, or of scratch for receives in even and odd steps, or sends."""

    memory: int  # 0 to 3, in this order
    start: int
    stop: int


Transfers = list[list[tuple[Any, ...]]]  # of a rank in each step: src, dst, start, stop and reduce
Writes = list[tuple[int, Place, Place, bool]]  # number of the transfer, target, source, and whether it is added


class RankStep(NamedTuple):
    """What a rank does in a step: it starts messages, waits for some, and then writes."""

    posts: list[Message]
    waits: list[Message]
    writes: Writes


class Part(NamedTuple):
    """A rank's part of a collective, in a buffer of all chunks, whose `ends` are as from `Schedule.chunk_ends`.

    What the rank passes begins at `offset`, None if it passes nothing; `wanted` are the chunks of its result, and all
    of them if the buffer `is_result`. `call` says in words what all ranks must have in common. The first step only
    prepares the next.
    """

    call: str
    call_hash: bytes
    ends: list[int]
    offset: int | None
    wanted: list[slice]
    is_result: bool
    scratch_size: int
    steps: list[RankStep]


def _part(schedule: Schedule, rank: int, num_ranks: int, num_elements: int, dtype: Any, op: str, ahead: bool) -> Part:
    """Check a call, and return a rank's part of it, with receives posted one step ahead or not."""
    import torch

    from .local import OPS, check_counts, check_op

    one_of("op", op, tuple(OPS))
    if schedule.num_ranks != num_ranks:
        raise ValueError(f"group must have the schedule's {schedule.num_ranks} ranks, got {num_ranks}")
    if schedule.collective in SUMS:
        one = torch.ones(1, dtype=dtype)
        check_op(op, one)
        OPS[op](one, one)  # raises an error if torch does not compute it
    check_counts(schedule, rank, num_elements)
    ends = schedule.chunk_ends(num_elements)
    verify(schedule)
    transfers: Transfers = []
    for src, dst, chunk, num_chunks, reduce in schedule.steps():
        start, stop = np.array(ends)[[chunk, chunk + num_chunks]]
        is_own = ((src == rank) | (dst == rank)) & (start < stop)
        columns = [column[is_own].tolist() for column in (src, dst, start, stop, reduce)]
        transfers.append(list(zip(*columns, strict=True)))
    transfers.append([])
    num_common = num_elements if schedule.weights is None else ends[-1]
    steps = _rank_steps(transfers, rank, ahead)
    initial = np.flatnonzero(schedule.initial_chunks()[rank])
    wanted = np.flatnonzero(schedule.wanted()[rank])
    call = f"{schedule!r}, {num_common} elements of {dtype}, op {op!r}"
    return Part(
        call=call,
        call_hash=hashlib.sha256(f"{call} {schedule.to_text()}".encode()).digest(),
        ends=ends,
        offset=ends[initial[0]] if initial.size else None,
        is_result=wanted.size == schedule.num_chunks,
        wanted=[slice(ends[chunk], ends[chunk + 1]) for chunk in wanted],
        scratch_size=max((post.place.stop for step in steps for post in step.posts if post.place.memory), default=0),
        steps=steps,
    )


def _rank_steps(transfers: Transfers, rank: int, ahead: bool) -> list[RankStep]:
    """Return a rank's steps after one that only prepares the next; there are no transfers after the last step."""
    halves = []
    for step in range(len(transfers)):
        halves.append((_one_way(transfers, step, rank, True), _one_way(transfers, step, rank, False)))
    (_, gathers), (receives, _) = halves[0]
    steps = [RankStep(receives if ahead else [], [], gathers)]
    for ((sends, _), (receives, writes)), ((_, gathers), (next_receives, _)) in pairwise(halves):
        # Receives first, because the sender's permission to send would wait behind a long message to the same rank.
        posts = [*(next_receives if ahead else receives), *sends]
        # It waits for its sends, too, before it writes where they may still be reading.
        steps.append(RankStep(posts, [*receives, *sends], [*writes, *gathers]))
    return steps


def _one_way(transfers: Transfers, step: int, rank: int, sends: bool) -> tuple[list[Message], Writes]:
    """Return the messages that a rank sends in a step, or receives, and the writes between its buffer and its scratch.

    A message of one transfer needs no scratch if it is sent, or if it replaces elements with which nothing else
    happens while it is under way: in this step, or in the one before, in which the receive is posted.
    """
    under_way = [*chain(*transfers[max(0, step - 1) : step + 1])]
    of_peer = defaultdict(list)
    for turn, (src, dst, start, stop, reduce) in enumerate(transfers[step]):
        if (src == rank) == sends:
            num_uses = sum(start < other[3] and other[2] < stop for other in under_way)
            of_peer[dst if sends else src].append((turn, start, stop, reduce, sends or (num_uses == 1 and not reduce)))
    messages = []
    writes = []
    end = 0  # of what is used of the scratch
    for peer, parts in of_peer.items():
        _, start, stop, _, is_safe = parts[0]
        place = Place(0, start, stop)
        if len(parts) > 1 or not is_safe:
            place = Place(3 if sends else 1 + step % 2, end, end)
            for turn, start, stop, reduce, _ in parts:
                run = Place(0, start, stop)
                copy = Place(place.memory, end, end + stop - start)
                writes.append((turn, copy, run, False) if sends else (turn, run, copy, reduce))
                end = copy.stop
            place = place._replace(stop=end)
        messages.append(Message(place, sends, peer, step))
    return messages, sorted(writes)


# ---- what ranks agree on


def _agreed_part(schedule: Schedule, tensor: Tensor, group: Any, op: str) -> tuple[Part, list[Tensor]]:
    """Check a call, and return this rank's part of it, and a buffer and scratch for it.

    The first call of its kind is compared with those of all ranks. Raises ValueError for a wrong call, and on all ranks
    if their calls differ; RuntimeError if a rank does not come.
    """
    import torch

    if not tensor.is_contiguous():
        raise ValueError(f"tensor must be contiguous, got strides {tensor.stride()} of shape {tuple(tensor.shape)}")
    if tensor.is_conj() or tensor.is_neg():  # a backend would send the elements as they are stored
        raise ValueError("tensor must be stored as it is, got a lazy conjugate or negative: call resolve_conj or clone")
    backend = backend_of(group, tensor)
    ahead = not takes_batches(backend)
    key = (group.rank(), group.size(), tensor.numel(), tensor.dtype, op, ahead)
    parts = vars(schedule).setdefault("parts", {})  # which stay for as long as the schedule
    if key not in parts:
        parts[key] = _part(schedule, *key)
    part: Part = parts[key]
    agreed = _agreed_calls.setdefault(group, {})
    agreed_call = (part.call_hash, tensor.device)
    if agreed_call in agreed:
        return part, agreed[agreed_call]
    # This also is the collective of all ranks that NCCL needs before the first message.
    own = torch.tensor(list(part.call_hash), device="cpu" if ahead else tensor.device)
    calls = [torch.zeros_like(own) for _ in range(group.size())]
    try:
        backend.allgather([calls], [own]).wait()
    except RuntimeError as error:
        raise RuntimeError(f"not all ranks began this collective: {error}") from error
    others = [rank for rank, call in enumerate(calls) if not torch.equal(call, own)]
    if others:
        raise ValueError(
            f"ranks must agree on schedule, elements, dtype and op: ranks {others} do not have {part.call}"
        )
    sizes = (0 if part.is_result else part.ends[-1], *[part.scratch_size] * 3)
    agreed[agreed_call] = [tensor.new_empty(size, device=own.device) for size in sizes]
    return part, agreed[agreed_call]
