"""The explorer of notebook 09: schedules of a pipeline, their bubble, their activations and their messages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from ...common.units import percent_words, time_words
from ...drawing.drawing import Drawing
from ...panel.explorer import Explorer, Now, Setting
from ...timeline import Span, Timeline
from ...timeline.picture import draw_timeline
from .model import messages, simulate
from .schedule import SCHEDULES, PipelineSchedule, build

SETTINGS = (
    Setting("schedule", "1F1B", list(SCHEDULES), "schedule"),
    Setting("num_ranks", 4, range(2, 9), "ranks"),
    Setting("num_microbatches", 8, range(1, 33), "micro-batches"),
    Setting("num_chunks", 2, range(2, 5), "chunks per rank", lambda now: SCHEDULES[now.schedule].has_chunks),
    Setting("forward_ms", 10, range(1, 51), "forward [ms]"),
    Setting("message_ms", 0, range(21), "message [ms]"),
)
PRESETS: dict[str, dict[str, Any]] = {
    "one micro-batch": {"schedule": "GPipe", "num_microbatches": 1},
    "GPipe": {"schedule": "GPipe"},
    "1F1B, 32 micro-batches": {"num_microbatches": 32},
    "interleaved 1F1B": {"schedule": "Interleaved1F1B"},
    "interleaved on a slow link": {"schedule": "Interleaved1F1B", "message_ms": 4},
    "zero bubble": {"schedule": "ZBVZeroBubble"},
}


@lru_cache(maxsize=1)  # the picture and the report ask for the same
def step(now: Now) -> tuple[PipelineSchedule, Timeline]:
    """Return the schedule and the timeline of one step, whose backward passes take twice as long as the forward."""
    num_chunks = now.num_chunks if SCHEDULES[now.schedule].has_chunks else None
    schedule = build(now.schedule, now.num_ranks, now.num_microbatches, num_chunks)
    forward_s = now.forward_ms / 1e3
    timeline = simulate(schedule, forward_s, 2 * forward_s, message_s=now.message_ms / 1e3)
    return schedule, timeline


def bubbles(timeline: Timeline, num_ranks: int) -> Iterator[Span]:
    """Yield a wait wherever a rank has nothing to compute."""
    for rank in range(num_ranks):
        passes = timeline.select(rank, "compute")
        for begin_s, end_s in zip([0.0, *passes.stop_s], [*passes.start_s, timeline.makespan_s], strict=True):
            if end_s - begin_s > 1e-9:  # a shorter one comes from rounding
                yield Span(rank, "compute", "wait", -1, begin_s, end_s)


def draw(now: Now) -> list[Drawing]:
    """One step, with its bubbles."""
    _, timeline = step(now)
    work = timeline.utilisation()[0, "compute"]  # of each rank
    title = f"{now.schedule}: each rank idles {percent_words(1 - work)} of a step"
    deck = f"{time_words(timeline.makespan_s)} per step; ranks wait while the pipeline fills and drains"
    return [draw_timeline(Timeline.of([*timeline, *bubbles(timeline, now.num_ranks)]), title, deck)]


def report(now: Now) -> list[str]:
    """The activations kept and the messages."""
    schedule, _ = step(now)
    chunks = schedule.num_stages / now.num_ranks  # a chunk keeps only its part of a microbatch's activations
    kept = [f"{number / chunks:.3g}" for number in schedule.activations_in_flight()]
    return [
        f"activations kept per rank, in micro-batches: {', '.join(kept)}",
        f"each rank sends at most {max(messages(schedule))} messages per step",
    ]


def pipeline_parallel() -> Explorer:
    """Return controls over one step of a pipeline schedule, its bubble, its activations and its messages."""
    return Explorer(SETTINGS, draw, report, PRESETS)
