"""`run_local`: any schedule executed in one process, on real tensors of any torch device and dtype."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from ..common.checks import of_type, one_of, several
from .schedule import RUNS_IN, RUNS_OUT, SUMS, Schedule
from .verify import verify

OPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,  # divided by the number of ranks in the end
    "min": torch.minimum,
    "max": torch.maximum,
    "prod": torch.mul,
}


def run_local(schedule: Schedule, tensors: Sequence[Tensor], op: str = "sum") -> list[Tensor | None]:
    """Return what each rank has after the collective: a new tensor, or None where it gets nothing.

    `tensors` holds what each rank passes, one shape, dtype and device for all. As in MPI, scatter and reduce_scatter
    take whole buffers and return each rank its own run; gather and allgather take own runs and return whole buffers;
    all_to_all takes and returns one run for each rank; broadcast and scatter read the root's tensor only. Runs of whole
    rows keep the other dimensions, and are flat elsewhere. `op` is sum, avg, min, max or prod, in the dtype given.

    The flattened elements are cut into chunks as evenly as can be, or by the schedule's weights, which then count them.

    Raises ScheduleError for a schedule that does not `verify`, and ValueError for tensors and an op that do not fit it.

    >>> from . import ALGORITHMS
    >>> ring = ALGORITHMS["allreduce"]["ring"](2)
    >>> run_local(ring, [torch.tensor([1, 2, 3]), torch.tensor([10, 20, 30])])
    [tensor([11, 22, 33]), tensor([11, 22, 33])]
    >>> scatter = ALGORITHMS["scatter"]["flat"](2, root=1)
    >>> run_local(scatter, [torch.zeros(4), torch.arange(4.0)])
    [tensor([0., 1.]), tensor([2., 3.])]
    """
    of_type("schedule", schedule, Schedule)
    one_of("op", op, tuple(OPS))
    tensors = _alike(schedule, tensors)
    if schedule.collective in SUMS:
        check_op(op, tensors[0])
    for rank, tensor in enumerate(tensors):
        check_counts(schedule, rank, tensor.numel())
    ends = schedule.chunk_ends(tensors[0].numel())
    verify(schedule)
    if schedule.collective == "barrier":
        return [None] * schedule.num_ranks
    held: list[dict[int, Tensor]] = []  # for each rank the chunks that it has
    for tensor, chunks in zip(tensors, schedule.given(), strict=True):
        run, flat = np.flatnonzero(chunks).tolist(), tensor.detach().reshape(-1)
        start = ends[run[0]] if run else 0
        held.append({chunk: flat[ends[chunk] - start : ends[chunk + 1] - start] for chunk in run})
    for step in schedule.steps():
        rows = list(zip(*(column.tolist() for column in step.by_chunk()), strict=True))
        sent = [held[src][chunk] for src, _, chunk, _, _ in rows]  # all is read before anything is written
        for (_, dst, chunk, _, reduce), new in zip(rows, sent, strict=True):
            held[dst][chunk] = OPS[op](held[dst][chunk], new) if reduce else new
    results: list[Tensor | None] = []
    for chunks, own in zip(schedule.wanted(), held, strict=True):
        whole = torch.cat([own[chunk] for chunk in np.flatnonzero(chunks).tolist()]) if chunks.any() else None
        if whole is not None and op == "avg" and schedule.collective in SUMS:
            whole = whole / schedule.num_ranks
        results.append(whole if whole is None else whole.reshape(shape_of(schedule, tensors[0], ends, whole.numel())))
    return results


def check_counts(schedule: Schedule, rank: int, num_elements: int) -> None:
    """Raise ValueError where the schedule has weights, and a rank passes another number of elements than they say."""
    if schedule.weights is None:
        return
    chunks = schedule.given()[rank]
    count = int(np.array(schedule.weights)[chunks].sum())
    if chunks.any() and num_elements != count:
        raise ValueError(f"rank {rank} must pass the {count} elements that the counts add up to, got {num_elements}")


def _alike(schedule: Schedule, given: Iterable[Tensor]) -> list[Tensor]:
    """The tensors, if they are one per rank and of one kind."""
    tensors = several("tensors", given, "one per rank")
    if len(tensors) != schedule.num_ranks:
        raise ValueError(f"tensors must be {schedule.num_ranks}, one per rank, got {len(tensors)}")
    unlike = schedule.weights is not None and schedule.collective in (*RUNS_IN, "all_to_all")
    skip = 1 if unlike else 0  # runs may differ in length
    names = ("shape except in the first dimension" if skip else "shape", "dtype", "device")
    for rank, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor):
            raise ValueError(f"tensors must be torch tensors, got {tensor!r} for rank {rank}")
        pairs = ((tuple(t.shape)[skip:], t.dtype, t.device) for t in (tensors[0], tensor))
        for name, first, mine in zip(names, *pairs, strict=True):
            if first != mine:
                raise ValueError(f"tensors must be of one {name}, got {first} for rank 0 and {mine} for rank {rank}")
    return tensors


def check_op(op: str, tensor: Tensor) -> None:
    """Raise ValueError for an op that the tensor's dtype does not have."""
    if op == "avg" and not (tensor.is_floating_point() or tensor.is_complex()):
        raise ValueError(f"op 'avg' needs a floating or complex dtype, got {tensor.dtype}")
    if op in ("min", "max") and tensor.is_complex():
        raise ValueError(f"op {op!r} needs a dtype that has an order, got {tensor.dtype}")


def shape_of(schedule: Schedule, tensor: Tensor, ends: list[int], num_elements: int) -> tuple[int, ...]:
    """Return the shape of a result: as passed, or whole rows of it, or flat where a run's end falls within a row."""
    passed = tuple(tensor.shape)
    if schedule.collective not in (*RUNS_IN, *RUNS_OUT) and num_elements == math.prod(passed):
        return passed
    row = math.prod(passed[1:])
    each = 1 if schedule.collective == "all_to_all" else schedule.num_chunks // schedule.num_ranks
    if not passed or not row or any(end % row for end in ends[::each]):
        return (num_elements,)
    return (num_elements // row, *passed[1:])
