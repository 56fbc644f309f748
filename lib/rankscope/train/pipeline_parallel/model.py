"""The timeline, the bubble and the traffic of a pipeline's schedule."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from ...cluster import Link
from ...common.checks import is_scalar, number, of_type
from ...timeline import Tape, Timeline
from .schedule import FORWARD, Action, PipelineSchedule, StagePass, in_order, verify

Seconds: TypeAlias = float | Sequence[float]  # on each rank, or on each stage


def simulate(
    schedule: PipelineSchedule,
    forward_s: Seconds,
    backward_s: Seconds,
    link: Link | None = None,
    activation_bytes: float = 0,
) -> Timeline:
    """Simulate a step and return its timeline: passes on lane "compute", messages on lane "send".

    The item of a span is the microbatch.

    `forward_s` and `backward_s` are the time of a microbatch on a rank, divided equally among the rank's chunks, or a
    sequence with the time on each stage. A pass begins when its rank is free and its input has arrived. Without a
    `link`, inputs arrive at once. With one, a message of `activation_bytes` takes α + m/B each way, during which ranks
    continue to compute, and a rank sends one message at a time. Passes of chunk c > 0 are of kind "forward c" and
    "backward c".

    Raises PipelineError if the schedule does not `verify`; ValueError if a time is negative or their number is wrong.

    >>> from rankscope.train.pipeline_parallel import build
    >>> step = simulate(build("one_f_one_b", 4, 8), forward_s=1, backward_s=2)
    >>> step.makespan_s, step.select(rank=0).busy_s  # 3/11 of the step is bubble
    (33.0, 24.0)
    """
    verify(schedule)
    forward = stage_seconds("forward_s", forward_s, schedule)
    backward = stage_seconds("backward_s", backward_s, schedule)
    num_bytes = number("activation_bytes", activation_bytes, 0)
    message_s = None if link is None else of_type("link", link, Link).seconds(num_bytes)
    tape = _play(schedule, forward, backward, message_s)
    return tape.timeline().named(lanes=("compute",), kinds=("forward", "backward"))


def simulated_bubble(schedule: PipelineSchedule, forward: Any = 1, backward: Any = 2) -> Fraction:
    """Return the share of the step in which ranks are idle, as an exact fraction, if messages take no time.

    Times are ints, Fractions or floats in any unit, otherwise as for `simulate`. If stages differ, it is the mean over
    ranks. Raises ValueError if no stage takes any time.

    >>> from fractions import Fraction
    >>> from rankscope.train.pipeline_parallel import bubble_share, build
    >>> sizes = "interleaved_1f1b", 4, 8, 2
    >>> simulated_bubble(build(*sizes), Fraction(1, 3), 1), bubble_share(*sizes)
    (Fraction(3, 19), Fraction(3, 19))
    """
    verify(schedule)
    forward_times = _stage_times("forward", forward, schedule)
    backward_times = _stage_times("backward", backward, schedule)
    tape = _play(schedule, forward_times, backward_times, message_time=None)
    step_time: Any = max(tape.free_s.values())
    if not step_time:
        raise ValueError(f"forward and backward must take time on some stage, got {forward!r} and {backward!r}")
    busy_time: Any = sum(span.stop_s - span.start_s for span in tape.spans)
    return 1 - Fraction(busy_time, schedule.num_ranks * step_time)


def traffic(schedule: PipelineSchedule, activation_bytes: float) -> tuple[float, ...]:
    """Return the bytes that each rank sends in a step. Messages have the same size forward and backward.

    `activation_bytes` is the size of one microbatch's activations between two stages. All ranks together send
    2·m·(p·v-1) times this size, independent of the number of parameters. A ring allreduce of Ψ bytes of gradients sends
    2(p-1)·Ψ.

    >>> from rankscope.train.pipeline_parallel import build
    >>> traffic(build("gpipe", 4, 8), 100)
    (800.0, 1600.0, 1600.0, 800.0)
    """
    verify(schedule)
    activation_bytes = number("activation_bytes", activation_bytes, 0)
    sent_bytes = []
    for rank, row in enumerate(schedule.actions):
        num_messages = sum(_is_sent(schedule, rank, action) for action in row)
        sent_bytes.append(activation_bytes * num_messages)
    return tuple(sent_bytes)


def stage_seconds(name: str, seconds: Seconds, schedule: PipelineSchedule) -> tuple[float, ...]:
    """Return the seconds of each stage, from an argument of `simulate`."""
    return tuple(float(time) for time in _stage_times(name, seconds, schedule))


def kind_of(action: Action) -> str:
    """Return the kind of an action's span in a Timeline."""
    name = "forward" if action.kind == FORWARD else "backward"
    if action.chunk:
        return f"{name} {action.chunk}"
    return name


def _play(
    schedule: PipelineSchedule, forward: Sequence[Any], backward: Sequence[Any], message_time: Any | None
) -> Tape:
    """Let all passes run; exact if times are Fractions. `forward` and `backward` have the time on each stage.

    If `message_time` is None, results are at once where they are needed.
    """
    tape = Tape()
    arrivals: dict[StagePass, Any] = {}  # when the input of each pass is on its rank
    for rank, action in in_order(schedule):
        stage = schedule.stage(rank, action)
        # Nothing arrives at the first stage forward, nor at the last one backward: its own forward made the loss.
        arrival = arrivals.pop(StagePass(stage, action.kind, action.microbatch), 0)
        time = forward[stage] if action.kind == FORWARD else backward[stage]
        available = tape.add(rank, "compute", kind_of(action), action.microbatch, time, after_s=arrival)
        if message_time is not None and _is_sent(schedule, rank, action):
            available = tape.add(rank, "send", "send", action.microbatch, message_time, after_s=available)
        arrivals[StagePass(_next_stage(stage, action), action.kind, action.microbatch)] = available
    return tape


def _next_stage(stage: int, action: Action) -> int:
    """The stage that needs the result; there is none of this number after the last pass forward or backward."""
    if action.kind == FORWARD:
        return stage + 1
    return stage - 1


def _is_sent(schedule: PipelineSchedule, rank: int, action: Action) -> bool:
    """Whether the result of a pass goes to another rank."""
    next_stage = _next_stage(schedule.stage(rank, action), action)
    return 0 <= next_stage < schedule.num_stages and next_stage % schedule.num_ranks != rank


def _stage_times(name: str, times: Any, schedule: PipelineSchedule) -> list[Fraction]:
    """The time of each stage, either given one by one or as the time of a rank, divided equally among its chunks."""

    def fraction(time: Any) -> Fraction:
        """Return a time without rounding. Raises ValueError unless it is a number of at least 0."""
        if isinstance(time, Fraction) and time >= 0:
            return time
        return Fraction(number(name, time, 0))

    num_stages = schedule.num_stages
    if is_scalar(times) or isinstance(times, Fraction):
        return [fraction(times) / schedule.num_chunks] * num_stages
    is_sequence = isinstance(times, Sequence | np.ndarray) and not isinstance(times, str)
    if not is_sequence or len(times) != num_stages:
        raise ValueError(f"{name} must be a number or one for each of {num_stages} stages, got {times!r}")
    return [fraction(time) for time in times]
