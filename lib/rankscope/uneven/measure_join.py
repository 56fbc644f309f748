"""`measure_uneven`: an epoch in which real ranks of DDP run out of batches at different times, handled in five ways."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from ..gradients import ROUNDING, Vector, gradient_of
from ..ranks import launch
from ..sampling import Assignment
from ..timeline import Recorder
from ..values.checks import number, of_type, truth
from .measure_join_watch import Watch
from .uneven import batches_by_rank, checked, sample_weights
from .uneven_run import Counts, Handled, UnevenComparison, UnevenError, UnevenRun, settled

Losses = Callable[[Tensor, Tensor], Tensor]  # of outputs and targets: a loss for each sample
# by name: how it is handled, and what Join divides by
WAYS_TO_HANDLE = {
    "drop": ("drop", True),
    "pad": ("pad", True),
    "join": ("join", True),
    "join, by those left": ("join", False),
}


@dataclass(frozen=True, eq=False)
class Task:
    """What the ranks train, on what; `hang_s` is how long an allreduce waits for a rank that does not come."""

    module: nn.Module
    inputs: Tensor
    targets: Tensor
    losses_fn: Losses
    epoch: Assignment
    step_s: float
    hang_s: float


@dataclass(frozen=True, eq=False)
class _Seen:
    """What one rank saw of an epoch."""

    trained: list[int]
    gradients: Vector
    counts: Counts
    error: str | None


def measure_uneven(
    module: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    epoch: Assignment,
    losses_fn: Losses,
    handling: str = "join",
    divide_by_initial_world_size: bool = True,
    step_s: float = 0.0,
    hang_s: float = 5.0,
    timeout_s: float = 60.0,
) -> UnevenRun:
    """Let each rank of `epoch` read its batches, from an IterableDataset, through DDP, and record what it does.

    `handling` is one of `uneven.HANDLINGS`. `losses_fn` gives one loss a sample, of which a rank takes the mean over
    its batch. Nothing updates the module: gradients of all steps are of the same parameters. A step sleeps for `step_s`
    before its forward. Where it hangs, ranks that are stuck give up after `hang_s`.

    Raises ValueError for bad input, and for a module of a single number, whose gradient cannot be told from Join's own
    words; RankError where a rank fails, and after `timeout_s`.

    >>> from rankscope.uneven.uneven import files_epoch
    >>> def losses(outputs, targets):
    ...     return (outputs - targets).square().sum(dim=1)
    >>> both = torch.randn(6, 2), torch.randn(6, 1)
    >>> run = measure_uneven(nn.Linear(2, 1), *both, files_epoch([2, 4], 2, batch_size=1), losses)
    >>> run.check()
    >>> [one.gradients for one in run.counts]
    [4, 4]
    """
    task = checked_task(module, inputs, targets, losses_fn, epoch, step_s, hang_s)
    ways = [(handling, truth("divide_by_initial_world_size", divide_by_initial_world_size))]
    return _measure(task, ways, timeout_s)[0]


def compare_uneven(
    module: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    epoch: Assignment,
    losses_fn: Losses,
    timeout_s: float = 60.0,
) -> UnevenComparison:
    """Run the epoch on real ranks in each of `WAYS_TO_HANDLE`, beside what one process predicts for it.

    Gradients are equal to rounding if no sample looks at another, as it would in batch normalisation. Raises what
    `measure_uneven` does, and ValueError for a `losses_fn` that does not give a loss for each sample.
    """
    task = checked_task(module, inputs, targets, losses_fn, epoch, 0.0, 1.0)
    exact = _weighted_gradient(task, np.ones(epoch.size))
    runs = _measure(task, list(WAYS_TO_HANDLE.values()), timeout_s)
    rounding = ROUNDING * max(torch.finfo(one.dtype).eps for one in module.parameters())
    rows = []
    for name, run in zip(WAYS_TO_HANDLE, runs, strict=True):
        weights = sample_weights(epoch, run.handling, run.divide_by_initial_world_size)
        rows.append(Handled(name, run, _weighted_gradient(task, weights), exact, rounding))
    return UnevenComparison(tuple(rows))


def checked_task(
    module: Any, inputs: Any, targets: Any, losses_fn: Any, epoch: Any, step_s: float, hang_s: float
) -> Task:
    batches_by_rank(epoch)
    elements = sum(one.numel() for one in of_type("module", module, nn.Module).parameters() if one.requires_grad)
    if elements < 2:
        raise ValueError(f"module must have at least two numbers to train, got {elements}")
    for name, tensor in (("inputs", inputs), ("targets", targets)):
        rows = len(tensor) if isinstance(tensor, Tensor) and tensor.ndim else tensor
        if not isinstance(rows, int) or rows != epoch.size:
            raise ValueError(f"{name} must be a tensor with a row for each of {epoch.size} samples, got {rows!r}")
    if not callable(losses_fn):
        raise ValueError(f"losses_fn must be a function of outputs and targets, got {losses_fn!r}")
    step_s, hang_s = number("step_s", step_s, 0, 60), number("hang_s", hang_s, 0.1, 15)
    return Task(module, inputs, targets, losses_fn, epoch, step_s, hang_s)


def _weighted_gradient(task: Task, weights: Vector) -> Vector:
    """The gradient of the mean of all losses, weighted, in this process."""
    module = copy.deepcopy(task.module)
    module.zero_grad()
    losses = task.losses_fn(module(task.inputs), task.targets)
    if losses.shape != (len(weights),):
        raise ValueError(f"losses_fn must give a loss for each of {len(weights)} samples, got {tuple(losses.shape)}")
    shares = torch.from_numpy(weights / weights.sum()).to(losses.dtype)
    (losses * shares).sum().backward()  # type: ignore[no-untyped-call]
    return gradient_of(module)


def _measure(task: Task, ways: list[tuple[str, bool]], timeout_s: float) -> list[UnevenRun]:
    own = batches_by_rank(task.epoch)
    for handling, _ in ways:
        checked(own, handling)
    recorders = [Recorder() for _ in ways]
    by_rank = launch(_train_all, len(own), (task, ways, recorders), timeout_s=timeout_s)
    return [
        _run(task.epoch, way, [seen[place] for seen in by_rank], recorder)
        for place, (way, recorder) in enumerate(zip(ways, recorders, strict=True))
    ]


def _run(epoch: Assignment, way: tuple[str, bool], seen: list[_Seen], recorder: Recorder) -> UnevenRun:
    longest = max((one.gradients for one in seen), key=len)
    for rank, one in enumerate(seen):
        if not np.array_equal(one.gradients, longest[: len(one.gradients)]):
            raise UnevenError(f"rank {rank} has other gradients than the rest")
    timeline = settled(recorder.timeline())
    return UnevenRun(
        epoch,
        *way,
        trained=replace(epoch, ranks=tuple(np.array(one.trained, dtype=np.int64) for one in seen)),
        gradients=longest,
        counts=tuple(one.counts for one in seen),
        errors=tuple(one.error for one in seen),
        timeline=timeline.shifted(-timeline.begin_s),
    )


# ---- in a rank


def _train_all(task: Task, ways: list[tuple[str, bool]], recorders: list[Recorder]) -> list[_Seen]:
    rank = dist.get_rank()
    return [_train(task, *way, one.for_rank(rank)) for way, one in zip(ways, recorders, strict=True)]


def _train(task: Task, handling: str, divide: bool, recorder: Recorder) -> _Seen:
    """One epoch; a hang is in a group of its own, which waits for less long than the launch does."""
    group = dist.new_group(timeout=timedelta(seconds=task.hang_s)) if handling == "hang" else None
    ddp = DistributedDataParallel(copy.deepcopy(task.module), process_group=group)
    steps, error = _Steps(task, ddp, Watch(recorder)), None
    join = Join(
        [ddp],
        enable=handling in ("join", "throw"),
        throw_on_early_termination=handling == "throw",
        divide_by_initial_world_size=divide,
    )
    batches = own_batches(task, handling)
    dist.barrier()
    try:
        with steps.watch, join:
            for batch in batches:
                steps.run(*batch)
            steps.watch.finish()
    except RuntimeError as caught:
        if not (steps.watch.kind == "allreduce" if handling == "hang" else "exhausted" in str(caught)):
            raise
        error = str(caught)
        steps.watch.give_up()
    num_elements = sum(one.numel() for one in ddp.parameters())
    gradients = torch.cat([torch.empty(0), *steps.gradients]).reshape(-1, num_elements)
    return _Seen(steps.trained, gradients.double().numpy(), steps.watch.counts, error)


class _Shard(IterableDataset[tuple[int, Tensor, Tensor]]):
    """A stream of one rank's samples; it does not know how many there are."""

    def __init__(self, task: Task, rank: int) -> None:
        self.task, self.indices = task, task.epoch.ranks[rank]

    def __iter__(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        return ((index, self.task.inputs[index], self.task.targets[index]) for index in self.indices.tolist())


def own_batches(task: Task, handling: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """This rank's batches; to drop or to pad, ranks agree first on how many there are to be."""
    rank = dist.get_rank()
    assert task.epoch.loader is not None
    loader: Any = DataLoader(_Shard(task, rank), batch_size=task.epoch.loader.batch_size)
    if handling not in ("drop", "pad"):
        return iter(loader)
    agreed = torch.tensor(batches_by_rank(task.epoch)[rank])
    dist.all_reduce(agreed, op=dist.ReduceOp.MIN if handling == "drop" else dist.ReduceOp.MAX)
    return islice(cycle(loader), int(agreed))


class _Steps:
    """One step after the other, and what they leave."""

    def __init__(self, task: Task, ddp: DistributedDataParallel, watch: Watch) -> None:
        self.task, self.ddp, self.watch = task, ddp, watch
        self.trained: list[int] = []
        self.gradients: list[Tensor] = []

    def run(self, indices: Tensor, inputs: Tensor, targets: Tensor) -> None:
        self.watch.begin("step", len(self.gradients))
        time.sleep(self.task.step_s)
        self.ddp.zero_grad()
        self.task.losses_fn(self.ddp(inputs), targets).mean().backward()  # type: ignore[no-untyped-call]
        self.watch.end()
        self.trained += indices.tolist()
        self.gradients.append(_flat_gradient(self.ddp))


def _flat_gradient(module: nn.Module) -> Tensor:
    """A copy that takes little time: what comes after is another step."""
    grads = [torch.zeros_like(one) if one.grad is None else one.grad for one in module.parameters()]
    return torch.cat([grad.flatten() for grad in grads])
