"""An epoch in which real DDP ranks run out of batches at different times: recorded, and compared with the model."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import cached_property
from itertools import cycle, islice
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from ...common.checks import check_field, function, number, of_type, truth
from ...ranks.launcher import launch
from ...ranks.recorder import Recording, recording
from ...sampling import Assignment
from ...timeline import Span, Timeline
from ..gradients import Vector, gradient_of
from .model import KINDS, LANE, Counts, Prediction, batches_by_rank, predict, steps_by_rank

Losses = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> a loss per sample
_COLLECTIVE = ("allreduce", "shadow")
_NUM_KEYS = 4  # the first fields of a Span: rank, lane, kind and item
_LATE_S = 0.1  # after an error, by when collectives that have ended are known to have
_WORD_BYTES = 8  # of Join's messages, a single number each, at most
_JOIN_ENDS = "exhausted"  # a word in the two errors of Join (torch/distributed/algorithms/join.py) that end an epoch


class HandlingWay(NamedTuple):
    """A handling, and whether Join divides gradients by all ranks."""

    handling: str
    divide_by_initial_world_size: bool


class UnevenError(RuntimeError):
    """Real ranks did not behave as predicted."""


class UnevenRun(msgspec.Struct, frozen=True, eq=False, dict=True):
    """One epoch on real ranks: `epoch` is their input, `trained` the samples of their completed steps.

    `gradients` are DDP's after each step, of shape (steps, parameters), equal on all ranks that had a batch in it.
    `errors` has the error that ended each rank's epoch, None if it completed.
    """

    epoch: Assignment
    handling: str
    divide_by_initial_world_size: bool
    trained: Assignment
    gradients: Vector
    counts: tuple[Counts, ...]
    errors: tuple[str | None, ...]
    timeline: Timeline

    @cached_property
    def expected(self) -> Prediction:
        """The prediction for this run."""
        return predict(self.epoch, self.handling, self.divide_by_initial_world_size)

    @property
    def stuck(self) -> tuple[int, ...]:
        """The ranks that waited for others in a collective of DDP, mostly an allreduce, until it timed out."""
        if self.handling != "hang":
            return ()
        return self._failed

    @property
    def _failed(self) -> tuple[int, ...]:
        """The ranks whose epoch ended with an error."""
        return tuple(rank for rank, error in enumerate(self.errors) if error)

    def check(self) -> None:
        """Raise UnevenError if reads, steps, allreduces or errors are not as predicted."""
        expected = self.expected
        for rank, samples in enumerate(self.trained.ranks):
            expected_samples = expected.trained.ranks[rank]
            if samples.size != expected_samples.size:
                difference = f"{samples.size} samples, not on the {expected_samples.size} predicted"
                raise UnevenError(f"rank {rank} trained on {difference}")
            if not np.array_equal(samples, expected_samples):
                index = int(np.flatnonzero(samples != expected_samples)[0])
                difference = (
                    f"sample {samples[index]} as its number {index}, not on the predicted {expected_samples[index]}"
                )
                raise UnevenError(f"rank {rank} trained on {difference}")
        num_steps = len(expected.scale)  # it has an entry for each step
        if len(self.gradients) != num_steps:
            raise UnevenError(f"there were {len(self.gradients)} steps, not {num_steps}")
        for rank, counts in enumerate(self.counts):
            expected_counts = expected.counts[rank]
            allowed = [expected_counts.gradients]
            if rank in self.stuck:  # perhaps in a broadcast of the forward pass, so that no allreduce followed
                allowed.append(num_steps)
            if counts.gradients not in allowed:
                difference = f"{counts.gradients} steps' gradients, not {expected_counts.gradients}"
                raise UnevenError(f"rank {rank} helped to reduce {difference}")
        # A module with buffers needs more of Join's own messages than predicted, but as many on each rank.
        if len({counts.words for counts in self.counts}) > 1:
            raise UnevenError(f"ranks should exchange as many words each, but: {self.counts}")
        if self._failed != expected.failed:
            raise UnevenError(f"errors came to ranks {self._failed}, not to {expected.failed}")


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
    """Run DDP on real ranks that read the batches of `epoch` from an IterableDataset, and record each rank.

    `handling` is as for `simulate`. `losses_fn` returns one loss per sample; a rank averages them over its batch. The
    module is never updated, so the gradients of all steps belong to the same parameters. A step sleeps for `step_s`
    before its forward pass. With "hang", stuck ranks give up after `hang_s`.

    Raises ValueError if an argument is invalid, or if the module has at most 8 bytes of parameters, whose gradient
    cannot be distinguished from Join's own messages; RankError if a rank fails or has not ended after `timeout_s`.

    >>> from rankscope.train.uneven import files_epoch
    >>> def losses(outputs, targets):
    ...     return (outputs - targets).square().sum(dim=1)
    >>> both = torch.randn(6, 2), torch.randn(6, 1)
    >>> run = measure(nn.Linear(2, 1), *both, files_epoch([2, 4], 2, batch_size=1), losses)
    >>> run.check()
    >>> [counts.gradients for counts in run.counts]
    [4, 4]
    """
    task = TrainingTask(module, inputs, targets, epoch, losses_fn, step_s, hang_s)
    way = HandlingWay(handling, truth("divide_by_initial_world_size", divide_by_initial_world_size))
    own_batches = batches_by_rank(epoch)
    steps_by_rank(own_batches, handling)  # raises errors before ranks are started
    records: list[_RankRecord] = launch(_train, len(own_batches), (task, way), timeout_s=timeout_s)
    timeline = Timeline.of([span for record in records for span in record.spans])
    return _uneven_run(epoch, way, records, split_waits(timeline))


class TrainingTask(msgspec.Struct, frozen=True, eq=False):
    """A module and its training data.

    A step sleeps for `step_s` before its forward pass. `hang_s` is how long a collective waits for a missing rank.
    """

    module: nn.Module
    inputs: Tensor
    targets: Tensor
    epoch: Assignment
    losses_fn: Losses
    step_s: float = 0.0
    hang_s: float = 1.0

    def __post_init__(self) -> None:
        check_field(self, "module", of_type, nn.Module)
        check_field(self, "inputs", of_type, Tensor)
        check_field(self, "targets", of_type, Tensor)
        check_field(self, "epoch", of_type, Assignment)
        check_field(self, "losses_fn", function, "of outputs and targets")
        check_field(self, "step_s", number, 0, 60)
        check_field(self, "hang_s", number, 0.1, 15)
        num_bytes = sum(parameter.nbytes for parameter in self.module.parameters() if parameter.requires_grad)
        if num_bytes <= _WORD_BYTES:  # a smaller allreduce is taken for one of Join's own
            raise ValueError(f"module must have more than {_WORD_BYTES} bytes of parameters to train, got {num_bytes}")
        for name, tensor in (("inputs", self.inputs), ("targets", self.targets)):
            if tensor.shape[:1] != (self.epoch.size,):
                wanted = f"a row for each of {self.epoch.size} samples"
                raise ValueError(f"{name} must be a tensor with {wanted}, got shape {tuple(tensor.shape)}")


class _RankRecord(NamedTuple):
    """One rank's record of an epoch."""

    trained: list[int]
    gradients: Vector
    counts: Counts
    spans: list[Span]
    error: str | None


