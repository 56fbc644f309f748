"""The explorer of notebook 09: schedules of a pipeline, their bubble, their activations and their traffic."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from ...cluster import Link
from ...common.units import decimal_words, percent_words, time_words
from ...explorers.explorer import Explorer, Now, Setting, Steps
from ...figures.marks import Drawing
from ...figures.timelines import draw_timeline
from ...timeline import Timeline
from ..pipeline_parallel.model import simulate, traffic
from ..pipeline_parallel.schedule import PIPELINES, PipelineSchedule, bubble_share, build

# Stages send activations from rank to rank over a link. The networks of other explorers give times of allreduces.
LINKS = {
    "free": None,
    "200 GB/s, 3 µs": Link(3e-6, 200e9),
    "25 GB/s, 10 µs": Link(10e-6, 25e9),
    "1 GB/s, 50 µs": Link(50e-6, 1e9),
}
NAMES = {"gpipe": "GPipe", "one_f_one_b": "1F1B", "interleaved_1f1b": "interleaved 1F1B"}


def _has_links(now: Now) -> bool:
    return bool(now.num_ranks > 1)


SETTINGS = (
    Setting("schedule", "one_f_one_b", tuple((NAMES[name], name) for name in PIPELINES), "schedule"),
    Setting("num_ranks", 4, range(1, 9), "ranks"),
    Setting("num_microbatches", 8, range(1, 33), "micro-batches"),
    Setting("num_chunks", 2, range(1, 4), "chunks per rank", lambda now: now.schedule == "interleaved_1f1b"),
    Setting("forward_ms", 10, range(1, 51), "forward [ms]"),
    Setting("backward_percent", 200, Steps(range(0, 401, 25)), "backward [% of forward]"),
    Setting("link", "free", LINKS, "link", _has_links),
    Setting("activation_mb", 4, Steps((0, 1, 2, 4, 8, 16, 32, 64)), "activations per cut [MB]", _has_links),
)
PRESETS: dict[str, dict[str, Any]] = {
    "GPipe": {"schedule": "gpipe"},
    "1F1B": {},
    "1F1B, 32 micro-batches": {"num_microbatches": 32},
    "interleaved 1F1B": {"schedule": "interleaved_1f1b"},
    "interleaved on a slow link": {"schedule": "interleaved_1f1b", "link": "1 GB/s, 50 µs"},
    "one micro-batch": {"num_microbatches": 1},
}


def plan(now: Now) -> PipelineSchedule:
    """Return the schedule. Only interleaved 1F1B has chunks; its microbatches are rounded up to full rounds."""
    if now.schedule != "interleaved_1f1b":
        return build(now.schedule, now.num_ranks, now.num_microbatches)
    num_microbatches = now.num_microbatches
    while not _fill_rounds(num_microbatches, now.num_ranks):
        num_microbatches += 1
    return build(now.schedule, now.num_ranks, num_microbatches, now.num_chunks)


def _fill_rounds(num_microbatches: int, num_ranks: int) -> bool:
    """Whether interleaved 1F1B can have so many microbatches: its rounds must all be equally long.

    A round has at least as many microbatches as there are ranks. With fewer microbatches there is still one round.
    """
    num_rounds = max(1, num_microbatches // num_ranks)
    return num_microbatches % num_rounds == 0


class _PipelineStep(NamedTuple):
    """A schedule, its timeline, and the share of it in which ranks are idle."""

    schedule: PipelineSchedule
    timeline: Timeline
    bubble: float


@lru_cache(maxsize=1)  # the picture and the report ask for the same
def step(now: Now) -> _PipelineStep:
    """Return one step at these settings."""
    schedule = plan(now)
    forward_s = now.forward_ms / 1e3
    backward_s = forward_s * now.backward_percent / 100
    timeline = simulate(schedule, forward_s, backward_s, link=LINKS[now.link], activation_bytes=now.activation_mb * 1e6)
    busy_s = sum(timeline.select(rank=rank, lane="compute").busy_s for rank in range(now.num_ranks))
    bubble = 1 - busy_s / (now.num_ranks * timeline.makespan_s)
    return _PipelineStep(schedule, timeline, bubble)


def draw(now: Now) -> list[Drawing]:
    """One step."""
    schedule, timeline, bubble = step(now)
    title = f"{NAMES[schedule.name]}: {percent_words(bubble)} of the step is bubble"
    return [draw_timeline(timeline, title=title, deck=f"{time_words(timeline.makespan_s)} per step")]


def report(now: Now) -> list[str]:
    """The bubble, also with free links, the activations kept and the bytes sent."""
    schedule, _, bubble = step(now)
    # The bubble if messages take no time, as a fraction.
    free_bubble = bubble_share(schedule.name, schedule.num_ranks, schedule.num_microbatches, schedule.num_chunks)
    # A chunk keeps only its part of a microbatch's activations on the rank.
    activations = [f"{num_kept / schedule.num_chunks:.3g}" for num_kept in schedule.activations_in_flight()]
    most_sent_bytes = max(traffic(schedule, now.activation_mb * 1e6))
    free_percent = percent_words(float(free_bubble), 1)
    lines = [
        schedule.to_text().splitlines()[0],  # its name and sizes
        f"bubble: {percent_words(bubble, 1)} of the step; {free_bubble} = {free_percent} if messages take no time",
        f"activations kept per rank, in micro-batches: {', '.join(activations)}",
        f"each rank sends at most {decimal_words(most_sent_bytes)} per step",
    ]
    if schedule.num_microbatches != now.num_microbatches:
        lines.append(f"({now.num_microbatches} micro-batches do not fill the rounds of this schedule)")
    return lines


def pipeline_parallel() -> Explorer:
    """Return controls over one step of a pipeline schedule, its bubble, its activations and its traffic.

    Only interleaved 1F1B has chunks. If microbatches do not fill its rounds, it uses the next number that does.
    """
    return Explorer(SETTINGS, draw, report, PRESETS)
