"""Steps of GPipe, 1F1B or interleaved 1F1B on real ranks, through torch.distributed.pipelining."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.nn.functional import mse_loss

from ...common.checks import number, of_type, whole
from ...common.frozen import evolve, frozen
from ...ranks.launcher import launch
from ...timeline import Span, Timeline
from ..gradients import apart, flat
from .model import Seconds, kind_of, stage_seconds
from .schedule import BACKWARD, FORWARD, MOST_CHUNKS, MOST_RANKS, PIPELINES, Action, PipelineSchedule, build

_MARGIN_NS = 20_000_000  # from when the ranks agree on a start to the start
_SAMPLES = 4  # of a microbatch


@frozen(eq=False)
class PipelineRun:
    """One step on real ranks: what ran when, the gradients of all layers, the bytes that each rank sent.

    `executed` are the passes as the ranks made them, in their order; `gradients` has a tensor a parameter, those of
    the first layer first, and `whole_batch` those of one process that computes the whole batch at once.
    """

    executed: PipelineSchedule
    timeline: Timeline
    sent_bytes: tuple[int, ...]
    gradients: tuple[Tensor, ...]
    whole_batch: tuple[Tensor, ...]

    @property
    def gradients_off(self) -> float:
        """The largest difference of any element of the gradients, as a share of the largest element there is."""
        return apart(flat(self.gradients), flat(self.whole_batch))


def make_model(num_stages: int, width: int) -> nn.Sequential:
    """Return the model that `measure` cuts: a layer of `width` by `width` and a tanh for each stage, in float64.

    >>> [tuple(p.shape) for p in make_model(2, 3).parameters()]
    [(3, 3), (3,), (3, 3), (3,)]
    """
    width = whole("width", width, 1)
    layers = [
        nn.Sequential(nn.Linear(width, width, dtype=torch.float64), nn.Tanh())
        for _ in range(whole("num_stages", num_stages, 1, MOST_RANKS * MOST_CHUNKS))
    ]
    model = nn.Sequential(*layers)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / width**0.5)
    return model


def measure(
    schedules: Sequence[PipelineSchedule],
    forward_s: Seconds = 0.0,
    backward_s: Seconds = 0.0,
    width: int = 32,
    num_steps: int = 1,
    timeout_s: float = 60.0,
) -> list[PipelineRun]:
    """Run steps of `make_model` by each of these schedules, on as many processes on Gloo as they have ranks.

    Of `num_steps` steps per schedule the fastest is returned, after one that is not recorded. A microbatch is of 4
    samples, so that 4·width float64 cross a cut. Each pass sleeps for the rest of its time, given as to `simulate`, so
    that more ranks than cores are no slower. The timelines have that function's lane "compute" and its kinds, and
    count from the instant at which all ranks start.

    ValueError for bad input, schedules of different numbers of ranks, ones that torch does not have (it has those of
    `PIPELINES`), and what it refuses: 1F1B of fewer microbatches than ranks, interleaved 1F1B of one chunk. RankError
    for what fails on a rank.

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
    for one in schedules:
        _check_torch_has(one)
        if one.num_ranks != schedules[0].num_ranks:
            raise ValueError(f"schedules must be of as many ranks, got {schedules[0].num_ranks} and {one.num_ranks}")
    width, num_steps = whole("width", width, 1), whole("num_steps", num_steps, 1)
    plans = [
        _TimedSchedule(one, stage_seconds("forward_s", forward_s, one), stage_seconds("backward_s", backward_s, one))
        for one in schedules
    ]
    timeout_s = number("timeout_s", timeout_s, above=0)
    by_rank = launch(_run_rank, schedules[0].num_ranks, (plans, width, num_steps), timeout_s=timeout_s)
    return [_quickest(one, width, ranks) for one, ranks in zip(schedules, zip(*by_rank, strict=True), strict=True)]


def _check_torch_has(schedule: PipelineSchedule) -> None:
    of_type("schedules", schedule, PipelineSchedule)
    name, sizes = schedule.name, (schedule.num_ranks, schedule.num_microbatches, schedule.num_chunks)
    if name not in PIPELINES or build(name, *sizes) != schedule:
        raise ValueError(f"schedules must be of {', '.join(PIPELINES)}, which torch has, got {name} as written")
    if name == "one_f_one_b":
        whole("num_microbatches of torch's Schedule1F1B", schedule.num_microbatches, schedule.num_ranks)
    if name == "interleaved_1f1b":
        whole("num_chunks of torch's ScheduleInterleaved1F1B", schedule.num_chunks, 2)


class _TimedSchedule(NamedTuple):
    schedule: PipelineSchedule
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]


class _StepRecord(NamedTuple):
    """What one rank did in a step."""

    start_ns: int
    passes: list[tuple[Action, int, int]]
    sent_bytes: list[int]


