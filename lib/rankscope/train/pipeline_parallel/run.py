"""Steps of GPipe, 1F1B or interleaved 1F1B on real ranks, through torch.distributed.pipelining."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.nn.functional import mse_loss

from ...common.checks import number, of_type, whole
from ...ranks.launcher import launch
from ...ranks.recorder import RankRecorder, Recording, recording
from ...timeline import Timeline
from ..gradients import flat, relative_difference
from .model import Seconds, kind_of, stage_seconds
from .schedule import BACKWARD, FORWARD, MOST_CHUNKS, MOST_RANKS, PIPELINES, Action, PipelineSchedule, build

_SAMPLES = 4  # in a microbatch


class PipelineRun(msgspec.Struct, frozen=True, eq=False):
    """One step on real ranks: its timeline, the gradients of all layers, and the bytes that each rank sent.

    `executed` has the passes in the order in which the ranks ran them. `gradients` has a tensor for each parameter,
    from the first layer to the last. `whole_batch` has those of one process that computes the whole batch at once.
    """

    executed: PipelineSchedule
    timeline: Timeline
    sent_bytes: tuple[int, ...]
    gradients: tuple[Tensor, ...]
    whole_batch: tuple[Tensor, ...]

    @property
    def gradients_off(self) -> float:
        """The largest difference between elements of the gradients, as a share of the largest element."""
        return relative_difference(flat(self.gradients), flat(self.whole_batch))


def make_model(num_stages: int, width: int) -> nn.Sequential:
    """Return the model of `measure`, with a layer of `width` by `width` and a tanh per stage, in float64.

    The parameters are drawn with a fixed seed, so all ranks make the same model.

    >>> [tuple(p.shape) for p in make_model(2, 3).parameters()]
    [(3, 3), (3,), (3, 3), (3,)]
    """
    width = whole("width", width, 1)
    layers = []
    for _ in range(whole("num_stages", num_stages, 1, MOST_RANKS * MOST_CHUNKS)):
        layers.append(nn.Sequential(nn.Linear(width, width, dtype=torch.float64), nn.Tanh()))
    model = nn.Sequential(*layers)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for parameter in model.parameters():
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(values / width**0.5)  # sums over `width` inputs then do not saturate tanh
    return model


def measure(
    schedules: Sequence[PipelineSchedule],
    forward_s: Seconds = 0.0,
    backward_s: Seconds = 0.0,
    width: int = 32,
    num_steps: int = 1,
    timeout_s: float = 60.0,
) -> list[PipelineRun]:
    """Run steps of `make_model` with each of these schedules, on as many processes on Gloo as they have ranks.

    The result of each schedule is the fastest of `num_steps` steps, after one that is not recorded. A microbatch has 4
    samples, so a message has 4·width float64. Each pass sleeps for the rest of its time, which is as for `simulate`, so
    that more ranks than cores are no slower. The timelines have that function's lane "compute" and its kinds. Their
    time 0 is the instant at which all ranks start.

    Raises ValueError if an argument is invalid, if schedules have different numbers of ranks, or if torch does not have
    a schedule. It has those of `PIPELINES`, except 1F1B with fewer microbatches than ranks and interleaved 1F1B with
    one chunk. Raises RankError if a rank fails.

    >>> from rankscope.train.pipeline_parallel import build
    >>> (run,) = measure([build("one_f_one_b", 2, 3)])
    >>> print(run.executed.to_text())
    one_f_one_b ranks=2 microbatches=3 chunks=1
    0: 0F0 0F1 0B0 0F2 0B1 0B2
    1: 1F0 1B0 1F1 1B1 1F2 1B2
    <BLANKLINE>
    >>> run.gradients_off < 1e-12, run.sent_bytes
    (True, (3072, 3072))
    """
    if not isinstance(schedules, Sequence) or not schedules:
        raise ValueError(f"schedules must be one or more schedules, got {schedules!r}")
    for schedule in schedules:
        _check_torch_has(schedule)
    num_ranks = schedules[0].num_ranks
    for schedule in schedules:
        if schedule.num_ranks != num_ranks:
            raise ValueError(f"schedules must be of as many ranks, got {num_ranks} and {schedule.num_ranks}")
    width = whole("width", width, 1)
    num_steps = whole("num_steps", num_steps, 1)
    plans = []
    for schedule in schedules:
        forward = stage_seconds("forward_s", forward_s, schedule)
        backward = stage_seconds("backward_s", backward_s, schedule)
        plans.append(_TimedSchedule(schedule, forward, backward))
    timeout_s = number("timeout_s", timeout_s, above=0)
    by_rank = launch(_run_rank, num_ranks, (plans, width, num_steps), timeout_s=timeout_s)
    by_schedule = zip(*by_rank, strict=True)
    return [_fastest(schedule, width, ranks) for schedule, ranks in zip(schedules, by_schedule, strict=True)]


def _check_torch_has(schedule: PipelineSchedule) -> None:
    """Raise ValueError unless torch has a schedule with these actions."""
    of_type("schedules", schedule, PipelineSchedule)
    name = schedule.name
    is_built = False
    if name in PIPELINES:
        is_built = schedule == build(name, schedule.num_ranks, schedule.num_microbatches, schedule.num_chunks)
    if not is_built:
        raise ValueError(f"schedules must be of {', '.join(PIPELINES)}, which torch has, got {name} as written")
    if name == "one_f_one_b":
        whole("num_microbatches of torch's Schedule1F1B", schedule.num_microbatches, schedule.num_ranks)
    if name == "interleaved_1f1b":
        whole("num_chunks of torch's ScheduleInterleaved1F1B", schedule.num_chunks, 2)


class _TimedSchedule(NamedTuple):
    """A schedule, and the seconds of a forward and of a backward pass on each of its stages."""

    schedule: PipelineSchedule
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]


class _RankSteps(NamedTuple):
    """The steps of one rank with one schedule, and its gradients by chunk."""

    steps: list[Recording]
    gradients: list[list[Tensor]]


def _fastest(planned: PipelineSchedule, width: int, ranks: Sequence[_RankSteps]) -> PipelineRun:
    """Combine the ranks' records of the fastest step of one schedule."""
    steps = [Recording.of_ranks(step) for step in zip(*(rank.steps for rank in ranks), strict=True)]
    recorded = min(steps, key=lambda step: step.timeline.select(lane="step").makespan_s)
    begin_s = recorded.timeline.select(lane="step").begin_s
    timeline = recorded.timeline.select(lane="compute").shifted(-begin_s)
    all_actions = chain.from_iterable(planned.actions)
    actions = {(kind_of(action), action.microbatch): action for action in all_actions}
    executed = []
    for rank in range(planned.num_ranks):
        executed.append(tuple(actions[span.kind, span.item] for span in timeline.select(rank=rank)))
    sent_bytes = [0] * planned.num_ranks
    for span, num_bytes in zip(*recorded, strict=True):
        if span.kind == "send":
            sent_bytes[span.rank] += int(num_bytes)
    gradients: list[Tensor] = []
    for chunk in range(planned.num_chunks):  # chunk by chunk, and of each chunk rank by rank: in the order of stages
        for rank_steps in ranks:
            gradients += rank_steps.gradients[chunk]
    return PipelineRun(
        executed=replace(planned, actions=tuple(executed)),
        timeline=Timeline.of(timeline).named(lanes=("compute",), kinds=("forward", "backward")),
        sent_bytes=tuple(sent_bytes),
        gradients=tuple(gradients),
        whole_batch=_whole_batch_gradients(planned, width),
    )


