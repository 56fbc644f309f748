"""`run_local`: any schedule executed in one process, on real tensors of any torch device and dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..common.checks import each, of_type, one_of
from .schedule import Schedule
from .verify import verify

if TYPE_CHECKING:
    from torch import Tensor

OPS = {"sum": "add", "min": "minimum", "max": "maximum", "prod": "mul"}  # torch's functions


def run_local(schedule: Schedule, tensors: Sequence[Tensor], op: str = "sum") -> list[Tensor | None]:
    """Execute a collective in this process and return each rank's result: a new tensor, or None if it has none.

    `tensors` contains the input of each rank; all have the same shape, dtype and device. As in MPI, scatter and
    reduce_scatter take whole buffers and return each rank's own run; gather and allgather take own runs and return
    whole buffers; all_to_all takes and returns one run per rank; broadcast and scatter read only the root's tensor.
    Results of whole rows keep the other dimensions, and other results are flat. `op` is sum, min, max or prod, in the
    dtype of the tensors. The flattened elements are cut into chunks as evenly as possible.

    Raises ScheduleError if the schedule does not `verify`; ValueError if the tensors or `op` do not match it;
    RuntimeError by torch for an op that their dtype does not have, such as the minimum of complex numbers.

    >>> import torch
    >>> from . import ALGORITHMS
    >>> ring = ALGORITHMS["allreduce"]["ring"](2)
    >>> run_local(ring, [torch.tensor([1, 2, 3]), torch.tensor([10, 20, 30])])
    [tensor([11, 22, 33]), tensor([11, 22, 33])]
    >>> scatter = ALGORITHMS["scatter"]["flat"](2, root=1)
    >>> run_local(scatter, [torch.zeros(4), torch.arange(4.0)])
    [tensor([0., 1.]), tensor([2., 3.])]
    """
    import torch

    num_ranks = of_type("schedule", schedule, Schedule).num_ranks
    tensors = each("tensors", tensors, of_type, torch.Tensor)
    if len(tensors) != num_ranks:
        raise ValueError(f"tensors must be {num_ranks}, one per rank, got {len(tensors)}")
    kinds = {(tensor.dtype, tensor.device, tensor.shape) for tensor in tensors}
    if len(kinds) > 1:
        raise ValueError(f"tensors must be of one dtype, device and shape, got {kinds}")
    one_of("op", op, tuple(OPS))
    ends = schedule.chunk_ends(tensors[0].numel())
    verify(schedule)
    if schedule.collective == "barrier":
        return [None] * num_ranks
    combine = getattr(torch, OPS[op])
    buffers = [buffer_of(schedule, rank, tensor, ends) for rank, tensor in enumerate(tensors)]
    for step in schedule.steps():
        # All are read before any is written: a step reads the chunks as they were before it.
        moved = []
        for src, dst, chunk, count, adds in step.rows():
            run = slice(ends[chunk], ends[chunk + count])
            moved.append((buffers[dst][run], buffers[src][run].clone(), adds))
        for target, received, adds in moved:
            target.copy_(combine(target, received) if adds else received)
    return [
        result_of(schedule, rank, tensor, buffer, ends)
        for rank, (tensor, buffer) in enumerate(zip(tensors, buffers, strict=True))
    ]


# ---- a rank's buffer, in one process and on real ranks


def buffer_of(schedule: Schedule, rank: int, tensor: Tensor, ends: list[int], kept: Tensor | None = None) -> Tensor:
    """Return a flat buffer of all chunks, a new one or the one that was kept, which has what the rank passes."""
    passed = tensor.detach().reshape(-1)
    buffer = passed.new_empty(ends[-1]) if kept is None else kept
    for first in np.flatnonzero(schedule.initial_chunks()[rank])[:1]:
        buffer[ends[first] : ends[first] + passed.numel()] = passed
    return buffer


def result_of(schedule: Schedule, rank: int, tensor: Tensor, buffer: Tensor, ends: list[int]) -> Tensor | None:
    """Return what a rank wants of its buffer in the end, in the shape of what it has passed if that is possible."""
    import torch

    chunks = np.flatnonzero(schedule.wanted()[rank]).tolist()
    if not chunks:
        return None
    if len(chunks) < schedule.num_chunks:
        buffer = torch.cat([buffer[ends[chunk] : ends[chunk + 1]] for chunk in chunks])
    if buffer.numel() == tensor.numel():
        return buffer.view(tensor.shape)
    row = tensor.shape[1:]
    if math.prod(row) == 0 or buffer.numel() % math.prod(row):  # it ends within a row
        return buffer
    return buffer.view(-1, *row)
