"""`execute`: any schedule over torch.distributed, point to point: each rank carries out its own part.

Gloo on CPU tensors, MPI where torch has it, NCCL on CUDA tensors. What a backend cannot send from a GPU goes through
the host.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import Any

from torch import Tensor

from ..timeline import Recorder
from ..values.checks import of_type
from .schedule import Schedule
from .wire_group import fingerprint, group_of, starter
from .wire_run import Prepared

MOST_READY = 64  # plans that are kept for each group
LARGE_BYTES = 1 << 22  # of these plans only the last used keeps a larger scratch


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
    >>> from ..ranks import in_threads
    >>> from . import ALGORITHMS
    >>> ring = ALGORITHMS["allreduce"]["ring"](3)
    >>> in_threads(3, lambda rank, group: execute(ring, torch.arange(4) * 10**rank, group).tolist())
    [[0, 111, 222, 333], [0, 111, 222, 333], [0, 111, 222, 333]]
    """
    of_type("schedule", schedule, Schedule)
    group = group_of(group)
    ready = _READY.get(group)
    if ready is None:
        ready = _READY[group] = _Ready()
    return ready.prepared(schedule, tensor, group, op).run(tensor, starter(group, tensor), recorder)


class Executor:
    """`execute` made ready once for tensors like the one given, for a loop. All ranks make theirs at the same point.

    Keeps its scratch, and its group, for as long as it lives. Not for two threads at once.
    """

    def __init__(self, schedule: Schedule, tensor: Tensor, group: Any = None, op: str = "sum") -> None:
        of_type("schedule", schedule, Schedule)
        self._group = group_of(group)
        self._prepared = Prepared(schedule, tensor, self._group, op)
        self._start = starter(self._group, tensor)

    def run(self, tensor: Tensor, recorder: Recorder | None = None) -> Tensor | None:
        """Return what `execute` does, for a tensor of the same shape, dtype and device."""
        return self._prepared.run(tensor, self._start, recorder)


class _Ready:
    """The plans that one group has used last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Any, Prepared] = OrderedDict()
        self._last: Prepared | None = None

    def prepared(self, schedule: Schedule, tensor: Tensor, group: Any, op: str) -> Prepared:
        kind = (getattr(tensor, "shape", None), getattr(tensor, "dtype", None), getattr(tensor, "device", None))
        key = (fingerprint(schedule), kind, str(op))
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = Prepared(schedule, tensor, group, op)
            if len(self._kept) > MOST_READY:  # the oldest goes, on every rank the same one
                self._kept.popitem(last=False)
        if self._last is not None and self._last is not found:
            self._last.release(LARGE_BYTES)
        self._last = found
        return found


_READY: weakref.WeakKeyDictionary[Any, _Ready] = weakref.WeakKeyDictionary()
