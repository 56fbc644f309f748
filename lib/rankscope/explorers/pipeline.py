"""The explorer of notebook 03: stage times, workers and queues, and what becomes of a batch on its way."""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets

from ..figures.svg import to_svg
from ..figures.timelines import draw_timeline
from ..pipeline import Lognormal, Pipeline, Stage, simulate
from ..timeline import Timeline
from .panel import chosen, panel, slider, switch

DEFAULTS: dict[str, Any] = {
    "read_ms": 4,
    "decode_ms": 30,
    "copy_ms": 3,
    "train_ms": 12,
    "num_workers": 2,
    "capacity": 2,
    "jitter": 50,
    "num_ranks": 1,
    "seed": 0,
    "ordered": True,
}
RANGES = {"read_ms": (0, 60), "decode_ms": (0, 60), "copy_ms": (0, 60), "train_ms": (0, 60), "num_workers": (1, 8),
          "capacity": (1, 16), "jitter": (0, 200), "num_ranks": (1, 4), "seed": (0, 20)}  # fmt: skip
_LABELS = {"read_ms": "read [ms]", "decode_ms": "decode [ms]", "copy_ms": "copy [ms]", "train_ms": "train [ms]",
           "num_workers": "decoders", "capacity": "queue", "jitter": "jitter [%]", "num_ranks": "ranks",
           "seed": "seed", "ordered": "in order"}  # fmt: skip
_SHOWN, _LONG = 24, 500  # items in the picture; items that the report counts


def road(**settings: Any) -> Pipeline:
    """Return the pipeline of these settings, those of `DEFAULTS` where not given.

    `jitter` is the standard deviation of reading and decoding in per cent of their mean. The queues after them have the
    capacity that is set, and one batch is on its way to the device at a time.
    """
    now = _chosen(settings)
    capacity, cv = now["capacity"], now["jitter"] / 100
    return Pipeline(
        [
            Stage("read", Lognormal(now["read_ms"] / 1e3, cv), capacity=capacity),
            Stage(
                "decode",
                Lognormal(now["decode_ms"] / 1e3, cv),
                num_workers=now["num_workers"],
                capacity=capacity,
                ordered=now["ordered"],
            ),
            Stage("copy", now["copy_ms"] / 1e3, capacity=1),
            Stage("train", now["train_ms"] / 1e3),
        ]
    )


def picture(**settings: Any) -> str:
    """Return the first 24 batches as SVG; the settings are those of `DEFAULTS`, where not given."""
    now = _chosen(settings)
    timeline = simulate(road(**now), _SHOWN, now["seed"], now["num_ranks"])
    return to_svg(draw_timeline(timeline, title=f"The first {_SHOWN} batches"))


def report(**settings: Any) -> str:
    """Return as text what bounds the pipeline, what it delivers, what comes next, and who waits."""
    now = _chosen(settings)
    pipeline = road(**now)
    bounds = pipeline.bounds_per_s()
    first, *rest = sorted(bounds, key=lambda name: bounds[name])
    timeline = simulate(pipeline, _LONG, now["seed"], now["num_ranks"])
    if not timeline.makespan_s:
        return "every stage takes no time: nothing bounds this pipeline"
    rate = _LONG / timeline.makespan_s
    lines = [
        f"bottleneck: {first}, which bounds the pipeline to {bounds[first]:.1f} batches/s; next is {rest[0]}, at "
        + (f"{bounds[rest[0]]:.1f}" if bounds[rest[0]] < float("inf") else "any rate"),
        f"delivered over {_LONG} batches: {rate:.1f} batches/s" + (" by each rank" if now["num_ranks"] > 1 else "")
        + f", {rate / bounds[first]:.0%} of that bound",
    ]  # fmt: skip
    lines += [_shares(timeline, stage) for stage in pipeline.stages]
    return "\n".join(lines)


def pipeline(**settings: Any) -> widgets.VBox:
    """Return sliders for `DEFAULTS` (`settings` replaces some) over the picture and the report.

    Raises ValueError for a setting that does not exist or lies outside its slider.
    """
    initial = _chosen(settings)
    controls: dict[str, Any] = {name: slider(initial[name], RANGES[name], _LABELS[name]) for name in RANGES}
    controls["ordered"] = switch(initial["ordered"], _LABELS["ordered"])
    return panel(controls, lambda current: (picture(**current), report(**current)))


def _shares(timeline: Timeline, stage: Stage) -> str:
    """What the workers of a stage do with their time, of rank 0."""
    lanes = [timeline.select(rank=0, lane=lane) for lane in stage.lanes()]
    whole_s = timeline.makespan_s * len(lanes)
    work = sum(lane.work().busy_s for lane in lanes) / whole_s
    kinds = ("blocked", "barrier")
    held = {kind: sum(lane.select(kind=kind).busy_s for lane in lanes) / whole_s for kind in kinds}
    told = f"  {stage.name:<7}{work:>5.0%} at work, {held['blocked']:>4.0%} blocked by what comes after"
    told += f", {held['barrier']:.0%} at the barrier" if held["barrier"] else ""
    return f"{told}, {max(1 - work - sum(held.values()), 0):>4.0%} without anything to do"


def _chosen(settings: dict[str, Any]) -> dict[str, Any]:
    return chosen(settings, DEFAULTS, RANGES)
