"""The explorer of notebook 03: stage times, workers and queues, and what becomes of a batch on its way."""

from __future__ import annotations

from ..figures.marks import Drawing
from ..figures.timelines import draw_timeline
from ..pipeline import Lognormal, Pipeline, Stage, simulate
from ..timeline import Timeline
from .panel import Explorer, Now, Setting, shows

SETTINGS = (
    Setting("read_ms", 4, (0, 60), "read [ms]"),
    Setting("decode_ms", 30, (0, 60), "decode [ms]"),
    Setting("copy_ms", 3, (0, 60), "copy [ms]"),
    Setting("train_ms", 12, (0, 60), "train [ms]"),
    Setting("num_workers", 2, (1, 8), "decoders"),
    Setting("capacity", 2, (1, 16), "queue"),
    Setting("jitter", 50, (0, 200), "jitter [%]"),
    Setting("num_ranks", 1, (1, 4), "ranks"),
    Setting("seed", 0, (0, 20), "seed"),
    Setting("ordered", True, (False, True), "in order"),
)
_SHOWN, _LONG = 24, 500  # batches in the picture; batches that the report counts


def road(now: Now) -> Pipeline:
    """Return the pipeline. Times of reading and decoding have a standard deviation of `jitter` per cent of their mean.

    The queues after these two have the capacity that is set; one batch at a time is on its way to the device.
    """
    cv = now.jitter / 100
    read, decode = Lognormal(now.read_ms / 1e3, cv), Lognormal(now.decode_ms / 1e3, cv)
    return Pipeline(
        [
            Stage("read", read, capacity=now.capacity),
            Stage("decode", decode, num_workers=now.num_workers, capacity=now.capacity, ordered=now.ordered),
            Stage("copy", now.copy_ms / 1e3, capacity=1),
            Stage("train", now.train_ms / 1e3),
        ]
    )


def picture(now: Now) -> Drawing:
    """The first batches."""
    timeline = simulate(road(now), _SHOWN, now.seed, now.num_ranks)
    return draw_timeline(timeline, title=f"The first {_SHOWN} batches")


def report(now: Now) -> list[str]:
    """What bounds the pipeline, what it delivers, what would bound it next, and who waits."""
    pipeline = road(now)
    bounds = pipeline.bounds_per_s()
    first, second, *_ = sorted(bounds, key=bounds.__getitem__)
    timeline = simulate(pipeline, _LONG, now.seed, now.num_ranks)
    if not timeline.makespan_s:
        return ["every stage takes no time: nothing bounds this pipeline"]
    rate = _LONG / timeline.makespan_s
    following = f"{second}, at " + (f"{bounds[second]:.1f}" if bounds[second] < float("inf") else "any rate")
    each = " by each rank" if now.num_ranks > 1 else ""
    return [
        f"bottleneck: {first}, which bounds the pipeline to {bounds[first]:.1f} batches/s; next is {following}",
        f"delivered over {_LONG} batches: {rate:.1f} batches/s{each}, {rate / bounds[first]:.0%} of that bound",
        *(_shares(timeline, stage) for stage in pipeline.stages),
    ]


def _shares(timeline: Timeline, stage: Stage) -> str:
    """What the workers of a stage of rank 0 do with their time."""
    lanes = [timeline.select(rank=0, lane=lane) for lane in stage.lanes()]
    whole_s = timeline.makespan_s * len(lanes)
    work = sum(lane.work().busy_s for lane in lanes) / whole_s
    blocked, barrier = (
        sum(lane.select(kind=kind).busy_s for lane in lanes) / whole_s for kind in ("blocked", "barrier")
    )
    at_barrier = f", {barrier:.0%} at the barrier" if barrier else ""
    idle = max(1 - work - (blocked + barrier), 0)
    return (
        f"  {stage.name:<7}{work:>5.0%} at work, {blocked:>4.0%} blocked by what comes after{at_barrier}"
        f", {idle:>4.0%} without anything to do"
    )


@shows(SETTINGS)
def pipeline() -> Explorer:
    """Return controls over the first 24 batches of a pipeline, and what bounds it in the long run."""
    return Explorer(SETTINGS, {"picture": picture}, report)
