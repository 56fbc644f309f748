"""`measure`: an epoch in which real ranks of DDP run out of batches at different times, handled in five ways."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, IterableDataset

from ..gradients import ROUNDING, Vector, gradient_of
from ..sampling import Assignment, audit
from ..timeline import Recorder, Span, Timeline
from ..values.checks import number, of_type, truth
from ..workers.launch import launch
from .model import LANE, batches_by_rank, checked, gradient_scale, reads, sample_weights, steps_by_rank

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


def measure(
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

    >>> from rankscope.uneven import files_epoch
    >>> def losses(outputs, targets):
    ...     return (outputs - targets).square().sum(dim=1)
    >>> both = torch.randn(6, 2), torch.randn(6, 1)
    >>> run = measure(nn.Linear(2, 1), *both, files_epoch([2, 4], 2, batch_size=1), losses)
    >>> run.check()
    >>> [one.gradients for one in run.counts]
    [4, 4]
    """
    task = checked_task(module, inputs, targets, losses_fn, epoch, step_s, hang_s)
    ways = [(handling, truth("divide_by_initial_world_size", divide_by_initial_world_size))]
    return _measure(task, ways, timeout_s)[0]


def compare(
    module: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    epoch: Assignment,
    losses_fn: Losses,
    timeout_s: float = 60.0,
) -> UnevenComparison:
    """Run the epoch on real ranks in each of `WAYS_TO_HANDLE`, beside what one process predicts for it.

    Gradients are equal to rounding if no sample looks at another, as it would in batch normalisation. Raises what
    `measure` does, and ValueError for a `losses_fn` that does not give a loss for each sample.
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


_COLLECTIVE = ("allreduce", "shadow")


class UnevenError(RuntimeError):
    """Real ranks did not do what they were predicted to do."""


class Counts(NamedTuple):
    """What one rank took part in: steps whose gradients it helped to reduce, allreduces of Join's single numbers."""

    gradients: int
    words: int


@dataclass(frozen=True, eq=False)
class UnevenRun:
    """One epoch on real ranks: `epoch` is what they had, `trained` what their completed steps were about.

    `gradients` are those that DDP left after each step, shape (steps, parameters), the same on all ranks that had a
    batch in it; `errors` what each rank's epoch ended with, None where it came to its end.
    """

    epoch: Assignment
    handling: str
    divide_by_initial_world_size: bool
    trained: Assignment
    gradients: Vector
    counts: tuple[Counts, ...]
    errors: tuple[str | None, ...]
    timeline: Timeline

    @property
    def stuck(self) -> tuple[int, ...]:
        """The ranks whose allreduce waited until it timed out."""
        return tuple(rank for rank, error in enumerate(self.errors) if error) if self.handling == "hang" else ()

    def check(self) -> None:
        """Raise UnevenError where reads, steps, allreduces or errors are not as predicted."""
        expected = reads(self.epoch, self.handling)
        for rank, (found, right) in enumerate(zip(self.trained.ranks, expected.ranks, strict=True)):
            if not np.array_equal(found, right):
                raise UnevenError(f"rank {rank} trained on {found.size} samples, not on the {right.size} predicted")
        own = batches_by_rank(self.epoch)
        num_steps = max(steps_by_rank(own, self.handling))
        if len(self.gradients) != num_steps:
            raise UnevenError(f"there were {len(self.gradients)} steps, not {num_steps}")
        for rank, counts in enumerate(predicted_counts(own, self.handling)):
            helped = self.counts[rank].gradients
            if helped != counts.gradients:
                raise UnevenError(f"rank {rank} helped to reduce {helped} steps' gradients, not {counts.gradients}")
        if len({counts.words for counts in self.counts}) > 1:
            raise UnevenError(f"ranks should exchange as many words each, but: {self.counts}")
        failed = tuple(rank for rank, error in enumerate(self.errors) if error)
        if failed != predicted_errors(own, self.handling):
            raise UnevenError(f"errors came to ranks {failed}, not to {predicted_errors(own, self.handling)}")


def predicted_counts(num_batches: Sequence[int], handling: str) -> tuple[Counts, ...]:
    """Return what each rank takes part in, if the module has no buffers, about which there are words of their own.

    Join asks in each step how many ranks still have a batch and whether gradients are to be reduced, once more when
    none has, and then who has the final model. To throw, it asks a third time, and stops half way.

    >>> predicted_counts([2, 3], "join")
    (Counts(gradients=3, words=8), Counts(gradients=3, words=8))
    """
    num_steps = max(steps_by_rank(num_batches, handling))
    tries = [num_steps + (handling == "hang" and own > num_steps) for own in num_batches]
    if handling == "throw":
        return (Counts(num_steps, 3 * num_steps + 2),) * len(num_batches)
    return tuple(Counts(tried, 2 * num_steps + 2 if handling == "join" else 0) for tried in tries)


def predicted_errors(num_batches: Sequence[int], handling: str) -> tuple[int, ...]:
    """Return the ranks that end with an error: those with batches left where it hangs, all where Join throws."""
    least = min(num_batches)
    if handling == "hang":
        return tuple(rank for rank, own in enumerate(num_batches) if own > least)
    thrown = handling == "throw" and max(num_batches) > least
    return tuple(range(len(num_batches))) if thrown else ()


