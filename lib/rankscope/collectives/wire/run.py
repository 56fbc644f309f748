"""`execute`: any schedule over torch.distributed, point to point: each rank carries out its own part.

Gloo on CPU tensors, MPI where torch has it, NCCL on CUDA tensors. What a backend cannot send from a GPU goes through
the host.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...common.checks import of_type, one_of
from ...timeline import Recorder
from ..local import OPS, check_counts, check_op, shape_of
from ..schedule import SUMS, Schedule
from ..verify import verify
from .group import (
    DTYPES,
    OP_NAMES,
    TAGS,
    CommonTerms,
    Posted,
    Starter,
    agree,
    backend_of,
    check_device,
    fingerprint,
    group_of,
    starter,
    takes_batches,
)
from .plan import LANE, Elements, Post, Run, Transfer, Wait, Write, plans

# What an operation of the loop does.
POST = 0
WAIT = 1
ADD = 2
COPY = 3
NAMES = {POST: "post", ADD: "reduce", COPY: "copy"}  # of spans; those of WAIT are called "send" or "receive"

_verified: set[int] = set()  # fingerprints of schedules that passed `verify`


def execute(
    schedule: Schedule, tensor: Tensor, group: Any = None, op: str = "sum", recorder: Recorder | None = None
) -> Tensor | None:
    """Execute this rank's part of a collective and return its result, or None if the rank has none.

    Every rank of `group` must call this with the same schedule, op, dtype and, unless the schedule has weights, number
    of elements. Inputs and outputs are those of `run_local`, and so are the results, bit for bit: scatter and
    reduce_scatter take whole buffers and return the rank's own run; gather and allgather take own runs and return whole
    buffers; all_to_all takes and returns one run per rank; broadcast and scatter read only the root's tensor. allreduce
    works in place and returns the tensor itself; all others return a new tensor and leave the input unchanged.

    If a `recorder` is given, it records this rank's time as spans on the lane "executor", with steps as items: "send"
    and "receive" while the rank waits for such a message, "reduce" and "copy", and "post" for starting messages.

    `group` is a process group made by torch.distributed or `in_threads`, or None for the default group. The first call
    for a schedule and size verifies the schedule and compares it across ranks; later calls start at once.

    Raises ScheduleError if the schedule does not `verify`; ValueError if the tensor or `op` does not match it or the
    ranks disagree; RuntimeError, which names step and peer, if a message fails or does not arrive within the group's
    timeout. After a RuntimeError the group can no longer be used.

    >>> import torch
    >>> from rankscope.ranks import in_threads
    >>> from .. import ALGORITHMS
    >>> ring = ALGORITHMS["allreduce"]["ring"](3)
    >>> in_threads(3, lambda rank, group: execute(ring, torch.arange(4) * 10**rank, group).tolist())
    [[0, 111, 222, 333], [0, 111, 222, 333], [0, 111, 222, 333]]
    """
    of_type("schedule", schedule, Schedule)
    group = group_of(group)
    prepared = _prepared(schedule, tensor, group, op)
    return prepared.run(tensor, starter(group, tensor), recorder)


class _CallsOfGroup(NamedTuple):
    """The kinds of calls on a group.

    `agreed` has what ranks must have in common, so it is the same on all ranks. `plans` are this rank's own. Ranks may
    pass tensors of other shapes, and to a barrier any tensor, so one rank may need a new plan when others do not.
    """

    agreed: set[Any]
    plans: dict[Any, _Prepared]


_calls_by_group: weakref.WeakKeyDictionary[Any, _CallsOfGroup] = weakref.WeakKeyDictionary()


def _prepared(schedule: Schedule, tensor: Tensor, group: Any, op: str) -> _Prepared:
    """Return the plan of an earlier call of the same kind, or a new one.

    All ranks call with the same schedules, and tensors that agree, in the same order. So they agree at the same calls.
    """
    agreed, plans_of_calls = _calls_by_group.setdefault(group, _CallsOfGroup(set(), {}))
    # The tensor and `op` are checked only once a plan is prepared, so here they may be anything, even unhashable.
    kind = None
    if isinstance(tensor, Tensor):
        kind = (tensor.shape, tensor.dtype, tensor.device)
    in_common = _in_common(schedule, tensor, op)
    call = (in_common, kind, str(op))
    prepared = plans_of_calls.get(call)
    if prepared is None:
        prepared = _Prepared(schedule, tensor, group, op, has_agreed=in_common in agreed)
        agreed.add(in_common)
        plans_of_calls[call] = prepared
    return prepared


def _in_common(schedule: Schedule, tensor: Any, op: Any) -> tuple[Any, ...]:
    """Return what `_common_terms` are made from, without a check, and the device's type, which decides the backend."""
    if not isinstance(tensor, Tensor):
        return (fingerprint(schedule),)
    return (fingerprint(schedule), tensor.device.type, *_shared(schedule, tensor, op))


