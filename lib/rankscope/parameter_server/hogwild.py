"""Processes that train on the same memory without a lock, and what such memory can lose."""

from __future__ import annotations

import copy
import fcntl
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from ..gradients import Vector, Work
from ..timeline import Recorder, Timeline
from ..values.checks import number, one_of, whole
from ..values.frozen import frozen
from ..workers.crew import memory_folder
from ..workers.launch import launch
from .run import batches_of, check_work
from .sharing import refuse_torchrun

COUNT_HOW = ("free", "in_step", "locked")
MOST_PROCESSES = 64


@frozen(eq=False)
class HogwildRun:
    """The parameters that processes have trained together, flat; spans of kind "step", a rank for each process."""

    num_processes: int
    parameters: Vector
    timeline: Timeline


@frozen(eq=False)
class Counted:
    """What shared counters stood at after each of `num_processes` had added one `num_increments` times."""

    how: str
    num_processes: int
    num_increments: int
    counts: NDArray[np.int64]

    @property
    def lost(self) -> float:
        """The share of increments that are not there."""
        return 1 - float(self.counts.mean()) / (self.num_processes * self.num_increments)


def train_hogwild(
    work: Work,
    num_processes: int = 2,
    *,
    num_batches: int = 20,
    batch_size: int = 32,
    learning_rate: float = 0.1,
    seed: int = 0,
    timeout_s: float = 60.0,
) -> HogwildRun:
    """Train a copy of the module by plain SGD in processes that all have the same parameters in shared memory.

    Process r has batches r, r + P, … of `batches_of`. It takes its gradient by parameters that others change meanwhile,
    and subtracts it in place, without a lock (Niu et al., HOGWILD!, 2011). One process is plain SGD.

    Raises ValueError for bad input, RankError where a process fails or has not ended after `timeout_s`.

    >>> from torch import nn
    >>> work = Work(nn.Linear(1, 1, bias=False), torch.ones(4, 1), torch.zeros(4, 1), nn.functional.mse_loss)
    >>> run = train_hogwild(work, num_batches=8, batch_size=2)
    >>> bool(abs(run.parameters[0]) < abs(work.module.weight.item())), len(run.timeline)
    (True, 8)
    """
    check_work(work)
    num_processes = whole("num_processes", num_processes, 1, MOST_PROCESSES)
    batches = batches_of(len(work.inputs), num_batches, batch_size, seed)
    rate = number("learning_rate", learning_rate, above=0)
    recorder = Recorder()
    refuse_torchrun()
    with memory_folder() as folder:
        args = (work, batches, rate, recorder, folder)
        parameters = launch(_train, num_processes, args, timeout_s=timeout_s)[0]
    spans = recorder.timeline()
    return HogwildRun(num_processes, parameters, spans.shifted(-spans.begin_s))


def count_together(
    how: str = "free",
    num_processes: int = 2,
    num_increments: int = 1000,
    num_counters: int = 1000,
    timeout_s: float = 60.0,
) -> Counted:
    """Let processes add one to all counters of a shared tensor, again and again, and return what they come to.

    "free": ``counters += 1``, which reads, adds and writes; what another has written in between is lost. "in_step": all
    read, then all write, so that of each round one increment is left. "locked": one process at a time.

    Raises ValueError for bad input, RankError where a process fails or has not ended after `timeout_s`.

    >>> count_together("in_step", 3, 4, 1).counts.tolist(), count_together("locked", 3, 4, 1).counts.tolist()
    ([4], [12])
    """
    one_of("how", how, COUNT_HOW)
    num_processes = whole("num_processes", num_processes, 1, MOST_PROCESSES)
    num_increments = whole("num_increments", num_increments, 1, 10_000_000)
    num_counters = whole("num_counters", num_counters, 1, 10_000_000)
    refuse_torchrun()
    with memory_folder() as folder:
        args = (how, num_increments, num_counters, folder)
        counts = launch(_count, num_processes, args, timeout_s=timeout_s)[0]
    return Counted(how, num_processes, num_increments, counts)


def _shared(tensors: Sequence[Tensor], folder: Path) -> list[Tensor]:
    """The tensors of rank 0, in files that all ranks have mapped: what one writes all read."""
    shared = [
        torch.from_file(str(folder / f"tensor-{place}"), True, one.numel(), dtype=one.dtype).view(one.shape)
        for place, one in enumerate(tensors)
    ]
    if dist.get_rank() == 0:
        for own, one in zip(shared, tensors, strict=True):
            own.copy_(one)
    dist.barrier()
    return shared


def _train(work: Work, batches: NDArray[np.int64], learning_rate: float, recorder: Recorder, folder: Path) -> Vector:
    torch.set_num_threads(1)
    rank, num_processes = dist.get_rank(), dist.get_world_size()
    recorder, module = recorder.for_rank(rank), copy.deepcopy(work.module)
    shared = _shared([one.detach() for one in module.parameters()], folder)
    for own, one in zip(module.parameters(), shared, strict=True):
        own.data = one
    for place in range(rank, len(batches), num_processes):
        with recorder.span("work", "step", place):
            chosen = torch.from_numpy(batches[place])
            loss = work.loss_fn(module(work.inputs[chosen]), work.targets[chosen])
            gradients = torch.autograd.grad(loss, list(module.parameters()))
            for one, gradient in zip(shared, gradients, strict=True):
                one.sub_(gradient, alpha=learning_rate)
    dist.barrier()
    return np.concatenate([one.double().numpy().ravel() for one in shared])


def _count(how: str, num_increments: int, num_counters: int, folder: Path) -> NDArray[np.int64]:
    torch.set_num_threads(1)
    (counters,) = _shared([torch.zeros(num_counters, dtype=torch.int64)], folder)
    with open(folder / "lock", "wb") as file:
        for _ in range(num_increments):
            if how == "in_step":
                read = counters.clone()
                dist.barrier()
                counters.copy_(read + 1)
                dist.barrier()
            elif how == "locked":
                fcntl.flock(file, fcntl.LOCK_EX)
                counters += 1
                fcntl.flock(file, fcntl.LOCK_UN)
            else:
                counters += 1
    dist.barrier()
    return counters.numpy().copy()