def _uneven_run(epoch: Assignment, way: HandlingWay, records: Sequence[_RankRecord], timeline: Timeline) -> UnevenRun:
    """Combine the ranks' records of an epoch; UnevenError if they have different gradients."""
    longest = max((record.gradients for record in records), key=len)
    for rank, record in enumerate(records):
        if not np.array_equal(record.gradients, longest[: len(record.gradients)], equal_nan=True):
            raise UnevenError(f"rank {rank} has different gradients from the other ranks")
    trained = tuple(np.array(record.trained, dtype=np.int64) for record in records)
    return UnevenRun(
        epoch,
        way.handling,
        way.divide_by_initial_world_size,
        trained=replace(epoch, ranks=trained),
        gradients=longest,
        counts=tuple(record.counts for record in records),
        errors=tuple(record.error for record in records),
        timeline=timeline.shifted(-timeline.begin_s),
    )


def split_waits(timeline: Timeline) -> Timeline:
    """Split each allreduce at the arrival of the last rank: before that, earlier ranks waited.

    A rank without batches waits in its shadow, too: only the part after the last arrival is a shadow. Adjacent waits of
    a rank are merged.
    """
    last_arrival_s: dict[int, float] = {}  # by item, which is the step
    for span in timeline:
        if span.kind in _COLLECTIVE:
            last_arrival_s[span.item] = max(span.start_s, last_arrival_s.get(span.item, span.start_s))
    spans: list[Span] = []

    def add(span: Span) -> None:
        """Add a span, or make the one before it longer if both are waits of a rank in one step."""
        if span.kind == "wait" and spans and spans[-1][:_NUM_KEYS] == span[:_NUM_KEYS]:
            spans[-1] = spans[-1]._replace(stop_s=span.stop_s)
        else:
            spans.append(span)

    for span in sorted(timeline, key=lambda span: (span.rank, span.start_s)):
        if span.kind in _COLLECTIVE:
            arrival_s = last_arrival_s[span.item]  # not after the span: no allreduce ends before all ranks have come
            if span.start_s < arrival_s:
                add(span._replace(kind="wait", stop_s=arrival_s))
                span = span._replace(start_s=arrival_s)
        add(span)
    return Timeline.of(spans).named(lanes=(), kinds=KINDS)


