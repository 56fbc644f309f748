"""`follow_steps`: train on real ranks with DistributedSampler, DataLoader and DDP, and watch every batch on its way."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from ..pipeline import record_dataloader
from ..sampling import Assignment
from ..timeline import Recorder, Timeline
from ..values.checks import number, whole
from ..workers.errors import MOST_RANKS
from ..workers.launch import launch
from .ddp_run import Buckets
from .followed import FollowedSteps, Vector
from .measure_rank import Clock, Optimizer, Record, Setting, Steps, Watch
from .measure_steps import NUM_WORKERS, checked, spans_of

LossFn = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class _Feed:
    """How a rank's batches are made."""

    batch_size: int
    num_workers: int
    seed: int


def follow_steps(
    dataset: Any, module: nn.Module, loss: LossFn, optimizer: Optimizer | None = None, *, num_ranks: int = 4,
    batch_size: int = 16, num_workers: int = 1, num_steps: int = 10, seed: int = 0, bucket_cap_mb: float | None = None,
    timeout_s: float = 120.0,
) -> FollowedSteps:  # fmt: skip
    """Train a copy of the module for the first steps of an epoch on N ranks, and return what each batch went through.

    ``dataset[i]`` is a pair of an input and a target, `loss` takes outputs and targets and returns their mean loss, and
    ``optimizer(parameters)`` makes the optimizer; by default there is none. Each rank, a process on Gloo and the CPU,
    has torch's own parts: a DistributedSampler that shuffles with `seed`, a DataLoader, DistributedDataParallel.
    Nothing holds ranks together but their allreduces; DDP's communication is stamped as in `measure_ddp`.

    Raises ValueError for bad input and for more steps than an epoch has, RankError where a rank fails, dies, or has not
    ended after `timeout_s`.

    >>> samples = [(torch.full((4,), float(i)), torch.tensor([1.0])) for i in range(64)]
    >>> squares = nn.functional.mse_loss
    >>> follow_steps(samples, nn.Linear(4, 1), squares, num_ranks=2, batch_size=2, num_steps=3).samples(0)
    [[44, 17], [46, 3]]
    """
    trained = checked(module, loss, optimizer)
    ranks, workers = whole("num_ranks", num_ranks, 1, MOST_RANKS), whole("num_workers", num_workers, 0, 64)
    feed = _Feed(whole("batch_size", batch_size, 1), workers, whole("seed", seed, 0, 2**63 - 1))
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise ValueError(f"dataset must have a length and samples by number, got {dataset!r}")
    epoch = -(-len(dataset) // ranks) // feed.batch_size
    steps = whole("num_steps", num_steps, 3)
    if steps > epoch:
        raise ValueError(f"num_steps must be at most {epoch}, the full batches of an epoch, got {num_steps}")
    ddp = {} if bucket_cap_mb is None else {"bucket_cap_mb": number("bucket_cap_mb", bucket_cap_mb, above=0)}
    setting, recorder = Setting(steps, 0, 1, "cpu", ddp), Recorder()
    args = (dataset, *trained, setting, feed, recorder)
    seen = launch(_follow, ranks, args, timeout_s=number("timeout_s", timeout_s, above=0, high=10**6))
    return FollowedSteps(
        read=_read(seen, len(dataset), feed),
        timeline=_timeline(seen, recorder.timeline()),
        buckets=tuple(_buckets(seen, step) for step in range(steps)),
        losses=np.array([one.losses for one in seen]),
        parameters=tuple(one.parameters for one in seen),
    )


@dataclass
class _Seen:
    """What one rank brings back."""

    record: Record
    numbers: list[Any]  # of the samples, a batch a step
    losses: list[float]
    parameters: Vector


class _Numbered(Dataset[Any]):
    """A dataset whose samples bring their numbers along."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> tuple[int, Any]:
        return number, self.dataset[number]


def _follow(
    dataset: Any, module: nn.Module, loss: LossFn, optimizer: Optimizer | None, setting: Setting, feed: _Feed,
    recorder: Recorder,
) -> _Seen:  # fmt: skip
    """Be a rank: train, and note what comes by."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(feed.seed)
    module = copy.deepcopy(module)
    ddp = nn.parallel.DistributedDataParallel(module, **setting.ddp)
    watched = [parameter for parameter in module.parameters() if parameter.requires_grad]
    watch = Watch(Clock(torch.device("cpu")), watched)
    watch.allreduces(ddp, communicate=True)
    watch.hooks()
    sampler: Any = DistributedSampler(_Numbered(dataset), num_ranks, rank, shuffle=True, seed=feed.seed)
    loader = DataLoader(_Numbered(dataset), feed.batch_size, sampler=sampler, num_workers=feed.num_workers)
    batches: Iterator[Any] = iter(record_dataloader(loader, recorder.for_rank(rank)))
    numbers, losses = [], []

    def step_loss(model: nn.Module, rank: int, batch: Any) -> Tensor:
        places, (inputs, targets) = batch
        value = loss(model(inputs), targets)
        numbers.append(places.numpy())
        losses.append(float(value.detach()))
        return value

    stepper = None if optimizer is None else optimizer(watched)
    steps = Steps(ddp, step_loss, stepper, setting, watch, [0] * num_ranks, lambda _: next(batches))
    for _ in range(setting.iterations):
        steps.before()
        steps.run()
        steps.finish(0.0, True)
    parameters = torch.cat([parameter.detach().double().flatten() for parameter in module.parameters()])
    return _Seen(steps.record, numbers, losses, parameters.numpy())


def _read(seen: list[_Seen], size: int, feed: _Feed) -> Assignment:
    ranks = tuple(np.concatenate(one.numbers) for one in seen)
    read = Assignment(size, ranks, sampler="torch", shuffle=True, seed=feed.seed)
    return read.with_loader(feed.batch_size, num_workers=feed.num_workers)


def _timeline(seen: list[_Seen], loaders: Timeline) -> Timeline:
    """What workers and ranks did for the steps, on one axis that starts with the first of it."""
    spans, num_steps = [], len(seen[0].record.begun_s)
    for rank, one in enumerate(seen):
        for step, begun_s in enumerate(one.record.begun_s):
            for span in spans_of(rank, one.record, step, NUM_WORKERS["gloo"], with_loads=True):
                spans.append(span._replace(item=step, start_s=span.start_s + begun_s, stop_s=span.stop_s + begun_s))
    works = {"read", "collate"}
    fetched = [span for span in loaders if span.kind in works and span.lane != "compute" and span.item < num_steps]
    timeline = Timeline.of(sorted([*fetched, *spans], key=lambda span: span.start_s))
    return timeline.shifted(-timeline.begin_s)


def _buckets(seen: list[_Seen], step: int) -> Buckets:
    launched = [tuple(tuple(bucket) for bucket in one.record.buckets[step]) for one in seen]
    if any(one != launched[0] for one in launched):
        raise RuntimeError(f"ranks must launch the same buckets, got {launched}")
    return launched[0]
