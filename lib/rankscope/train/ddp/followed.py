"""`follow`: train on real ranks with the samples of an Assignment, and watch every batch from sampler to optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ...common.checks import of_type, whole
from ...pipeline import record_dataloader
from ...ranks.launcher import launch
from ...sampling import Assignment
from ...sampling.assignment import Loader
from ...timeline import Recorder, Timeline
from .buckets import Buckets
from .observed import DDPSettings
from .run import DDPStepper, Optimizer, RecordedStep, buckets_in_common, check_training

LossFn = Callable[[Any, Any], Tensor]
Vector = NDArray[np.float64]
_FIRST_TYPICAL = 2  # the first step after the one in which DDP rebuilds its buckets


class FollowedSteps(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Steps under DDP, fed by DataLoaders: the samples read, the timeline, and the losses and parameters.

    `read` has the samples of each rank in the order in which its steps read them. In `timeline` every span's item is
    the number of its step. Lanes "worker 0", … show how a batch is read and collated; without workers this is on lane
    "training loop". Lane "compute" shows the wait for the batch ("load"), forward, backward and the optimizer. Lanes
    "allreduce" have the buckets. `buckets` has those of each step, `losses` a row for each rank and a column for each
    step, and `parameters` one vector for each rank, at the end.
    """

    read: Assignment
    timeline: Timeline
    buckets: tuple[Buckets, ...]
    losses: NDArray[np.float64]
    parameters: tuple[Vector, ...]

    @property
    def num_steps(self) -> int:
        return len(self.buckets)

    @cached_property
    def step_s(self) -> NDArray[np.float64]:
        """Seconds of each step, from the first rank's request for its batch to the last one's end."""
        compute = self.timeline.select(lane="compute")
        return np.array([compute.select(item=number).makespan_s for number in range(self.num_steps)])

    @property
    def typical(self) -> int:
        """The step of median length among those after the second, in which DDP rebuilds its buckets."""
        steps_by_length = _FIRST_TYPICAL + np.argsort(self.step_s[_FIRST_TYPICAL:], kind="stable")
        middle = (steps_by_length.size - 1) // 2  # the shorter of the two in the middle if their number is even
        return int(steps_by_length[middle])

    def step(self, number: int | None = None) -> Timeline:
        """Return the spans of one step, including those that read its batches; by default the `typical` step.

        Raises ValueError for a step that was not followed.
        """
        if number is None:
            return self.timeline.select(item=self.typical)
        return self.timeline.select(item=whole("number", number, 0, self.num_steps - 1))

    def samples(self, number: int) -> list[list[int]]:
        """Return for each rank the samples of its batch in a step."""
        number = whole("number", number, 0, self.num_steps - 1)
        return [self.read.batches(rank)[number].tolist() for rank in range(self.read.num_ranks)]

    def check(self) -> None:
        """Raise ValueError if the ranks end with different parameters, in any bit."""
        for rank, parameters in enumerate(self.parameters):
            if not np.array_equal(parameters, self.parameters[0]):
                difference = float(np.abs(parameters - self.parameters[0]).max())
                raise ValueError(
                    f"ranks must end with the same parameters, and rank {rank} is off rank 0 by {difference:.3g}"
                )


def follow(
    assignment: Assignment,
    dataset: Any,
    module: nn.Module,
    loss: LossFn,
    optimizer: Optimizer | None = None,
    *,
    num_steps: int = 10,
    bucket_cap_mb: float | None = None,
    timeout_s: float = 120.0,
) -> FollowedSteps:
    """Train a copy of the module on the first batches of an assignment, and record what happens to each batch.

    Rank r, a process on Gloo and the CPU, reads ``assignment.ranks[r]`` with a DataLoader of the assignment's
    `with_loader` (batches of one sample without it), and trains with DistributedDataParallel. ``dataset[i]`` is a pair
    of an input and a target, `loss` takes outputs and targets and returns their mean loss, and
    ``optimizer(parameters)`` makes the optimizer; by default there is none. Only the allreduces synchronise ranks.
    DDP's communication is recorded as in `ddp.measure`.

    Raises ValueError if an argument is invalid, the assignment is of another dataset, or a rank has fewer full batches
    than `num_steps`; RankError if a rank fails, dies, or has not ended after `timeout_s`.

    >>> from rankscope.sampling import assign
    >>> samples = [(torch.full((4,), float(i)), torch.tensor([1.0])) for i in range(64)]
    >>> epoch = assign(64, 2).with_loader(batch_size=2)
    >>> follow(epoch, samples, nn.Linear(4, 1), nn.functional.mse_loss, num_steps=3).samples(0)
    [[44, 17], [46, 3]]
    """
    check_training(module, loss, optimizer)
    if of_type("assignment", assignment, Assignment).batch_stops is not None:
        raise ValueError("assignment must have no batches of its own, because each rank's DataLoader makes them")
    loader = assignment.loader or Loader()
    assignment = replace(assignment, loader=loader)
    _check_dataset(dataset, assignment)
    full_batches = min(indices.size for indices in assignment.ranks) // loader.batch_size
    fewest_steps = _FIRST_TYPICAL + 1  # so that `typical` has one to choose
    if whole("num_steps", num_steps, fewest_steps) > full_batches:
        raise ValueError(
            f"num_steps must be at most {full_batches}, the full batches that every rank has, got {num_steps}"
        )
    settings = DDPSettings(bucket_cap_mb=bucket_cap_mb)
    recorder = Recorder()
    args = (assignment, dataset, module, loss, optimizer, num_steps, settings, recorder)
    results: list[_RankResult] = launch(_follow, assignment.num_ranks, args, timeout_s=timeout_s)
    each_step = zip(*(result.steps for result in results), strict=True)
    return FollowedSteps(
        read=replace(assignment, ranks=tuple(np.concatenate(result.numbers) for result in results)),
        timeline=_timeline(results, recorder.timeline()),
        buckets=tuple(buckets_in_common(step) for step in each_step),
        losses=np.array([result.losses for result in results]),
        parameters=tuple(result.parameters for result in results),
    )