# ---- in a rank


def _train(task: TrainingTask, way: HandlingWay) -> _RankRecord:
    """Train one epoch, and record it up to its end or to the error that ends it.

    A hang runs in its own process group, whose timeout is shorter than that of the launch.
    """
    handling = way.handling
    group = None
    if handling == "hang":
        group = dist.new_group(timeout=timedelta(seconds=task.hang_s))
    ddp = DistributedDataParallel(copy.deepcopy(task.module), process_group=group)
    join = Join(
        [ddp],
        enable=handling in ("join", "throw"),
        throw_on_early_termination=handling == "throw",
        divide_by_initial_world_size=way.divide_by_initial_world_size,
    )
    error = None
    trained: list[int] = []
    gradients: list[Vector] = []
    finished_s = math.inf
    batches = own_batches(task, handling)  # before collectives are recorded: for this, ranks make one, too
    dist.barrier()  # so that all ranks begin the first step together
    try:
        with recording() as recorder, join:
            for indices, inputs, targets in batches:
                recorder.item = len(gradients)
                with recorder.span("step"):
                    time.sleep(task.step_s)
                    ddp.zero_grad()
                    task.losses_fn(ddp(inputs), targets).mean().backward()  # type: ignore[no-untyped-call]
                trained += indices.tolist()
                gradients.append(gradient_of(ddp))
            finished_s = time.perf_counter()  # within Join, which shadows the steps of the other ranks at its exit
    except RuntimeError as caught:
        time.sleep(_LATE_S)
        error = caught
    ended_s = time.perf_counter()
    calls = _Calls.of(recorder.result(), ended_s)
    spans = _step_spans(calls, len(gradients)) + list(_shadow_spans(calls, len(gradients), finished_s))
    num_reduced = sum(span.kind in _COLLECTIVE for span in spans)
    if error is not None and handling == "hang":
        if not calls.unfinished_s.size:
            raise error
        num_reduced += calls.unfinished_s[0] in calls.gradients_s
        spans.append(calls.steps[-1]._replace(stop_s=calls.unfinished_s[0]))
        spans.append(calls.steps[-1]._replace(kind="wait", start_s=calls.unfinished_s[0]))
    elif error is not None and _JOIN_ENDS not in str(error):
        raise error
    return _RankRecord(
        trained,
        np.array(gradients).reshape(-1, gradient_of(ddp).size),  # two dimensions even without any step
        Counts(num_reduced, calls.words_s.size),
        spans,
        None if error is None else str(error),
    )


