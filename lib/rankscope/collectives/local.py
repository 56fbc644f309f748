"""`run_local`: any schedule executed in one process, on real tensors of any torch device and dtype."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

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
    """Execute a collective in this process and return each rank's result: a new tensor, or None if it has none.

    `tensors` contains the input of each rank; all have the same shape, dtype and device, except that with weights, the
    first dimension may differ in gather, allgather and all_to_all. As in MPI, scatter and reduce_scatter take whole
    buffers and return each rank's own run; gather and allgather take own runs and return whole buffers; all_to_all
    takes and returns one run per rank; broadcast and scatter read only the root's tensor. Runs of whole rows keep the
    other dimensions, and other runs are flat. `op` is sum, avg, min, max or prod, in the dtype of the tensors.

    The flattened elements are cut into chunks as evenly as possible, or by the schedule's weights, which are then
    numbers of elements.

    Raises ScheduleError if the schedule does not `verify`; ValueError if the tensors or `op` do not match it.

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
    tensors = _checked_tensors(schedule, tensors)
    if schedule.collective in SUMS:
        check_op(op, tensors[0])
    for rank, tensor in enumerate(tensors):
        check_counts(schedule, rank, tensor.numel())
    ends = schedule.chunk_ends(tensors[0].numel())
    verify(schedule)
    if schedule.collective == "barrier":
        return [None] * schedule.num_ranks
    chunks_of = _chunks_at_the_start(schedule, tensors, ends)
    for step in schedule.steps():
        rows = list(step.by_chunk().rows())
        # All are read before any is written: a step reads the chunks as they were before it.
        sent = [chunks_of[src][chunk] for src, _, chunk, _, _ in rows]
        for (_, dst, chunk, _, reduce), received in zip(rows, sent, strict=True):
            chunks_of[dst][chunk] = OPS[op](chunks_of[dst][chunk], received) if reduce else received
    results: list[Tensor | None] = []
    for tensor, chunks, is_wanted in zip(tensors, chunks_of, schedule.wanted(), strict=True):
        if not is_wanted.any():
            results.append(None)
            continue
        result = torch.cat([chunks[chunk] for chunk in np.flatnonzero(is_wanted).tolist()])
        if op == "avg" and schedule.collective in SUMS:  # other collectives ignore the op
            result = result / schedule.num_ranks
        results.append(result.reshape(shape_of(schedule, tensor, ends, result.numel())))
    return results


def _chunks_at_the_start(schedule: Schedule, tensors: list[Tensor], ends: list[int]) -> list[dict[int, Tensor]]:
    """Return for each rank the chunks that it passes, by number.

    `ends` counts from the start of the whole buffer, and a rank's tensor begins with the first chunk that it passes.
    """
    chunks_of = []
    for tensor, is_initial in zip(tensors, schedule.initial_chunks(), strict=True):
        flat = tensor.detach().reshape(-1)
        numbers = np.flatnonzero(is_initial).tolist()
        chunks = {}
        for chunk in numbers:  # there may be none, as on ranks that receive a broadcast
            start = ends[numbers[0]]
            chunks[chunk] = flat[ends[chunk] - start : ends[chunk + 1] - start]
        chunks_of.append(chunks)
    return chunks_of


def check_counts(schedule: Schedule, rank: int, num_elements: int) -> None:
    """Raise ValueError if the schedule has weights and a rank passes another number of elements than they say."""
    if schedule.weights is None:
        return
    is_initial = schedule.initial_chunks()[rank]
    count = int(np.array(schedule.weights)[is_initial].sum())
    # A rank that passes no chunks may have any tensor: only the root's is read in a scatter.
    if is_initial.any() and num_elements != count:
        raise ValueError(f"rank {rank} must pass the {count} elements that the counts add up to, got {num_elements}")


def _checked_tensors(schedule: Schedule, values: Any) -> list[Tensor]:
    """Return the tensors as a list if they are one per rank, and equal in shape, dtype and device."""
    tensors = [of_type("each of tensors", tensor, Tensor) for tensor in several("tensors", values, "one per rank")]
    if len(tensors) != schedule.num_ranks:
        raise ValueError(f"tensors must be {schedule.num_ranks}, one per rank, got {len(tensors)}")
    # With counts, ranks may pass runs of different lengths.
    runs_may_differ = schedule.weights is not None and schedule.collective in (*RUNS_IN, "all_to_all")
    kinds = [(tensor.dtype, tensor.device, tuple(tensor.shape)[1 if runs_may_differ else 0 :]) for tensor in tensors]
    for rank, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise ValueError(
                f"tensors must be of one dtype, device and shape, got {kinds[0]}, and {kind} for rank {rank}"
            )
    return tensors


def check_op(op: str, tensor: Tensor) -> None:
    """Raise ValueError for an op that the tensor's dtype does not have."""
    if op == "avg" and not (tensor.is_floating_point() or tensor.is_complex()):
        raise ValueError(f"op 'avg' needs a floating or complex dtype, got {tensor.dtype}")
    if op in ("min", "max") and tensor.is_complex():
        raise ValueError(f"op {op!r} needs a dtype that has an order, got {tensor.dtype}")


def shape_of(schedule: Schedule, tensor: Tensor, ends: list[int], num_elements: int) -> tuple[int, ...]:
    """Return the shape of a result: as passed, or whole rows of it, or flat if a run ends within a row."""
    passed = tuple(tensor.shape)
    is_whole = schedule.collective not in (*RUNS_IN, *RUNS_OUT)
    if schedule.collective == "all_to_all" and schedule.weights is not None:
        is_whole = False  # runs have any lengths, so a rank may receive as much as it passed by chance only
    if is_whole and num_elements == math.prod(passed):
        return passed
    row_elements = math.prod(passed[1:])
    if not passed or row_elements == 0:  # it has no rows, or rows without elements
        return (num_elements,)
    chunks_per_run = schedule.num_chunks // schedule.num_ranks
    if schedule.collective == "all_to_all":  # builders make a chunk for each sender and receiver, which is a run
        chunks_per_run = 1
    run_ends = ends[::chunks_per_run]  # in elements; the first is 0
    if any(end % row_elements for end in run_ends):
        return (num_elements,)
    return (num_elements // row_elements, *passed[1:])
