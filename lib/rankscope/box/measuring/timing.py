"""Timing on several ranks: a barrier, each rank's own clock, and the maximum over the ranks, as nccl-tests do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ...collectives.process_group import backend_of, group_of, takes_batches
from .transfers import Gpu


def nothing() -> None:
    """Do nothing."""


def times_in_a_row(num_bytes: int) -> int:
    """Return how often an operation runs between two barriers: small ones more often.

    Ranks leave a barrier some microseconds apart, which counts once.

    >>> times_in_a_row(1024), times_in_a_row(2**18), times_in_a_row(2**24)
    (10, 4, 2)
    """
    return min(10, max(2, 2**20 // num_bytes))


class TimedTask(NamedTuple):
    """What a rank does in each iteration: `before`, and then `run` so many `times` in a row, which is timed."""

    run: Callable[[], object]
    before: Callable[[], object] = nothing
    times: int = 1


class Ranks:
    """A process group whose ranks start together, as seen from this rank. All ranks create it at the same point."""

    def __init__(self, group: Any = None, device: str = "cpu") -> None:
        self.group = group_of(group)
        self.device = torch.device(device)
        self.rank = self.group.rank()
        self.size = self.group.size()
        self._control = self.group  # for barriers, which are tensors on the CPU
        is_nccl = takes_batches(backend_of(self.group, torch.empty(0, device=self.device)))
        if is_nccl:  # it sends tensors on GPUs only
            everyone = [dist.get_global_rank(self.group, rank) for rank in range(self.size)]
            self._control = dist.new_group(everyone, backend="gloo")

    def slowest(self, values: list[float]) -> list[float]:
        """Return the element-wise maximum over all ranks."""
        tensor = torch.tensor(values, dtype=torch.float64)
        options: Any = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        self._control.allreduce([tensor], options).wait()
        return list(tensor.tolist())

    def seconds(self, task: TimedTask) -> float:
        """Run one iteration, and return this rank's seconds per run."""
        gpu = Gpu()
        is_on_gpu = self.device.type == "cuda"
        task.before()
        if is_on_gpu:
            gpu.synchronize()  # work that the GPU still has would delay the timed run
        self.slowest([0.0])  # a barrier
        if is_on_gpu:
            begin = gpu.mark()
        begin_s = time.perf_counter()
        for _ in range(task.times):
            task.run()
        seconds = time.perf_counter() - begin_s
        if is_on_gpu:  # by its own clock
            end = gpu.mark()
            gpu.synchronize()
            seconds = gpu.seconds(begin, end)
        return seconds / task.times