class _Calls(NamedTuple):
    """The steps that a rank has begun, and when it asked for collectives.

    `words_s` are those of Join's questions, `gradients_s` those of gradients, and `unfinished_s` all that have not
    ended.
    """

    steps: list[Span]
    words_s: Vector
    gradients_s: Vector
    unfinished_s: Vector

    @classmethod
    def of(cls, recorded: Recording, at_s: float) -> _Calls:
        """Sort what was recorded until `at_s`; a collective whose end is not known ends later."""
        timeline, num_bytes = recorded
        is_allreduce = np.array([span.kind == "allreduce" for span in timeline], dtype=bool)
        return cls(
            steps=[span._replace(lane=LANE) for span in timeline.select(kind="step")],
            words_s=timeline.start_s[is_allreduce & (num_bytes <= _WORD_BYTES)],
            gradients_s=timeline.start_s[is_allreduce & (num_bytes > _WORD_BYTES)],
            unfinished_s=timeline.start_s[timeline.stop_s > at_s],
        )


def _step_spans(calls: _Calls, num_steps: int) -> list[Span]:
    """Divide each completed step where it asked for the allreduce of its first gradients, which ends with the step."""
    spans = []
    for step in calls.steps[:num_steps]:
        reduced_s = calls.gradients_s[calls.gradients_s > step.start_s].min()
        spans.append(step._replace(stop_s=reduced_s))
        spans.append(step._replace(kind="allreduce", start_s=reduced_s))
    return spans


def _shadow_spans(calls: _Calls, item: int, finished_s: float) -> Iterator[Span]:
    """Yield the waits and shadows of a rank that has no batches left from `finished_s` on; `item` is the next step.

    A shadow begins with the first gradients, and ends when Join asks whether another step follows. The wait after the
    last shadow, for Join's final messages, is left out.
    """
    rank = dist.get_rank()
    while (calls.gradients_s > finished_s).any():
        begin_s = calls.gradients_s[calls.gradients_s > finished_s].min()
        end_s = calls.words_s[calls.words_s > begin_s].min()
        yield Span(rank, LANE, "wait", item, finished_s, begin_s)
        yield Span(rank, LANE, "shadow", item, begin_s, end_s)
        finished_s = end_s
        item += 1


class _RankStream(IterableDataset[tuple[int, Tensor, Tensor]]):
    """A stream of one rank's samples, of unknown length."""

    def __init__(self, task: TrainingTask, rank: int) -> None:
        self.task = task
        self.indices = task.epoch.ranks[rank]

    def __iter__(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        return ((index, self.task.inputs[index], self.task.targets[index]) for index in self.indices.tolist())


def own_batches(task: TrainingTask, handling: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Return this rank's batches; for "drop" and "pad", the ranks first agree on their number."""
    rank = dist.get_rank()
    assert task.epoch.loader is not None  # `_measure` has refused an epoch without one
    loader: Any = DataLoader(_RankStream(task, rank), batch_size=task.epoch.loader.batch_size)
    if handling not in ("drop", "pad"):
        return iter(loader)
    num_batches = torch.tensor(batches_by_rank(task.epoch)[rank])
    dist.all_reduce(num_batches, op=dist.ReduceOp.MIN if handling == "drop" else dist.ReduceOp.MAX)
    return islice(cycle(loader), int(num_batches))  # to pad, a rank goes on with its first batches
