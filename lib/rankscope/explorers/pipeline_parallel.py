"""The explorer of notebook 13: schedules of a pipeline, how much bubble they have and what they keep and send."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import ipywidgets as widgets

from ..cluster import Link
from ..figures.svg import to_svg
from ..figures.timelines import draw_timeline
from ..pipeline_parallel.model import simulate, traffic
from ..pipeline_parallel.schedule import PIPELINES, PipelineSchedule, bubble_share
from ..timeline import Timeline
from ..values.checks import one_of
from ..values.units import decimal_words, time_words
from .panel import choice, chosen, panel, slider

LINKS = {
    "free": None,
    "200 GB/s, 3 µs": Link(3e-6, 200e9),
    "25 GB/s, 10 µs": Link(10e-6, 25e9),
    "1 GB/s, 50 µs": Link(50e-6, 1e9),
}
DEFAULTS: dict[str, Any] = {"schedule": "one_f_one_b", "num_ranks": 4, "num_microbatches": 8, "num_chunks": 2,
                            "forward_ms": 10, "backward_percent": 200, "link": "free", "activation_mb": 4}  # fmt: skip
RANGES = {"num_ranks": (1, 8), "num_microbatches": (1, 32), "num_chunks": (1, 3), "forward_ms": (1, 50),
          "backward_percent": (0, 400), "activation_mb": (0, 64)}  # fmt: skip
_LABELS = {"schedule": "schedule", "num_ranks": "ranks", "num_microbatches": "microbatches", "num_chunks": "chunks",
           "forward_ms": "forward [ms]", "backward_percent": "backward [%]", "link": "link",
           "activation_mb": "at a cut [MB]"}  # fmt: skip


def planned(**settings: Any) -> PipelineSchedule:
    """Return the schedule of these settings, those of `DEFAULTS` where not given.

    Chunks are interleaved 1F1B's; where its rounds do not fit the microbatches, it has the next number that they fit.
    """
    return _step(**_chosen(settings))[0]


def predicted(**settings: Any) -> Timeline:
    """Return the step of these settings, those of `DEFAULTS` where not given."""
    return _step(**_chosen(settings))[1]


def picture(**settings: Any) -> str:
    """Return the step as SVG; the settings are those of `DEFAULTS`, where not given."""
    plan, step = _step(**_chosen(settings))
    title = f"{plan.name}: a step of {time_words(step.makespan_s)}, of which {_idle(plan, step):.0%} is bubble"
    return to_svg(draw_timeline(step, title=title))


def report(**settings: Any) -> str:
    """Return as text the bubble, beside what it would be with links that are free, what is kept and what is sent."""
    now = _chosen(settings)
    plan, step = _step(**now)
    formula = bubble_share(plan.name, plan.num_ranks, plan.num_microbatches, plan.num_chunks)
    kept = [activations / plan.num_chunks for activations in plan.activations_in_flight()]
    sent_bytes = max(traffic(plan, now["activation_mb"] * 1e6))
    lines = [
        plan.to_text().splitlines()[0],
        f"bubble: {_idle(plan, step):.1%} of the step; {formula} = {float(formula):.1%} where links are free",
        f"activations kept, in microbatches of a whole rank: {', '.join(f'{one:g}' for one in kept)}",
        f"a rank sends {decimal_words(sent_bytes)} a step at most",
    ]
    if plan.num_microbatches != now["num_microbatches"]:
        lines.append(f"(its rounds do not fit {now['num_microbatches']} microbatches)")
    return "\n".join(lines)


def pipeline_parallel(**settings: Any) -> widgets.VBox:
    """Return controls for `DEFAULTS` (`settings` replaces some) over the picture and the report.

    Raises ValueError for a setting that does not exist or lies outside its range.
    """
    initial = _chosen(settings)
    controls: dict[str, Any] = {
        name: choice(initial[name], _OPTIONS[name], _LABELS[name])
        if name in _OPTIONS
        else slider(initial[name], RANGES[name], _LABELS[name])
        for name in DEFAULTS
    }
    return panel(controls, lambda now: (picture(**now), report(**now)))


_OPTIONS: dict[str, list[str]] = {"schedule": list(PIPELINES), "link": list(LINKS)}


@lru_cache(maxsize=1)  # the picture and the report ask for the same
def _step(
    schedule: str,
    num_ranks: int,
    num_microbatches: int,
    num_chunks: int,
    forward_ms: int,
    backward_percent: int,
    link: str,
    activation_mb: int,
) -> tuple[PipelineSchedule, Timeline]:
    several = schedule == "interleaved_1f1b"
    while several and num_microbatches % max(1, num_microbatches // num_ranks):
        num_microbatches += 1
    plan = PIPELINES[schedule](num_ranks, num_microbatches, num_chunks if several else 1)
    forward_s = forward_ms / 1e3
    backward_s = forward_s * backward_percent / 100
    return plan, simulate(plan, forward_s, backward_s, LINKS[link], activation_mb * 1e6)


def _idle(plan: PipelineSchedule, step: Timeline) -> float:
    busy_s = sum(step.select(rank=rank, lane="compute").busy_s for rank in range(plan.num_ranks))
    return float(1 - busy_s / (plan.num_ranks * step.makespan_s))


def _chosen(settings: dict[str, Any]) -> dict[str, Any]:
    now = chosen(settings, DEFAULTS, RANGES)
    for name, options in _OPTIONS.items():
        one_of(name, now[name], tuple(options))
    return now
