"""When each pass of a pipeline's schedule runs, how much bubble there is, and what is sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...cluster import Link
from ...common.checks import is_scalar, number, of_type
from ...timeline import Span, Timeline
from .schedule import FORWARD, Action, PipelineSchedule, in_order, verify

Seconds: TypeAlias = float | Sequence[float]  # on each rank, or on each stage


def simulate(
    schedule: PipelineSchedule,
    forward_s: Seconds,
    backward_s: Seconds,
    link: Link | None = None,
    activation_bytes: float = 0,
) -> Timeline:
    """Return what each rank does when: lane "compute", a microbatch's number as item; and lane "send" where sent.

    `forward_s` and `backward_s` are what a microbatch takes on a rank, each of its chunks an equal part of it, or a
    sequence with what it takes on each stage. A pass begins when its rank is free and its input has come. Without a
    `link` that is at once; with one, a message of `activation_bytes` takes α + m/B each way, computing goes on
    meanwhile, and a rank sends one message at a time. Passes of chunk c > 0 are of kind "forward c" and "backward c".

    PipelineError for what `verify` refuses, ValueError for times below 0 and for too many or too few of them.

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
    for one in _passes(schedule, forward, backward, message_s):
        microbatch = one.action.microbatch
        spans.append(Span(one.rank, "compute", kind_of(one.action), microbatch, one.start, one.stop))
        if link is not None and one.sent is not None:
            spans.append(Span(one.rank, "send", "send", microbatch, *one.sent))
    return Timeline.of(spans).named(("compute",), ("forward", "backward"))


def simulated_bubble(schedule: PipelineSchedule, forward: Any = 1, backward: Any = 2) -> Fraction:
    """Return the share of the step that ranks stand idle, exactly, where messages take no time.

    Times are ints, Fractions or floats in any unit, otherwise as of `simulate`. Where stages differ it is the
    mean over ranks. ValueError where no stage takes any time.

    >>> from fractions import Fraction
    >>> from rankscope.train.pipeline_parallel import bubble_share, build
    >>> sizes = "interleaved_1f1b", 4, 8, 2
    >>> simulated_bubble(build(*sizes), Fraction(1, 3), 1), bubble_share(*sizes)
    (Fraction(3, 19), Fraction(3, 19))
    """
    verify(schedule)
    took = _exact("forward", forward, schedule), _exact("backward", backward, schedule)
    passes = list(_passes(schedule, *took, message=0))
    step = Fraction(max(one.stop for one in passes))
    if not step:
        raise ValueError(f"forward and backward must take time on some stage, got {forward!r} and {backward!r}")
    return 1 - Fraction(sum(one.stop - one.start for one in passes)) / (schedule.num_ranks * step)


def traffic(schedule: PipelineSchedule, activation_bytes: float) -> tuple[float, ...]:
    """Return the bytes that each rank sends in a step; what crosses a cut is as large forward as backward.

    `activation_bytes` is what one microbatch has at a cut between two stages. Over all ranks it is 2·m·(p·v-1) times
    that, however many parameters there are; a ring allreduce of Ψ bytes of gradients sends 2(p-1)·Ψ.

    >>> from rankscope.train.pipeline_parallel import build
    >>> traffic(build("gpipe", 4, 8), 100)
    (800.0, 1600.0, 1600.0, 800.0)
    """
    verify(schedule)
    activation_bytes = number("activation_bytes", activation_bytes, 0)
    return tuple(
        activation_bytes * sum(_leaves(schedule, rank, action) for action in row)
        for rank, row in enumerate(schedule.actions)
    )


def stage_seconds(name: str, seconds: Seconds, schedule: PipelineSchedule) -> tuple[float, ...]:
    """Return the seconds of each stage, given as to `simulate`."""
    return tuple(float(one) for one in _exact(name, seconds, schedule))


def kind_of(action: Action) -> str:
    """Return the kind of span that an action is on a Timeline."""
    name = "forward" if action.kind == FORWARD else "backward"
    return f"{name} {action.chunk}" if action.chunk else name


class _Pass(NamedTuple):
    rank: int
    action: Action
    start: Any
    stop: Any
    sent: tuple[Any, Any] | None  # from when, until when


def _passes(
    schedule: PipelineSchedule, forward: Sequence[Any], backward: Sequence[Any], message: Any
) -> Iterator[_Pass]:
    """When each pass runs; exact if times are Fractions."""
    free, port = [0] * schedule.num_ranks, [0] * schedule.num_ranks
    came: dict[tuple[int, str, int], Any] = {}  # when the input of a pass has come
    for rank, action in in_order(schedule):
        stage = schedule.stage(rank, action)
        start = max(free[rank], came.pop((stage, action.kind, action.microbatch), 0))
        stop = free[rank] = start + (forward if action.kind == FORWARD else backward)[stage]
        sent = None
        if _leaves(schedule, rank, action):
            begin = max(stop, port[rank])
            port[rank] = begin + message
            sent = begin, port[rank]
        came[_next_stage(stage, action), action.kind, action.microbatch] = port[rank] if sent else stop
        yield _Pass(rank, action, start, stop, sent)


def _next_stage(stage: int, action: Action) -> int:
    return stage + (1 if action.kind == FORWARD else -1)


def _leaves(schedule: PipelineSchedule, rank: int, action: Action) -> bool:
    """Whether the result of a pass goes to another rank."""
    onward = _next_stage(schedule.stage(rank, action), action)
    return 0 <= onward < schedule.num_stages and onward % schedule.num_ranks != rank


def _exact(name: str, seconds: Any, schedule: PipelineSchedule) -> list[Fraction]:
    """The time of each stage: those given, or the v-th part of what a rank's v chunks take together."""

    def fraction(seconds: Any) -> Fraction:
        return seconds if isinstance(seconds, Fraction) and seconds >= 0 else Fraction(number(name, seconds, 0))

    num_stages = schedule.num_stages
    if is_scalar(seconds) or isinstance(seconds, Fraction):
        return [fraction(seconds) / schedule.num_chunks] * num_stages
    if isinstance(seconds, str) or not isinstance(seconds, Sequence | np.ndarray) or len(seconds) != num_stages:
        raise ValueError(f"{name} must be a number or one for each of {num_stages} stages, got {seconds!r}")
    return [fraction(one) for one in seconds]
