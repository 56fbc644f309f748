"""A step of a pipeline on real ranks, by torch.distributed.pipelining."""

from __future__ import annotations

import time
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

from ...common.checks import of_type, one_of
from ...ranks.launcher import launch
from ...ranks.recorder import Recording, recording
from .model import pass_seconds
from .schedule import SCHEDULES, Pass, PipelineSchedule

_SAMPLES, _WIDTH = 4, 32  # of the float64 activations of a microbatch
MESSAGE_BYTES = _SAMPLES * _WIDTH * 8
_PASSES = {"F": "forward_one_chunk", "B": "backward_one_chunk", "W": "backward_weight_one_chunk"}  # torch's methods


def measure(schedule: PipelineSchedule, forward_s: float, backward_s: float, *, timeout_s: float = 60.0) -> Recording:
    """Record a step of a small model under torch's schedule of this name and these sizes, on as many Gloo ranks.

    A stage is a linear layer and a tanh; a message between stages has `MESSAGE_BYTES`. Each pass sleeps for the rest of
    its time, which is as for `simulate` by default, so more ranks than cores are no slower. Lane "compute" of the
    recording has that function's spans. Time 0 is the begin of the first pass. The step before this one is left out. In
    torch 2.11, "ZBVZeroBubble" and "DualPipeV" fail, because a rank would send to itself.

    Raises ValueError if an argument is invalid or the schedule is not one of torch's; RankError if a rank fails.

    >>> from rankscope.train.pipeline_parallel import build
    >>> timeline, num_bytes = measure(build("1F1B", 2, 3), 0.001, 0.001)
    >>> [f"{span.kind} {span.item}" for span in timeline.select(rank=1, lane="compute")]
    ['forward 0', 'backward 0', 'forward 1', 'backward 1', 'forward 2', 'backward 2']
    >>> [int(size) for span, size in zip(timeline, num_bytes) if span.rank == 0 and span.kind == "send"]
    [1024, 1024, 1024]
    """
    of_torch = tuple(name for name, kind in SCHEDULES.items() if kind.rows is None)
    one_of("schedule.name", of_type("schedule", schedule, PipelineSchedule).name, of_torch)
    seconds = pass_seconds(schedule, forward_s, backward_s, weights_share=0.5)
    by_rank = launch(_record_rank, len(schedule.ranks), (schedule, seconds), timeout_s=timeout_s)
    timeline, num_bytes = Recording.of_ranks(by_rank)
    return Recording(timeline.shifted(-timeline.select(lane="compute").begin_s), num_bytes)


def _record_rank(schedule: PipelineSchedule, seconds: dict[str, float]) -> Recording:
    own = schedule.stages[dist.get_rank()]
    stages = []
    for number in own:
        layer = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Tanh()).double()
        stages.append(PipelineStage(layer, number, schedule.num_stages, torch.device("cpu")))
    torch_class = get_schedule_class(schedule.name)
    takes_one_stage = issubclass(torch_class, PipelineScheduleSingle)
    torchs = torch_class(
        stages[0] if takes_one_stage else stages, schedule.num_microbatches, loss_fn=nn.functional.mse_loss
    )
    samples = torch.ones(schedule.num_microbatches * _SAMPLES, _WIDTH, dtype=torch.float64)
    args = [samples] if 0 in own else []
    target = samples if schedule.num_stages - 1 in own else None
    torchs.step(*args, target=target)  # exchanges the shapes of activations, too
    with recording() as recorder:

        def timed(stage: Any, kind: str, run_pass: Any, microbatch: int, *args: Any, **options: Any) -> Any:
            """Record a pass, and let it last until its time is over."""
            if not options.get("full_backward", True):
                kind = "I"
            recorder.item = microbatch
            with recorder.span(schedule.kind_of(dist.get_rank(), Pass(kind, stage.stage_index, microbatch))):
                stop_s = time.perf_counter() + seconds[kind]
                result = run_pass(microbatch, *args, **options)
                time.sleep(max(0.0, stop_s - time.perf_counter()))
            return result

        for stage, (kind, name) in product(stages, _PASSES.items()):
            setattr(stage, name, partial(timed, stage, kind, getattr(stage, name)))
        dist.barrier()  # so that all ranks begin together
        torchs.step(*args, target=target)
    return recorder.result()
