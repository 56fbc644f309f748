"""`execute`: any schedule over torch.distributed, point to point: each rank carries out its own part.

Gloo on CPU tensors, MPI where torch has it, NCCL on CUDA tensors. What a backend cannot send from a GPU goes through
the host.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

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
    Posted,
    Starter,
    agree,
    backend_of,
    fingerprint,
    group_of,
    starter,
    takes_batches,
)
from .plan import LANE, Elements, Post, Transfer, Wait, Write, plans

MOST_KEPT = 64  # plans for each group
LARGE_BYTES = 1 << 22  # of these plans only the last used keeps a larger scratch
POST, WAIT, ADD, COPY = range(4)
NAMES = {POST: "post", ADD: "reduce", COPY: "copy"}  # of spans; those of WAIT say what for

_verified: set[int] = set()  # fingerprints


def execute(
    schedule: Schedule, tensor: Tensor, group: Any = None, op: str = "sum", recorder: Recorder | None = None
) -> Tensor | None:
    """Carry out this rank's part of a collective, and return what it has in the end, or None where it gets nothing.

    Every rank of `group` calls this with the same schedule, op, dtype and number of elements. As in `run_local`, whose
    results these are bit for bit: scatter and reduce_scatter take whole buffers and return the rank's own run; gather
    and allgather take own runs and return whole buffers; all_to_all takes and returns one run for each rank; broadcast
    and scatter read the root's tensor only. allreduce works in place and returns the tensor itself; all others return a
    new one and leave what was passed.

    With a `recorder`, for this rank, its time goes into spans on the lane "executor", with steps as items: "send" and
    "receive" while it waits for such a message, "reduce" and "copy", and "post" for starting messages.

    `group` is None for the default group, or a process group as torch.distributed or `in_threads` makes it. The first
    call for a schedule and size verifies it, and asks all ranks whether they agree; later ones start at once. Raises
    ScheduleError and ValueError as `run_local` does, and for ranks that do not agree; RuntimeError, with step and peer,
    for a message that fails or is not there within the group's timeout, after which the group is of no more use.

    >>> import torch
    >>> from rankscope.ranks import in_threads
    >>> from .. import ALGORITHMS
    >>> ring = ALGORITHMS["allreduce"]["ring"](3)
    >>> in_threads(3, lambda rank, group: execute(ring, torch.arange(4) * 10**rank, group).tolist())
    [[0, 111, 222, 333], [0, 111, 222, 333], [0, 111, 222, 333]]
    """
    of_type("schedule", schedule, Schedule)
    group = group_of(group)
    kept = _KEPT.setdefault(group, {})
    last = next(reversed(kept.values()), None)
    kind = (getattr(tensor, "shape", None), getattr(tensor, "dtype", None), getattr(tensor, "device", None))
    key = (fingerprint(schedule), kind, str(op))
    prepared = kept.pop(key, None) or _Prepared(schedule, tensor, group, op)
    kept[key] = prepared
    if len(kept) > MOST_KEPT:  # the one that was used longest ago goes, on every rank the same one
        del kept[next(iter(kept))]
    if last is not None and last is not prepared:
        last.release()
    return prepared.run(tensor, starter(group, tensor), recorder)


_KEPT: weakref.WeakKeyDictionary[Any, dict[Any, _Prepared]] = weakref.WeakKeyDictionary()  # by group, last used last


def executor(schedule: Schedule, tensor: Tensor, group: Any = None, op: str = "sum") -> Callable[..., Tensor | None]:
    """Return `execute` made ready for tensors like the one given: ``run(tensor, recorder=None)``, for a loop.

    All ranks call this at the same point. What it returns keeps its scratch, and its group, for as long as it lives; it
    is not for two threads at once.
    """
    of_type("schedule", schedule, Schedule)
    group = group_of(group)
    return partial(_Prepared(schedule, tensor, group, op).run, start=starter(group, tensor))


class _Prepared:
    """A schedule that was verified, agreed upon, and planned for one rank; it does not hold the group."""

    def __init__(self, schedule: Schedule, tensor: Tensor, group: Any, op: str) -> None:
        try:
            words = self._checked(schedule, tensor, group, op)
        except ValueError:
            agree(group, tensor, None)
            raise
        agree(group, tensor, words)
        (made,) = plans(schedule, self._ends, [group.rank()], ahead=not self._batched)
        self._plan = made
        self._gets = bool(schedule.wanted()[group.rank()].any()) and not self._is_barrier
        self._in_place = schedule.collective == "allreduce"
        self._only_reads = all(one.sends for one in made.transfers) and not self._is_barrier
        self._is_result = self._gets and made.wanted == ((0, made.num_elements),)
        self._dtype = torch.uint8 if self._is_barrier else tensor.dtype
        self._device = tensor.device if self._batched else torch.device("cpu")
        place: dict[Elements, int] = {}
        self._program = [_with_numbers(op, made.transfers, place) for op in made.program]
        self._spans = list(place)
        self._scratch: Tensor | None = None
        self._in_scratch: list[Tensor | None] = []  # the views of it, by span

    def _checked(self, schedule: Schedule, tensor: Tensor, group: Any, op: str) -> tuple[int, ...]:
        """Check what the rank was given, and return what all ranks must have in common."""
        _check_tensor(tensor)
        one_of("op", op, OP_NAMES)
        if schedule.num_ranks != group.size():
            raise ValueError(f"group must have the schedule's {schedule.num_ranks} ranks, got {group.size()}")
        if schedule.collective in SUMS:
            check_op(op, tensor)
            one = torch.zeros(1, dtype=tensor.dtype, device=tensor.device)
            try:
                OPS[op](one, one)
            except (RuntimeError, TypeError) as error:
                raise ValueError(f"op {op!r} needs a dtype that torch computes with, got {tensor.dtype}") from error
        check_counts(schedule, group.rank(), tensor.numel())
        self._is_barrier = schedule.collective == "barrier"
        self._ends = schedule.chunk_ends(tensor.numel())
        number = fingerprint(schedule)
        if number not in _verified:
            verify(schedule)
            _verified.add(number)
        self._schedule, self._kind = schedule, (tensor.shape, tensor.dtype, tensor.device)
        self._add: Callable[..., Tensor] = OPS[op]
        self._divides = op == "avg" and schedule.collective in SUMS
        self._batched = takes_batches(backend_of(group, tensor))
        if self._is_barrier:
            return number, 0, 0, 0
        size = tensor.numel() if schedule.weights is None else self._ends[-1]  # ranks may differ in their elements
        return number, size, DTYPES.index(tensor.dtype), OP_NAMES.index(op)

    def release(self) -> None:
        """Free the scratch if it is large; the next run takes a new one."""
        if self._scratch is not None and self._scratch.nbytes > LARGE_BYTES:
            self._scratch, self._in_scratch = None, []

    def run(self, tensor: Tensor, start: Starter, recorder: Recorder | None = None) -> Tensor | None:
        """Carry out the collective on a tensor of the kind that this was prepared for."""
        _check_tensor(tensor)
        kind = tensor.shape, tensor.dtype, tensor.device
        if kind != self._kind:
            wanted, got = (f"{tuple(shape)} of {dtype} on {device}" for shape, dtype, device in (self._kind, kind))
            raise ValueError(f"tensor must be {wanted}, got {got}")
        in_place, made = self._in_place or self._only_reads, self._plan
        if self._scratch is None:  # and after it a buffer for the rank where neither its tensor nor its result is one
            size = made.num_scratch + (0 if in_place or self._is_result else made.num_elements)
            self._scratch = torch.empty(size, dtype=self._dtype, device=self._device)
            self._in_scratch = [self._scratch[a:b] if scratch else None for scratch, a, b in self._spans]
        flat = tensor.detach().view(-1).to(self._device)
        buffer = flat
        if not in_place:
            buffer = self._scratch[made.num_scratch :]
            if self._is_result:
                buffer = torch.empty(made.num_elements, dtype=self._dtype, device=self._device)
            if not self._is_barrier:
                first, last = made.given
                buffer[first:last].copy_(flat[: last - first])
        places = zip(self._spans, self._in_scratch, strict=True)
        views = [buffer[a:b] if found is None else found for (_, a, b), found in places]
        self._carry_out(views, start, recorder)
        return self._result(tensor, buffer)

    def _carry_out(self, views: list[Tensor], start: Starter, recorder: Recorder | None) -> None:
        works: list[Any] = [None] * len(self._plan.transfers)
        add, transfer, step = self._add, 0, 0
        began_ns = time.perf_counter_ns()
        try:
            for kind, what, source in self._program:
                if kind == WAIT:
                    transfer = what
                    works[transfer].wait()
                elif kind == POST:
                    transfer = what[0].transfer
                    start(what, views, works)
                elif kind == ADD:
                    add(views[what], views[source], out=views[what])
                else:
                    views[what].copy_(views[source])
                if recorder is not None:
                    one = self._plan.transfers[transfer]
                    step = one.step if kind == WAIT and not one.sends else step
                    name = ("send" if one.sends else "receive") if kind == WAIT else NAMES[kind]
                    now_ns = time.perf_counter_ns()
                    recorder.add(LANE, name, one.step if kind == WAIT else step, began_ns, now_ns)
                    began_ns = now_ns
        except RuntimeError as error:
            self._scratch = None  # somebody may still write there
            one = self._plan.transfers[transfer]
            verb = "sending to" if one.sends else "receiving from"
            raise RuntimeError(f"step {one.step}: {verb} rank {one.peer} failed: {error}") from error

    def _result(self, tensor: Tensor, buffer: Tensor) -> Tensor | None:
        if not self._gets:
            return None
        if self._in_place:
            if self._divides:
                buffer.div_(self._schedule.num_ranks)
            if buffer.device != tensor.device:
                tensor.detach().view(-1).copy_(buffer)
            return tensor
        whole = buffer
        if self._only_reads or not self._is_result:
            whole = torch.cat([buffer[:0], *(buffer[start:stop] for start, stop in self._plan.wanted)])
        if self._divides:
            whole.div_(self._schedule.num_ranks)
        return whole.to(tensor.device).reshape(shape_of(self._schedule, tensor, self._ends, whole.numel()))


def _with_numbers(
    op: Post | Wait | Write, transfers: list[Transfer], place: dict[Elements, int]
) -> tuple[int, Any, int]:
    """An operation for the loop, its spans by number; `place` learns those that are new."""
    if isinstance(op, Wait):
        return WAIT, op.transfer, 0
    if isinstance(op, Write):
        to, source = (place.setdefault(span, len(place)) for span in (op.to, op.source))
        return ADD if op.reduce else COPY, to, source
    posted = []
    for number in op.transfers:
        one = transfers[number]
        posted.append(Posted(number, place.setdefault(one.span, len(place)), one.sends, one.peer, TAGS + one.step))
    return POST, posted, 0


def _check_tensor(tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise ValueError(f"tensor must be a torch tensor, got {tensor!r}")
    if not tensor.is_contiguous():
        raise ValueError(f"tensor must be contiguous, got strides {tensor.stride()} of shape {tuple(tensor.shape)}")