def _shared(schedule: Schedule, tensor: Tensor, op: Any) -> tuple[Any, Any, Any]:
    """Return the dtype, op and number of elements of a call; None for each in which the ranks may differ."""
    if schedule.collective == "barrier":  # which uses neither the tensor nor op
        return None, None, None
    if schedule.weights is not None:  # then the ranks must have the same elements only in all chunks together
        return tensor.dtype, str(op), None
    return tensor.dtype, str(op), tensor.numel()


def executor(schedule: Schedule, tensor: Tensor, group: Any = None, op: str = "sum") -> Callable[..., Tensor | None]:
    """Return `execute` prepared for tensors like this one, as ``run(tensor, recorder=None)``, to call in a loop.

    All ranks call this at the same point. The returned function keeps its scratch, and its group, for as long as it
    lives. Do not call it from two threads at once.
    """
    group = group_of(group)
    return partial(_Prepared(schedule, tensor, group, op).run, start=starter(group, tensor))


class _Operation(NamedTuple):
    """An operation of a plan as `_carry_out` needs it, with numbers of views for runs of elements.

    POST has the transfers to start in `posted`, WAIT the number of its transfer in `target`, ADD and COPY the numbers
    of the views to write into, `target`, and to read from, `source`.
    """

    kind: int
    target: int = 0
    source: int = 0
    posted: tuple[Posted, ...] = ()


