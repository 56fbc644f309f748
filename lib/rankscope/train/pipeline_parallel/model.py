"""The timeline, the bubble and the traffic of a pipeline's schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...cluster import Link
from ...common.checks import is_scalar, number, of_type
from ...timeline import Span, Timeline
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
    message_s = 0.0 if link is None else of_type("link", link, Link).seconds(num_bytes)
    spans = []
    for timed in _passes(schedule, forward, backward, message_s):
        microbatch = timed.action.microbatch
        spans.append(Span(timed.rank, "compute", kind_of(timed.action), microbatch, timed.start, timed.stop))
        if link is not None and timed.message is not None:
            spans.append(Span(timed.rank, "send", "send", microbatch, timed.message.start, timed.message.stop))
    return Timeline.of(spans).named(lanes=("compute",), kinds=("forward", "backward"))


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
    passes = list(_passes(schedule, forward_times, backward_times, message_time=0))
    step_time: Fraction = max(timed.stop for timed in passes)
    if not step_time:
        raise ValueError(f"forward and backward must take time on some stage, got {forward!r} and {backward!r}")
    busy_time: Fraction = sum(timed.stop - timed.start for timed in passes)
    return 1 - busy_time / (schedule.num_ranks * step_time)


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


class _PipelineMessage(NamedTuple):
    start: Any
    stop: Any


class _TimedPass(NamedTuple):
    """A pass and the message with its result, None if the result stays on the rank."""

    rank: int
    action: Action
    start: Any
    stop: Any
    message: _PipelineMessage | None


def _passes(
    schedule: PipelineSchedule, forward: Sequence[Any], backward: Sequence[Any], message_time: Any
) -> Iterator[_TimedPass]:
    """Yield when each pass runs; exact if times are Fractions. `forward` and `backward` have the time on each stage."""
    rank_free = [0] * schedule.num_ranks  # when each rank has ended its last pass
    port_free = [0] * schedule.num_ranks  # when each rank has sent its last message
    arrivals: dict[StagePass, Any] = {}  # when the input of each pass is on its rank
    for rank, action in in_order(schedule):
        stage = schedule.stage(rank, action)
        # Nothing arrives at the first stage forward, nor at the last one backward: its own forward made the loss.
        arrival = arrivals.pop(StagePass(stage, action.kind, action.microbatch), 0)
        start = max(rank_free[rank], arrival)
        stop = start + (forward[stage] if action.kind == FORWARD else backward[stage])
        rank_free[rank] = stop
        message = None
        available = stop  # when the result is where the next pass needs it
        if _is_sent(schedule, rank, action):
            send_start = max(stop, port_free[rank])
            available = send_start + message_time
            port_free[rank] = available
            message = _PipelineMessage(send_start, available)
        arrivals[StagePass(_next_stage(stage, action), action.kind, action.microbatch)] = available
        yield _TimedPass(rank, action, start, stop, message)


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