def _whole_batch_gradients(planned: PipelineSchedule, width: int) -> tuple[Tensor, ...]:
    """The gradients of the whole batch, computed at once in this process."""
    model = make_model(planned.num_stages, width)
    inputs, targets = _batch(planned, width)
    mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
    return tuple(parameter.grad for parameter in model.parameters() if parameter.grad is not None)


def _batch(planned: PipelineSchedule, width: int) -> tuple[Tensor, Tensor]:
    """The inputs and targets of a step, the same on every rank: a row of `width` numbers for each sample."""
    generator = torch.Generator().manual_seed(1)
    num_samples = planned.num_microbatches * _SAMPLES
    inputs, targets = torch.randn((2, num_samples, width), generator=generator, dtype=torch.float64)
    return inputs, targets


# ---- in a rank


class _TimedStage(PipelineStage):
    """A stage whose passes take the planned time, and are one span each."""

    def __init__(self, model: nn.Sequential, plan: _TimedSchedule, chunk: int) -> None:
        stage = chunk * plan.schedule.num_ranks + dist.get_rank()
        super().__init__(model[stage], stage, plan.schedule.num_stages, torch.device("cpu"))
        self.chunk = chunk
        self.seconds = {FORWARD: plan.forward_s[stage], BACKWARD: plan.backward_s[stage]}
        self.recorder: RankRecorder  # of the step

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self._timed(Action(FORWARD, fwd_chunk_id, self.chunk)):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self._timed(Action(BACKWARD, bwd_chunk_id, self.chunk)):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    @contextmanager
    def _timed(self, action: Action) -> Iterator[None]:
        """Let a pass last until its time is over."""
        self.recorder.item = action.microbatch
        with self.recorder.span(kind_of(action)):
            start_s = time.perf_counter()
            yield
            elapsed_s = time.perf_counter() - start_s
            time.sleep(max(0.0, self.seconds[action.kind] - elapsed_s))


def _run_rank(plans: Sequence[_TimedSchedule], width: int, num_steps: int) -> list[_RankSteps]:
    return [_run_plan(plan, width, num_steps) for plan in plans]


def _run_plan(plan: _TimedSchedule, width: int, num_steps: int) -> _RankSteps:
    """Run the steps of one schedule on this rank, after one that is left out."""
    planned = plan.schedule
    model = make_model(planned.num_stages, width)
    stages = [_TimedStage(model, plan, chunk) for chunk in range(planned.num_chunks)]
    schedule = _torch_schedule(planned, stages)
    inputs, targets = _batch(planned, width)
    # The first rank has the first stage, which reads the inputs. The last rank has the last stage, which has the loss.
    args = [inputs] if dist.get_rank() == 0 else []
    target = targets if dist.get_rank() == planned.num_ranks - 1 else None
    steps = []
    for _ in range(num_steps + 1):
        with recording() as recorder:
            for stage in stages:
                stage.submod.zero_grad()
                stage.recorder = recorder
            dist.barrier()  # so that all ranks begin together
            with recorder.span("step", lane="step"):
                schedule.step(*args, target=target)
        steps.append(recorder.result())
    # Every parameter has a gradient; the condition is for the type of `grad`.
    gradients = [[p.grad for p in stage.submod.parameters() if p.grad is not None] for stage in stages]
    return _RankSteps(steps[1:], gradients)


def _torch_schedule(planned: PipelineSchedule, stages: Sequence[_TimedStage]) -> Any:
    if planned.name == "interleaved_1f1b":
        return ScheduleInterleaved1F1B(list(stages), planned.num_microbatches, loss_fn=mse_loss)
    if planned.name == "gpipe":
        return ScheduleGPipe(stages[0], planned.num_microbatches, loss_fn=mse_loss)
    return Schedule1F1B(stages[0], planned.num_microbatches, loss_fn=mse_loss)