class _Prepared:
    """A schedule that was verified, agreed upon, and planned for one rank; it does not hold the group."""

    def __init__(self, schedule: Schedule, tensor: Tensor, group: Any, op: str, *, has_agreed: bool = False) -> None:
        """Prepare a call; `has_agreed` says that the ranks have agreed on its terms before, so that no other waits."""
        try:
            _check_arguments(schedule, tensor, group, op)
            ends = schedule.chunk_ends(tensor.numel())
            _verify_once(schedule)
            terms = _common_terms(schedule, ends, tensor, op)
        except ValueError:
            if not has_agreed:
                agree(group, tensor, None)  # so that the other ranks do not wait for this one
            raise
        if not has_agreed:
            agree(group, tensor, terms)  # raises ValueError unless all ranks have the same
        rank = group.rank()
        self._schedule = schedule
        self._kind = (tensor.shape, tensor.dtype, tensor.device)
        self._add: Callable[..., Tensor] = OPS[op]
        self._divides = op == "avg" and schedule.collective in SUMS
        self._is_barrier = schedule.collective == "barrier"
        self._ends = ends
        sends_batches = takes_batches(backend_of(group, tensor))
        # A receive that is posted ahead would not be in one batch with the sends of its own step.
        (plan,) = plans(schedule, ends, [rank], ahead=not sends_batches)
        self._plan = plan
        self._has_result = bool(schedule.wanted()[rank].any()) and not self._is_barrier
        self._in_place = schedule.collective == "allreduce"  # the caller's tensor becomes the result
        # A barrier does not even read the tensor, which may have any dtype and size: it sends bytes of its own.
        self._only_reads = all(transfer.sends for transfer in plan.transfers) and not self._is_barrier
        self._dtype = torch.uint8 if self._is_barrier else tensor.dtype
        whole_buffer = Run(0, plan.num_elements)
        self._buffer_is_result = self._has_result and plan.wanted == (whole_buffer,)
        # Only NCCL, which sends batches, can send from a GPU.
        self._device = tensor.device if sends_batches else torch.device("cpu")
        view_of: dict[Elements, int] = {}
        self._program = [_with_numbers(operation, plan.transfers, view_of) for operation in plan.program]
        self._spans = list(view_of)  # the elements of each view, in the order of their numbers
        self._scratch: Tensor | None = None  # made by the first run
        self._scratch_views: list[Tensor | None] = []  # a view for each span in the scratch, None for one in the buffer

    def run(self, tensor: Tensor, start: Starter, recorder: Recorder | None = None) -> Tensor | None:
        """Carry out the collective on a tensor of the kind that this was prepared for."""
        _check_tensor(tensor)
        kind = (tensor.shape, tensor.dtype, tensor.device)
        if kind != self._kind:
            raise ValueError(f"tensor must be {_kind_words(self._kind)}, got {_kind_words(kind)}")
        scratch = self._scratch
        if scratch is None:
            scratch = self._new_scratch()
        buffer = self._filled_buffer(tensor.detach().view(-1).to(self._device), scratch)
        views = []
        for span, scratch_view in zip(self._spans, self._scratch_views, strict=True):
            views.append(buffer[span.start : span.stop] if scratch_view is None else scratch_view)
        self._carry_out(views, start, recorder)
        return self._result(tensor, buffer)

    def _filled_buffer(self, flat: Tensor, scratch: Tensor) -> Tensor:
        """Return the plan's buffer with what the rank passes: its own tensor, a part of the scratch, or a new one."""
        if self._uses_tensor:
            return flat
        if self._buffer_is_result:  # the caller keeps it
            buffer = torch.empty(self._plan.num_elements, dtype=self._dtype, device=self._device)
        else:
            buffer = scratch[self._plan.num_scratch :]
        if not self._is_barrier:
            start, stop = self._plan.initial_run
            buffer[start:stop].copy_(flat[: stop - start])  # the whole tensor, or nothing if the rank passes nothing
        return buffer

    @property
    def _uses_tensor(self) -> bool:
        """Whether the rank's tensor is its buffer: it ends there, or nothing is written."""
        return self._in_place or self._only_reads

    def _new_scratch(self) -> Tensor:
        """Make the scratch and its views, and behind it a buffer if neither the rank's tensor nor its result is one."""
        num_elements = self._plan.num_scratch
        if not self._uses_tensor and not self._buffer_is_result:
            num_elements += self._plan.num_elements
        scratch = torch.empty(num_elements, dtype=self._dtype, device=self._device)
        self._scratch_views = [scratch[span.start : span.stop] if span.scratch else None for span in self._spans]
        self._scratch = scratch
        return scratch

    def _carry_out(self, views: list[Tensor], start: Starter, recorder: Recorder | None) -> None:
        """Carry out the program in order. Raises RuntimeError, naming the step and the peer, if a message fails."""
        works: list[Any] = [None] * len(self._plan.transfers)
        add = self._add
        number = 0  # of the transfer that an error is about: the one waited for, or the first of those being started
        record = None
        if recorder is not None:
            record = self._recording(recorder)
        try:
            for kind, target, source, posted in self._program:
                if kind == WAIT:
                    number = target
                    works[number].wait()
                elif kind == POST:
                    number = posted[0].transfer
                    start(posted, views, works)
                elif kind == ADD:
                    add(views[target], views[source], out=views[target])
                else:
                    views[target].copy_(views[source])
                if record is not None:
                    record(kind, self._plan.transfers[number])
        except RuntimeError as error:
            self._scratch = None  # a message may still be written there
            transfer = self._plan.transfers[number]
            verb = "sending to" if transfer.sends else "receiving from"
            raise RuntimeError(f"step {transfer.step}: {verb} rank {transfer.peer} failed: {error}") from error

    def _recording(self, recorder: Recorder) -> Callable[[int, Transfer], None]:
        """Return a function that records an operation as a span from the end of the one before until now.

        Sums, copies and posts are recorded for the step that was received last.
        """
        step = 0  # of the last receive
        began_ns = time.perf_counter_ns()

        def record(kind: int, transfer: Transfer) -> None:
            nonlocal step, began_ns
            now_ns = time.perf_counter_ns()
            if kind != WAIT:
                recorder.add(LANE, NAMES[kind], step, began_ns, now_ns)
            elif transfer.sends:
                recorder.add(LANE, "send", transfer.step, began_ns, now_ns)
            else:
                step = transfer.step
                recorder.add(LANE, "receive", step, began_ns, now_ns)
            began_ns = now_ns

        return record

    def _result(self, tensor: Tensor, buffer: Tensor) -> Tensor | None:
        """Return what `execute` returns, from the buffer after the last operation."""
        if not self._has_result:
            return None
        if self._in_place:
            if self._divides:
                buffer.div_(self._schedule.num_ranks)
            if buffer.device != tensor.device:
                tensor.detach().view(-1).copy_(buffer)
            return tensor
        result = buffer
        if self._only_reads or not self._buffer_is_result:  # the buffer is the caller's tensor, or lies in the scratch
            runs = [buffer[start:stop] for start, stop in self._plan.wanted]
            no_elements = buffer[:0]  # because `cat` needs a tensor even if there are no runs
            result = torch.cat([no_elements, *runs])
        if self._divides:
            result.div_(self._schedule.num_ranks)
        return result.to(tensor.device).reshape(shape_of(self._schedule, tensor, self._ends, result.numel()))


