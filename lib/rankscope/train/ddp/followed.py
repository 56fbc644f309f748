"""`follow`: train on real ranks with the samples of an Assignment, and watch every batch from sampler to optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ...common.checks import of_type, whole
from ...common.frozen import evolve, frozen
from ...pipeline import record_dataloader
from ...ranks.launcher import launch
from ...sampling import Assignment
from ...sampling.assignment import Loader
from ...timeline import Recorder, Timeline
from .buckets import Buckets
from .observed import DDPSettings
from .run import DDPStepper, Optimizer, Taken, buckets_in_common, check_training

LossFn = Callable[[Any, Any], Tensor]
Vector = NDArray[np.float64]


@frozen(eq=False)
class FollowedSteps:
    """Steps under DDP, fed by DataLoaders: which samples were read, what ran when, and what was learned.

    `read` holds the samples of each rank in the order in which its steps got them. In `timeline` every span's item is
    the number of its step: in lanes "worker 0", … a batch is read and collated; in lane "compute" it is waited for
    ("load") and goes forward and backward, and the optimizer follows; lanes "allreduce" have the buckets. `buckets` has
    those of each step; `losses` a row for each rank and a column for each step; `parameters` each rank's at the end, in
    one vector.
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
        later = np.argsort(self.step_s[2:], kind="stable")
        return 2 + int(later[(later.size - 1) // 2])

    def step(self, number: int | None = None) -> Timeline:
        """Return all that was done for one step's batches, reading them included; by default the `typical` step's.

        Raises ValueError for a step that was not followed.
        """
        wanted = self.typical if number is None else whole("number", number, 0, self.num_steps - 1)
        return self.timeline.select(item=wanted)

    def samples(self, number: int) -> list[list[int]]:
        """Return for each rank the samples of its batch in a step."""
        place = whole("number", number, 0, self.num_steps - 1)
        return [self.read.batches(rank)[place].tolist() for rank in range(self.read.num_ranks)]

    def check(self) -> None:
        """Raise ValueError if the ranks have come to different parameters, in any bit."""
        for rank, parameters in enumerate(self.parameters):
            if not np.array_equal(parameters, self.parameters[0]):
                off = float(np.abs(parameters - self.parameters[0]).max())
                raise ValueError(f"ranks must end with the same parameters, and rank {rank} is off rank 0 by {off:.3g}")


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
    """Train a copy of the module on the first batches of an assignment, and return what each batch went through.

    Rank r, a process on Gloo and the CPU, reads ``assignment.ranks[r]`` with a DataLoader of the assignment's
    `with_loader` (batches of one sample without it), and trains with DistributedDataParallel. ``dataset[i]`` is a pair
    of an input and a target, `loss` takes outputs and targets and returns their mean loss, and
    ``optimizer(parameters)`` makes the optimizer; by default there is none. Only their allreduces keep ranks in step;
    DDP's communication is stamped as in `ddp.measure`.

    Raises ValueError for bad input, for an assignment of another dataset, and for more steps than every rank has full
    batches; RankError if a rank fails, dies, or has not ended after `timeout_s`.

    >>> from rankscope.sampling import assign
    >>> samples = [(torch.full((4,), float(i)), torch.tensor([1.0])) for i in range(64)]
    >>> epoch = assign(64, 2).with_loader(batch_size=2)
    >>> follow(epoch, samples, nn.Linear(4, 1), nn.functional.mse_loss, num_steps=3).samples(0)
    [[44, 17], [46, 3]]
    """
    check_training(module, loss, optimizer)
    loader = of_type("assignment", assignment, Assignment).loader or Loader()
    assignment = evolve(assignment, loader=loader)
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise ValueError(f"dataset must have a length and samples by number, got {dataset!r}")
    if len(dataset) != assignment.size:
        raise ValueError(f"assignment must be of the dataset's {len(dataset)} samples, got one of {assignment.size}")
    for rank, indices in enumerate(assignment.ranks):
        outside = indices[(indices < 0) | (indices >= assignment.size)]
        if outside.size:
            wanted = f"samples from 0 to {assignment.size - 1}"
            raise ValueError(f"assignment must have {wanted}, got {outside.max()} for rank {rank}")
    most = min(indices.size for indices in assignment.ranks) // loader.batch_size
    if whole("num_steps", num_steps, 3) > most:
        raise ValueError(f"num_steps must be at most {most}, the full batches that every rank has, got {num_steps}")
    setting, recorder = DDPSettings(bucket_cap_mb=bucket_cap_mb), Recorder()
    args = assignment, dataset, module, loss, optimizer, num_steps, setting, recorder
    ranks: list[_RankResult] = launch(_follow, assignment.num_ranks, args, timeout_s=timeout_s)
    return FollowedSteps(
        evolve(assignment, ranks=tuple(np.concatenate(rank.numbers) for rank in ranks)),
        _timeline(ranks, recorder.timeline()),
        tuple(buckets_in_common(step) for step in zip(*(rank.steps for rank in ranks), strict=True)),
        np.array([rank.losses for rank in ranks]),
        tuple(rank.parameters for rank in ranks),
    )


class _RankResult(NamedTuple):
    """What one rank brings back."""

    steps: list[Taken]
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
    setting: DDPSettings,
    recorder: Recorder,
) -> _RankResult:
    """Train on this rank's samples, and note what happens."""
    rank, numbers, losses = dist.get_rank(), list[NDArray[np.int64]](), list[float]()
    torch.manual_seed(assignment.seed or 0)
    loader, own = assignment.loader or Loader(), assignment.ranks[rank].tolist()
    batches: Iterator[Any] = iter(
        record_dataloader(
            DataLoader(_NumberedSamples(dataset), loader.batch_size, sampler=own, num_workers=loader.num_workers),
            recorder.for_rank(rank),
        )
    )

    def step_loss(model: nn.Module, rank: int, batch: Any) -> Tensor:
        places, (inputs, targets) = batch
        value = loss(model(inputs), targets)
        numbers.append(places.numpy())
        losses.append(float(value.detach()))
        return value

    steps, taken = (
        DDPStepper(module, step_loss, optimizer, setting, torch.device("cpu"), fetch=lambda _: next(batches)),
        [],
    )
    for _ in range(num_steps):
        steps.before()
        steps.run()
        taken.append(steps.taken())
    parameters = torch.cat([parameter.detach().double().flatten() for parameter in steps.ddp.parameters()])
    return _RankResult(taken, numbers, losses, parameters.numpy())


def _timeline(ranks: list[_RankResult], loaders: Timeline) -> Timeline:
    """What workers and ranks did for the steps, on one axis that starts with the first of it."""
    spans, num_steps = [], len(ranks[0].steps)
    for one in ranks:
        for place, step in enumerate(one.steps):
            for span in step.spans:
                start_s, stop_s = span.start_s + step.begun_s, span.stop_s + step.begun_s
                spans.append(span._replace(item=place, start_s=start_s, stop_s=stop_s))
    kinds = {"read", "collate"}
    fetched = [span for span in loaders if span.kind in kinds and span.lane != "compute" and span.item < num_steps]
    timeline = Timeline.of(sorted([*fetched, *spans], key=lambda span: span.start_s))
    return timeline.shifted(-timeline.begin_s)
