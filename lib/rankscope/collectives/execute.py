"""`execute`: a schedule carried out by real ranks, point to point over a process group of torch.distributed.

Each rank carries out its own steps one by one. It posts its receives one step ahead, because Gloo lets a message leave
only once its receiver is ready: otherwise each step would take two latencies. And it writes nothing into elements that
a message may still be reading: an allreduce that did gave wrong sums on slow networks.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ..common.checks import of_type, one_of
from .local import OPS, buffer_of, result_of
from .process_group import Message, backend_of, group_of, naming, starter, takes_batches
from .schedule import Schedule
from .steps import Ints
from .verify import verify

if TYPE_CHECKING:
    from torch import Tensor


def execute(schedule: Schedule, tensor: Tensor, group: Any = None, op: str = "sum") -> Tensor | None:
    """Execute this rank's part of a collective and return its result, or None if the rank has none.

    Every rank of `group` must call this with the same schedule, op, dtype and number of
    elements. Inputs and outputs are those of `run_local`, and so are the results, bit for bit: scatter and
    reduce_scatter take whole buffers and return the rank's own run; gather and allgather take own runs and return whole
    buffers; all_to_all takes and returns one run per rank; broadcast and scatter read only the root's tensor. allreduce
    works in place and returns the tensor itself; all others return a new tensor and leave the input unchanged. Tensors
    must be contiguous. Only NCCL sends from a GPU.

    `group` is a process group made by torch.distributed or `in_threads`, or None for the default group. The first call
    of each kind verifies the schedule and compares the call across ranks; later calls start at once. The memory that
    the largest call needs besides its result is kept as long as the schedule and the group.

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

    of_type("schedule", schedule, Schedule)
    of_type("tensor", tensor, torch.Tensor)
    group = group_of(group)
    if schedule.collective == "barrier":  # it does not even read the tensor, but sends bytes of its own
        tensor = torch.zeros(schedule.num_chunks, dtype=torch.uint8, device=tensor.device)
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():  # elements are sent as they are stored
        raise ValueError(
            "tensor must be contiguous, and no lazy conjugate or negative: call contiguous or resolve_conj"
        )
    plans = vars(schedule).setdefault("plans", WeakKeyDictionary()).setdefault(group, {})
    key = (tensor.numel(), tensor.dtype, tensor.device, op)
    if key not in plans:
        plans[key] = _agreed_plan(schedule, tensor, group, op)
    plan: Plan = plans[key]
    passed = tensor.detach()
    kept = None
    if not plan.returns_buffer:
        kept = _kept(plans, "buffer", plan.ends[-1], tensor)
    is_in_place = schedule.collective == "allreduce"
    buffer = passed.view(-1) if is_in_place else buffer_of(schedule, group.rank(), passed, plan.ends, kept)
    scratch = [_kept(plans, steps, plan.scratch_size, tensor) for steps in ("even", "odd")]
    _carry_out(plan, [buffer, *scratch], starter(group, tensor), getattr(torch, OPS[op]))
    if schedule.collective == "barrier":
        return None
    return tensor if is_in_place else result_of(schedule, group.rank(), passed, buffer, plan.ends)


def _kept(plans: dict[Any, Any], use: str, size: int, tensor: Tensor) -> Tensor:
    """Return memory that all calls of a schedule on a group share: new memory of many megabytes takes long."""
    key = (use, tensor.dtype, tensor.device)
    if key not in plans or len(plans[key]) < size:
        plans[key] = tensor.new_empty(size)
    memory: Tensor = plans[key]
    return memory[:size]


def _carry_out(plan: Plan, memories: list[Tensor], start: Callable[..., None], combine: Callable[..., Tensor]) -> None:
    """Carry out a rank's steps in its memories."""
    posts = [step.receives for step in plan.steps]
    if plan.is_ahead:
        posts = [*posts[1:], []]

    @cache
    def view(place: Place) -> Tensor:
        return memories[place.memory][place.start : place.stop]

    works: dict[Message, Any] = {}  # kept until the end: to free one earlier would wait for Gloo's own thread
    for step, receives in zip(plan.steps, posts, strict=True):
        start([*receives, *step.sends], view, works)
        for message in [*step.receives, *step.sends]:
            with naming(message):
                works[message].wait()
        for target, source, is_added in step.writes:
            if is_added:
                combine(view(target), view(source), out=view(target))
            else:
                view(target).copy_(view(source))