def settled(timeline: Timeline) -> Timeline:
    """Split each allreduce where the last rank came to it: before, those that were earlier wait.

    A rank waits with zeros in hand, too, so that of a shadow only what follows the last rank's coming is one.
    """
    last_s: dict[int, float] = {}
    for span in timeline:
        if span.kind in _COLLECTIVE:
            last_s[span.item] = max(span.start_s, last_s.get(span.item, span.start_s))
    rows = []
    for span in timeline:
        if span.kind in _COLLECTIVE and span.start_s < last_s[span.item] <= span.stop_s:
            rows.append(span._replace(kind="wait", stop_s=last_s[span.item]))
            span = span._replace(start_s=last_s[span.item])
        rows.append(span)
    return _joined(Timeline.of(rows))


def _joined(timeline: Timeline) -> Timeline:
    """Waits of one rank that follow each other at once are one."""
    rows: list[Span] = []
    for span in sorted(timeline, key=lambda one: (one.rank, one.start_s)):
        if span.kind == "wait" and rows and rows[-1][:4] == span[:4]:
            rows[-1] = rows[-1]._replace(stop_s=span.stop_s)
        else:
            rows.append(span)
    return Timeline.of(rows).named((), ("step", *_COLLECTIVE, "wait"))


@dataclass(frozen=True, eq=False)
class Handled:
    """One way to handle an uneven epoch: what it did to the samples, and the gradient of the whole epoch.

    Gradients are sums over the steps, divided by the sum of all weights, so that they compare with that of a mean.
    """

    name: str
    run: UnevenRun
    predicted: Vector
    exact: Vector
    rounding: float

    @property
    def lost(self) -> int:
        return audit(self.run.trained).dropped

    @property
    def repeated(self) -> int:
        return audit(self.run.trained).duplicates

    @property
    def weights(self) -> Vector:
        """How much each sample counts, 1 where it counts as in the mean over all."""
        weights = sample_weights(self.run.epoch, self.run.handling, self.run.divide_by_initial_world_size)
        return np.asarray(weights * weights.size / weights.sum())

    @property
    def measured(self) -> Vector:
        """The gradient of the epoch as the ranks had it."""
        run = self.run
        scale = gradient_scale(batches_by_rank(run.epoch), run.handling, run.divide_by_initial_world_size)
        return np.asarray(run.gradients.sum(axis=0) / scale.sum())

    @property
    def bias(self) -> float:
        """How far the measured gradient is from that of the mean loss over all samples, as a share of its length."""
        return _apart(self.measured, self.exact)

    @property
    def predicted_bias(self) -> float:
        return _apart(self.predicted, self.exact)

    def check(self) -> None:
        """Raise UnevenError where the run, its samples or its gradient are not as predicted."""
        self.run.check()
        off = _apart(self.measured, self.predicted)
        if not off <= self.rounding:
            raise UnevenError(f"{self.name}: the gradient is {off:.2g} from the predicted one")


@dataclass(frozen=True, eq=False)
class UnevenComparison:
    """Ways to handle one uneven epoch, side by side; ``str()`` is the table.

    `bias` is how far the epoch's gradient is from the exact one of the mean loss, as a share of that one's length.
    """

    handled: tuple[Handled, ...]

    def __getitem__(self, name: str) -> Handled:
        return {one.name: one for one in self.handled}[name]

    def check(self) -> None:
        """Raise UnevenError where anything is not as predicted; see `Handled.check`."""
        for one in self.handled:
            one.check()

    def __str__(self) -> str:
        wide = max(len(one.name) for one in self.handled)
        rows = [f"{'':{wide}}  lost  repeated  a sample counts   bias, predicted and found"]
        for one in self.handled:
            counts = f"{one.weights.min():.2f} to {one.weights.max():.2f} times"
            bias = f"{one.predicted_bias:6.2%} {one.bias:6.2%}"
            rows.append(f"{one.name:{wide}} {one.lost:5} {one.repeated:9}  {counts:>18} {bias:>15}")
        return "\n".join(rows)


def _apart(one: Vector, other: Vector) -> float:
    return float(np.linalg.norm(one - other) / (np.linalg.norm(other) or 1.0))


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what a rank is at. Allreduces of more than one number are of gradients: DDP's own, or shadows of them.

    They pass the dispatcher, also those that C++ begins, and are over when the backward is, or when Join asks again.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.kind, self.item, self.since_ns = "", 0, 0
        self.finished = False
        self.counts = Counts(0, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d" and func._schema.name == "c10d::allreduce_":
            self._allreduce(sum(tensor.numel() for tensor in args[0]))
        return func(*args, **(kwargs or {}))

    def _allreduce(self, num_elements: int) -> None:
        gradients, words = self.counts
        if num_elements == 1:
            self.counts = Counts(gradients, words + 1)
            if self.kind == "shadow":
                self.end()
                self.begin("wait", self.item + 1)
        elif self.kind not in ("allreduce", "shadow"):
            self.counts = Counts(gradients + 1, words)
            self.end()
            self.begin("shadow" if self.finished else "allreduce", self.item)

    def begin(self, kind: str, item: int) -> None:
        self.kind, self.item, self.since_ns = kind, item, time.perf_counter_ns()

    def end(self) -> None:
        """What this rank was at is over."""
        self.recorder.add(LANE, self.kind, self.item, self.since_ns, time.perf_counter_ns())
        self.kind = ""

    def finish(self) -> None:
        """No batch is left. What Join says to the end, after the last shadow, is not recorded."""
        self.finished = True
        self.begin("wait", self.item + 1)

    def give_up(self) -> None:
        """What was an allreduce has been waiting in vain."""
        if self.kind == "allreduce":
            self.kind = "wait"
            self.end()
