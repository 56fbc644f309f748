"""The explorer of notebook 09: schedules of a pipeline, their bubble, their activations and their traffic."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ...cluster import Link
from ...common.units import decimal_words, percent_words, time_words
from ...explorers.explorer import Explorer, Now, Setting, Steps
from ...figures.marks import Drawing
from ...figures.timelines import draw_timeline
from ...timeline import Timeline
from ..pipeline_parallel import SCHEDULES, PipelineSchedule, bubble_share, build, messages, simulate

# Stages send activations from rank to rank over a link. The networks of other explorers give times of allreduces.
LINKS = {
    "free": Link(0.0, float("inf")),
    "200 GB/s, 3 µs": Link(3e-6, 200e9),
    "25 GB/s, 10 µs": Link(10e-6, 25e9),
    "1 GB/s, 50 µs": Link(50e-6, 1e9),
}
WITH_CHUNKS = ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble")
SPLIT = ("InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")  # schedules that split backward passes
SETTINGS = (
    Setting("schedule", "1F1B", SCHEDULES, "schedule"),
    Setting("num_ranks", 4, range(2, 9), "ranks"),
    Setting("num_microbatches", 8, range(1, 33), "micro-batches"),
    Setting("num_chunks", 2, range(2, 5), "chunks per rank", lambda now: now.schedule in WITH_CHUNKS),
    Setting("forward_ms", 10, range(1, 51), "forward [ms]"),
    Setting("backward_percent", 200, Steps(range(0, 401, 25)), "backward [% of forward]"),
    Setting("weights_percent", 50, range(101), "weights [% of backward]", lambda now: now.schedule in SPLIT),
    Setting("link", "free", LINKS, "link"),
    Setting("activation_mb", 4, Steps((0, 1, 2, 4, 8, 16, 32, 64)), "activations per cut [MB]"),
)
PRESETS: dict[str, dict[str, Any]] = {
    "one micro-batch": {"schedule": "GPipe", "num_microbatches": 1},
    "GPipe": {"schedule": "GPipe"},
    "1F1B, 32 micro-batches": {"num_microbatches": 32},
    "interleaved 1F1B": {"schedule": "Interleaved1F1B"},
    "interleaved on a slow link": {"schedule": "Interleaved1F1B", "link": "1 GB/s, 50 µs"},
    "zero bubble": {"schedule": "ZBVZeroBubble"},
}


@lru_cache(maxsize=1)  # the picture and the report ask for the same
def step(now: Now) -> tuple[PipelineSchedule, Timeline]:
    """Return the schedule and the timeline of one step."""
    num_chunks = now.num_chunks if now.schedule in WITH_CHUNKS else None
    schedule = build(now.schedule, now.num_ranks, now.num_microbatches, num_chunks)
    forward_s = now.forward_ms / 1e3
    timeline = simulate(
        schedule,
        forward_s,
        forward_s * now.backward_percent / 100,
        weights_share=now.weights_percent / 100,
        message_s=LINKS[now.link].seconds(now.activation_mb * 1e6),
    )
    return schedule, timeline


def draw(now: Now) -> list[Drawing]:
    """One step."""
    _, timeline = step(now)
    title = f"{now.schedule}: {percent_words(bubble_share(timeline))} of the step is bubble"
    return [draw_timeline(timeline, title=title, deck=f"{time_words(timeline.makespan_s)} per step")]


def report(now: Now) -> list[str]:
    """The bubble, the activations kept and the bytes sent."""
    schedule, timeline = step(now)
    chunks = schedule.num_stages / now.num_ranks  # a chunk keeps only its part of a microbatch's activations
    kept = [f"{number / chunks:.3g}" for number in schedule.activations_in_flight()]
    return [
        f"idle between a rank's first and last pass: at most {percent_words(bubble_share(timeline), 1)} of that time",
        f"activations kept per rank, in micro-batches: {', '.join(kept)}",
        f"each rank sends at most {decimal_words(max(messages(schedule)) * now.activation_mb * 1e6)} per step",
    ]


def pipeline_parallel() -> Explorer:
    """Return controls over one step of a pipeline schedule, its bubble, its activations and its traffic."""
    return Explorer(SETTINGS, draw, report, PRESETS)