# ---- what a rank does


class Place(NamedTuple):
    """Elements of a rank's memory: of the whole buffer, or of scratch for receives in even and odd steps."""

    memory: int  # 0 to 2, in this order
    start: int
    stop: int


class RankStep(NamedTuple):
    """What a rank does in a step: it receives, sends, and writes what it cannot receive straight into its place."""

    receives: list[Message]
    sends: list[Message]
    writes: list[tuple[Place, Place, bool]]  # target, source, and whether it is added


class Plan(NamedTuple):
    """A rank's part of a collective, in a buffer of all chunks and in two pieces of scratch, each of `scratch_size`.

    `ends` are as from `Schedule.chunk_ends`. If `is_ahead`, receives are posted one step ahead; that is what the first
    step, which is empty, is for.
    """

    ends: list[int]
    steps: list[RankStep]
    scratch_size: int  # in elements
    returns_buffer: bool  # as the result
    is_ahead: bool


def _agreed_plan(schedule: Schedule, tensor: Tensor, group: Any, op: str) -> Plan:
    """Check a call, compare it with those of all ranks, and return this rank's part of it.

    Raises ValueError for a wrong call, and on all ranks if their calls differ; RuntimeError if a rank does not come.
    """
    import torch

    if schedule.num_ranks != group.size():
        raise ValueError(f"group must have the schedule's {schedule.num_ranks} ranks, got {group.size()}")
    one_of("op", op, tuple(OPS))
    ends = schedule.chunk_ends(tensor.numel())
    verify(schedule)
    backend = backend_of(group, tensor)
    if tensor.device.type != "cpu" and not takes_batches(backend):  # it would read a GPU's addresses as its own
        raise ValueError(f"tensor must be on the CPU, from which {backend.name()} sends, got {tensor.device}")
    call = f"{schedule!r}, {tensor.numel()} elements of {tensor.dtype}, op {op!r}"
    # This also is the collective of all ranks that NCCL needs before the first message.
    own = torch.tensor([zlib.crc32(f"{call} {schedule.to_text()}".encode())], device=tensor.device)
    calls = [torch.zeros_like(own) for _ in range(group.size())]
    try:
        backend.allgather([calls], [own]).wait()
    except RuntimeError as error:
        raise RuntimeError(f"not all ranks began this collective: {error}") from error
    others = [rank for rank, call_of_rank in enumerate(calls) if not torch.equal(call_of_rank, own)]
    if others:
        raise ValueError(f"ranks must agree on schedule, elements, dtype and op: ranks {others} do not have {call}")

    steps = _rank_steps(schedule, group.rank(), np.array(ends))
    most = max((source.stop for step in steps for _, source, _ in step.writes), default=0)
    return Plan(ends, steps, most, bool(schedule.wanted()[group.rank()].all()), not takes_batches(backend))


def _rank_steps(schedule: Schedule, rank: int, ends: Ints) -> list[RankStep]:
    """Return a rank's steps, after an empty one.

    A message needs no scratch if it is sent, or if it replaces elements with which nothing else happens while it is
    under way: in this step, or in the one before, in which the receive is posted. Receives are posted before sends,
    because the sender's permission to send would wait behind a long message to the same rank. A rank waits for its
    sends, too, before it writes where they may still be reading.
    """
    steps = [RankStep([], [], [])]
    before: list[Any] = []
    for number, step in enumerate(schedule.steps()):
        current = RankStep([], [], [])
        start, stop = ends[step.chunk], ends[step.chunk + step.num_chunks]
        is_own = ((step.src == rank) | (step.dst == rank)) & (start < stop)
        rows = np.stack([step.src, step.dst, start, stop, step.reduce], axis=1)[is_own].tolist()
        end = 0  # of what is used of the scratch
        for src, dst, start, stop, reduce in rows:
            place = Place(0, start, stop)
            if src == rank:
                current.sends.append(Message(place, True, dst, number))
                continue
            num_uses = sum(start < other[3] and other[2] < stop for other in [*before, *rows])
            if reduce or num_uses > 1:
                place = Place(1 + number % 2, end, end + stop - start)
                current.writes.append((Place(0, start, stop), place, bool(reduce)))
                end = place.stop
            current.receives.append(Message(place, False, src, number))
        steps.append(current)
        before = rows
    return steps
