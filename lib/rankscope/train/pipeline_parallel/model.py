"""A pipeline's schedule: whether it can run, its timeline, its bubble and its traffic."""

from __future__ import annotations

from collections import Counter, deque
from itertools import chain, product

import numpy as np

from ...common.checks import number, of_type
from ...timeline import Tape, Timeline
from .schedule import PARTS, PipelineError, PipelineSchedule


def pass_seconds(
    schedule: PipelineSchedule, forward_s: float, backward_s: float, weights_share: float
) -> dict[str, float]:
    """Return the seconds of each kind of pass through one stage, from arguments of `simulate`."""
    share = number("weights_share", weights_share, 0, 1)
    stages_per_rank = schedule.num_stages / len(schedule.ranks)
    forward_s = number("forward_s", forward_s, above=0) / stages_per_rank
    backward_s = number("backward_s", backward_s, 0) / stages_per_rank
    return {"F": forward_s, "I": (1 - share) * backward_s, "W": share * backward_s, "B": backward_s}


def simulate(
    schedule: PipelineSchedule,
    forward_s: float,
    backward_s: float,
    *,
    weights_share: float = 0.5,
    message_s: float = 0.0,
) -> Timeline:
    """Simulate a step and return its timeline: passes on lane "compute", messages on lane "send".

    `forward_s` and `backward_s` are the times of a microbatch on a rank, divided equally among the rank's stages. If a
    schedule splits backward passes, their part for the weights takes `weights_share` of them. A pass begins when its
    rank is free and its input has arrived. A message to the next rank takes `message_s`, such as
    ``Link(alpha_s, bytes_per_s).seconds(num_bytes)``, during which ranks continue to compute; a rank sends one message
    at a time. Kinds of spans are "forward", "backward" (whole, or its part for the inputs) and "weights", with the
    number of the rank's chunk if it is not the first; the item is the microbatch.

    Raises PipelineError if the schedule does not `verify`; ValueError if a number is out of range.

    >>> from rankscope.train.pipeline_parallel import build
    >>> step = simulate(build("1F1B", 4, 8), forward_s=1, backward_s=2)
    >>> step.makespan_s, step.select(rank=0).busy_s  # 3/11 of the step is bubble
    (33.0, 24.0)
    """
    verify(schedule)
    seconds = pass_seconds(schedule, forward_s, backward_s, weights_share)
    return _play(schedule, seconds, number("message_s", message_s, 0))


def verify(schedule: PipelineSchedule) -> None:
    """Raise PipelineError unless each microbatch goes once through each stage, forward and back, without a deadlock.

    Messages are assumed to be sent as soon as they are computed and buffered until they are received.

    >>> verify(PipelineSchedule.from_text("mine\\n0: 0F0 0B0\\n1: 1B0 1F0"))
    Traceback (most recent call last):
    rankscope.train.pipeline_parallel.schedule.PipelineError: ranks wait forever: rank 0 in 0B0, rank 1 in 1B0
    """
    of_type("schedule", schedule, PipelineSchedule)
    stages = range(schedule.num_stages)
    if sorted(chain(*schedule.stages)) != list(stages):
        raise PipelineError(f"each stage must be on one rank, but the ranks have {schedule.stages}")
    num_runs = Counter((one.stage, part, one.microbatch) for one in chain(*schedule.ranks) for part in PARTS[one.kind])
    for part in product(stages, "FIW", range(schedule.num_microbatches)):
        if num_runs[part] != 1:
            stage, name, microbatch = part
            raise PipelineError(f"{stage}{name}{microbatch} runs {num_runs[part]} times (a B is an I and a W)")
    _play(schedule, dict.fromkeys(PARTS, 0.0), message_s=0.0)


def _play(schedule: PipelineSchedule, seconds: dict[str, float], message_s: float) -> Timeline:
    """Let each rank run its passes in order, each as soon as its input is there.

    Raises PipelineError if ranks wait for one another forever.
    """
    tape = Tape()
    # When the input of a pass has arrived, by its stage, its first part and its microbatch.
    input_s = {(0, "F", microbatch): 0.0 for microbatch in range(schedule.num_microbatches)}
    remaining = [deque(row) for row in schedule.ranks]
    num_played = -1
    while num_played < len(tape.spans):
        num_played = len(tape.spans)
        for rank, row in enumerate(remaining):
            while row and row[0].input_key in input_s:
                one = row.popleft()
                kind = schedule.kind_of(rank, one)
                end_s = tape.add(rank, "compute", kind, one.microbatch, seconds[one.kind], input_s[one.input_key])
                arrival_s = end_s
                if message_s and schedule.is_sent(rank, one):
                    arrival_s = tape.add(rank, "send", "send", one.microbatch, message_s, end_s)
                if one.kind == "F":
                    input_s[one.stage + 1, "F", one.microbatch] = arrival_s
                    if one.stage == schedule.num_stages - 1:  # the loss is there
                        input_s[one.stage, "I", one.microbatch] = end_s
                elif one.kind != "W":
                    input_s[one.stage - 1, "I", one.microbatch] = arrival_s
                    input_s[one.stage, "W", one.microbatch] = end_s
    stuck = [f"rank {rank} in {row[0]}" for rank, row in enumerate(remaining) if row]
    if stuck:
        raise PipelineError(f"ranks wait forever: {', '.join(stuck)}")
    return tape.timeline()


def bubble_share(timeline: Timeline) -> float:
    """Return the largest share of a rank's time, from its first pass to the end of its last, in which it is idle.

    With p ranks, m microbatches and stages that take equally long, it is (p-1)/(m+p-1) for GPipe and 1F1B. That is a
    share of the step; as a share of the time without any bubble, as in Narayanan et al., 2021, it is (p-1)/m. The
    timeline may be simulated or measured.

    >>> from rankscope.train.pipeline_parallel import build
    >>> round(11 * bubble_share(simulate(build("GPipe", 4, 8), 1, 2)), 6)
    3.0
    """
    passes = of_type("timeline", timeline, Timeline, "simulate").select(lane="compute")
    by_rank = [passes.select(rank=rank) for rank in np.unique(passes.rank)]
    return max(1 - own.busy_s / own.makespan_s for own in by_rank)


def messages(schedule: PipelineSchedule) -> list[int]:
    """Return how many messages each rank sends in a step: the activations of one microbatch, or their gradients.

    With s stages, of which no two neighbours are on one rank, all ranks together send 2·m·(s-1), independent of the
    number of parameters. A ring allreduce of Ψ bytes of gradients sends 2(p-1)·Ψ.

    >>> from rankscope.train.pipeline_parallel import build
    >>> messages(build("GPipe", 4, 8))
    [8, 16, 16, 8]
    """
    rows = of_type("schedule", schedule, PipelineSchedule, "build").ranks
    return [sum(schedule.is_sent(rank, one) for one in row) for rank, row in enumerate(rows)]