def _quickest(
    planned: PipelineSchedule, width: int, by_rank: Sequence[tuple[list[_StepRecord], list[list[Tensor]]]]
) -> PipelineRun:
    """Put together what the ranks saw of the fastest step of one schedule."""

    def took_ns(ranks: tuple[_StepRecord, ...]) -> int:
        return max(stop_ns for one in ranks for _, _, stop_ns in one.passes) - ranks[0].start_ns

    step = min(zip(*(steps for steps, _ in by_rank), strict=True), key=took_ns)
    begin_ns = step[0].start_ns
    spans = [
        Span(rank, "compute", kind_of(action), action.microbatch, (start - begin_ns) / 1e9, (stop - begin_ns) / 1e9)
        for rank, one in enumerate(step)
        for action, start, stop in one.passes
    ]
    model = make_model(planned.num_stages, width)
    inputs, targets = _batch(planned, width)
    mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
    passes = tuple(tuple(action for action, _, _ in one.passes) for one in step)
    return PipelineRun(
        executed=evolve(planned, actions=passes),
        timeline=Timeline.of(spans).named(("compute",), ("forward", "backward")),
        sent_bytes=tuple(sum(one.sent_bytes) for one in step),
        # chunk by chunk, and in each rank by rank: the order of the stages
        gradients=tuple(one for chunk in range(planned.num_chunks) for _, own in by_rank for one in own[chunk]),
        whole_batch=tuple(parameter.grad for parameter in model.parameters() if parameter.grad is not None),
    )


def _batch(planned: PipelineSchedule, width: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (2, planned.num_microbatches * _SAMPLES, width)
    inputs, targets = torch.randn(shape, generator=generator, dtype=torch.float64)
    return inputs, targets


# ---- in a rank


class _RecordedStage(PipelineStage):
    """A stage whose passes take the planned time, and which notes them and the bytes it sends."""

    def __init__(self, model: nn.Sequential, plan: _TimedSchedule, chunk: int) -> None:
        place = chunk * plan.schedule.num_ranks + dist.get_rank()
        super().__init__(model[place], place, plan.schedule.num_stages, torch.device("cpu"))
        self.chunk, self.seconds = chunk, {FORWARD: plan.forward_s[place], BACKWARD: plan.backward_s[place]}
        self.step: _StepRecord | None = None

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self._recorded(Action(FORWARD, fwd_chunk_id, self.chunk)):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self._recorded(Action(BACKWARD, bwd_chunk_id, self.chunk)):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._counted(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._counted(super().get_bwd_send_ops(bwd_chunk_id))

    def _counted(self, sends: list[dist.P2POp]) -> list[dist.P2POp]:
        if self.step is not None:
            self.step.sent_bytes.extend(one.tensor.numel() * one.tensor.element_size() for one in sends)
        return sends

    @contextmanager
    def _recorded(self, action: Action) -> Iterator[None]:
        """Let a pass last until its time is over, and note it."""
        start_ns = time.perf_counter_ns()
        yield
        if self.step is not None:
            time.sleep(max(0.0, self.seconds[action.kind] - (time.perf_counter_ns() - start_ns) / 1e9))
            self.step.passes.append((action, start_ns, time.perf_counter_ns()))


def _run_rank(
    plans: Sequence[_TimedSchedule], width: int, num_steps: int
) -> list[tuple[list[_StepRecord], list[list[Tensor]]]]:
    return [_run_plan(plan, width, num_steps) for plan in plans]


def _run_plan(plan: _TimedSchedule, width: int, num_steps: int) -> tuple[list[_StepRecord], list[list[Tensor]]]:
    """One rank's recorded steps, and its gradients by chunk."""
    planned, rank = plan.schedule, dist.get_rank()
    model = make_model(planned.num_stages, width)
    stages = [_RecordedStage(model, plan, chunk) for chunk in range(planned.num_chunks)]
    schedule: Any
    if planned.name == "interleaved_1f1b":
        schedule = ScheduleInterleaved1F1B(list(stages), planned.num_microbatches, loss_fn=mse_loss)
    else:
        kind = ScheduleGPipe if planned.name == "gpipe" else Schedule1F1B
        schedule = kind(stages[0], planned.num_microbatches, loss_fn=mse_loss)
    inputs, targets = _batch(planned, width)
    steps = []
    for number_of_step in range(num_steps + 1):
        step = _StepRecord(_agreed_start_ns(), [], [])
        for stage in stages:
            stage.submod.zero_grad()
            stage.step = step if number_of_step else None  # the first is not recorded
        schedule.step(*([inputs] if rank == 0 else []), target=targets if rank == planned.num_ranks - 1 else None)
        steps.append(step)
    gradients = [[p.grad for p in stage.submod.parameters() if p.grad is not None] for stage in stages]
    return steps[1:], gradients


def _agreed_start_ns() -> int:
    """Wait for the instant that all ranks agree on, and return it."""
    start = torch.tensor([time.perf_counter_ns() + _MARGIN_NS])
    dist.all_reduce(start, op=dist.ReduceOp.MAX)
    time.sleep(max(0.0, (int(start) - time.perf_counter_ns()) / 1e9))
    return int(start)