def _with_numbers(
    operation: Post | Wait | Write, transfers: list[Transfer], view_of: dict[Elements, int]
) -> _Operation:
    """Return an operation for the loop; `view_of` numbers the spans, and new ones are added to it."""

    def view(span: Elements) -> int:
        return view_of.setdefault(span, len(view_of))

    if isinstance(operation, Wait):
        return _Operation(WAIT, operation.transfer)
    if isinstance(operation, Write):
        kind = ADD if operation.reduce else COPY
        return _Operation(kind, view(operation.to), view(operation.source))
    posted = []
    for number in operation.transfers:
        transfer = transfers[number]
        tag = TAGS + transfer.step
        posted.append(Posted(number, view(transfer.span), transfer.sends, transfer.peer, tag))
    return _Operation(POST, posted=tuple(posted))


def _check_arguments(schedule: Schedule, tensor: Tensor, group: Any, op: str) -> None:
    """Raise ValueError unless this rank can carry out the schedule on the tensor."""
    _check_tensor(tensor)
    check_device(group, tensor)
    one_of("op", op, OP_NAMES)
    if schedule.num_ranks != group.size():
        raise ValueError(f"group must have the schedule's {schedule.num_ranks} ranks, got {group.size()}")
    if schedule.collective in SUMS:
        check_op(op, tensor)
        _check_arithmetic(op, tensor)
    check_counts(schedule, group.rank(), tensor.numel())


def _verify_once(schedule: Schedule) -> None:
    """Raise ScheduleError for a wrong schedule; one that was right before is not verified again."""
    number = fingerprint(schedule)
    if number not in _verified:
        verify(schedule)
        _verified.add(number)


def _common_terms(schedule: Schedule, ends: list[int], tensor: Tensor, op: str) -> CommonTerms:
    """Return what all ranks must have in common."""
    number = fingerprint(schedule)
    dtype, shared_op, num_elements = _shared(schedule, tensor, op)
    if dtype is None:
        return CommonTerms(number, num_elements=0, dtype=0, op=0)
    if num_elements is None:
        num_elements = ends[-1]
    return CommonTerms(number, num_elements, DTYPES.index(dtype), OP_NAMES.index(shared_op))


def _kind_words(kind: tuple[torch.Size, torch.dtype, torch.device]) -> str:
    shape, dtype, device = kind
    return f"{tuple(shape)} of {dtype} on {device}"


def _check_arithmetic(op: str, tensor: Tensor) -> None:
    """Raise ValueError if torch does not compute an op in the tensor's dtype."""
    zero = torch.zeros(1, dtype=tensor.dtype, device=tensor.device)
    try:
        OPS[op](zero, zero)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"op {op!r} needs a dtype that torch computes with, got {tensor.dtype}") from error


def _check_tensor(tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise ValueError(f"tensor must be a torch tensor, got {tensor!r}")
    if not tensor.is_contiguous():
        raise ValueError(f"tensor must be contiguous, got strides {tensor.stride()} of shape {tuple(tensor.shape)}")