def _check_dataset(dataset: Any, assignment: Assignment) -> None:
    """Raise ValueError unless every sample of the assignment is in the dataset."""
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise ValueError(f"dataset must have a length and samples by number, got {dataset!r}")
    if len(dataset) != assignment.size:
        raise ValueError(f"assignment must be of the dataset's {len(dataset)} samples, got one of {assignment.size}")
    for rank, indices in enumerate(assignment.ranks):
        outside = indices[(indices < 0) | (indices >= assignment.size)]
        if outside.size:
            wanted = f"samples from 0 to {assignment.size - 1}"
            raise ValueError(f"assignment must have {wanted}, got {outside.max()} for rank {rank}")


class _RankResult(NamedTuple):
    """The record that one rank returns."""

    steps: list[RecordedStep]
    numbers: list[NDArray[np.int64]]  # of the samples, a batch for each step
    losses: list[float]
    parameters: Vector


class _NumberedSamples(Dataset[Any]):
    """A dataset whose samples come with their numbers."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> tuple[int, Any]:
        return number, self.dataset[number]


def _follow(
    assignment: Assignment,
    dataset: Any,
    module: nn.Module,
    loss: LossFn,
    optimizer: Optimizer | None,
    num_steps: int,
    settings: DDPSettings,
    recorder: Recorder,
) -> _RankResult:
    """Train on this rank's samples, and record the steps."""
    rank = dist.get_rank()
    # So that a module or loss that draws random numbers can be repeated, also for an assignment without a seed.
    torch.manual_seed(0 if assignment.seed is None else assignment.seed)
    loader = assignment.loader
    assert loader is not None, "`follow` gives every assignment a loader"
    rank_loader = DataLoader(
        _NumberedSamples(dataset),
        loader.batch_size,
        sampler=assignment.ranks[rank].tolist(),
        num_workers=loader.num_workers,
    )
    batches: Iterator[Any] = iter(record_dataloader(rank_loader, recorder.for_rank(rank)))
    numbers: list[NDArray[np.int64]] = []
    losses: list[float] = []

    def step_loss(model: nn.Module, rank: int, batch: Any) -> Tensor:
        """Return the loss of a batch, and record its samples and the loss."""
        sample_numbers, (inputs, targets) = batch
        value = loss(model(inputs), targets)
        numbers.append(sample_numbers.numpy())
        losses.append(float(value.detach()))
        return value

    def next_batch(number: int) -> Any:
        """Return the batch of this step, which is the next one: a DataLoader yields them in order."""
        return next(batches)

    stepper = DDPStepper(module, step_loss, optimizer, settings, torch.device("cpu"), fetch=next_batch)
    steps = []
    for _ in range(num_steps):
        stepper.before()
        stepper.run()
        steps.append(stepper.record())
    # One vector, whatever their types: float64 has every value of the smaller ones.
    parameters = torch.cat([parameter.detach().double().flatten() for parameter in stepper.ddp.parameters()])
    return _RankResult(steps, numbers, losses, parameters.numpy())


def _timeline(results: list[_RankResult], loaders: Timeline) -> Timeline:
    """Return the spans of workers and ranks for the steps, on one axis that starts with the first span.

    `loaders` has what the DataLoaders recorded. Of that, only the reading and collating is shown, because the ranks'
    own steps have the wait for a batch. Workers read ahead, so they have spans of batches that no step used.
    """
    num_steps = len(results[0].steps)
    spans = []
    for span in loaders:
        if span.kind in ("read", "collate") and span.item < num_steps:
            spans.append(span)
    for result in results:
        for number, step in enumerate(result.steps):
            for span in step.spans:
                start_s = step.start_s + span.start_s
                stop_s = step.start_s + span.stop_s
                spans.append(span._replace(item=number, start_s=start_s, stop_s=stop_s))
    # Pictures show the lanes in the order of their first spans in the timeline.
    timeline = Timeline.of(sorted(spans, key=lambda span: span.start_s))
    return timeline.shifted(-timeline.begin_s)
