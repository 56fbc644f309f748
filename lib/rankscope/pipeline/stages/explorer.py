"""The explorer of notebook 02: stage times, workers and queues, and what happens to a batch on the way."""

from __future__ import annotations

from collections.abc import Callable, Sized
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, TypeAlias

from msgspec.structs import replace

from ...common.checks import of_type
from ...common.units import percent_words, three_digits
from ...drawing.drawing import Drawing
from ...panel.explorer import Explorer, Now, Setting, jitter
from ...timeline import Timeline
from ...timeline.picture import draw_timeline
from ..service import Lognormal
from .model import simulate
from .stages import Pipeline, Stage

PathAt: TypeAlias = Callable[[Now], Pipeline]  # the pipeline at some settings, of which `seed` is one


def _varies(now: Now) -> bool:
    """Return whether any time is random, so that batches may overtake one another."""
    return bool(now.jitter > 0 and now.read_ms + now.decode_ms > 0)


SETTINGS = (
    Setting("num_workers", 2, range(1, 9), "decoders"),
    Setting("decode_ms", 30, range(61), "decoding [ms]"),
    jitter(50),
    Setting("capacity", 2, range(1, 17), "queue length"),
    Setting("read_ms", 4, range(61), "reading [ms]"),
    Setting("train_ms", 12, range(61), "training [ms]"),
    Setting("ordered", True, (), "in order", lambda now: _varies(now) and now.num_workers > 1),
    Setting("copy_ms", 3, range(61), "copying [ms]"),
    Setting("seed", 0, range(21), "seed", _varies),
)
PRESETS: dict[str, dict[str, Any]] = {
    "steady times": {"num_workers": 3, "jitter": 0},
    "jitter 150 %": {"num_workers": 3, "jitter": 150},
    "queues of 16": {"num_workers": 3, "jitter": 150, "capacity": 16},
    "out of order": {"num_workers": 3, "jitter": 150, "capacity": 16, "ordered": False},
}
_SHOWN = 16  # batches in the picture
_LONG = 500  # batches that the report counts


def pipeline_of(now: Now) -> Pipeline:
    """Return the pipeline. Times of reading and decoding have a standard deviation of `jitter` per cent of their mean.

    The queues after these two have the capacity that is set. The queue of one batch after copying is the device's
    memory: while it trains on a batch, the next one waits there, as in a loop that copies one batch ahead.
    """
    cv = now.jitter / 100
    read = Lognormal(now.read_ms / 1e3, cv)
    decode = Lognormal(now.decode_ms / 1e3, cv)
    return Pipeline(
        [
            Stage("read", read, capacity=now.capacity),
            Stage("decode", decode, num_workers=now.num_workers, capacity=now.capacity, ordered=now.ordered),
            Stage("copy", now.copy_ms / 1e3, capacity=1),
            Stage("train", now.train_ms / 1e3),
        ]
    )


def draw(path_at: PathAt, now: Now) -> list[Drawing]:
    """The first items, and in the title and the deck what holds up all others, and what another worker there brings."""
    path = path_at(now)
    num_items, timeline = _long(path_at, now)
    rate = num_items / timeline.makespan_s
    title = f"{path.bottleneck} limits the loop to {three_digits(rate)} batches/s"
    share = percent_words(rate / path.bound_per_s)
    deck = f"{num_items} batches: {share} of {path.bottleneck}'s usual {three_digits(path.bound_per_s)}/s"
    *before, last = path.stages
    for stage in before:
        if stage.name == path.bottleneck:
            more = path.changed(stage.name, num_workers=stage.num_workers + 1)
            more_rate = num_items / simulate(more, num_items, now.seed).makespan_s
            deck += f"; with {stage.num_workers + 1} workers, {three_digits(more_rate)}/s"
    shown = simulate(path, min(_SHOWN, num_items), now.seed)
    waits = [
        done._replace(kind="wait", start_s=done.stop_s, stop_s=following.start_s)
        for done, following in pairwise(shown.select(kind=last.name))
        if done.stop_s < following.start_s
    ]
    return [draw_timeline(Timeline.concat([shown, Timeline.of(waits)]), title, deck)]


def report(path_at: PathAt, now: Now) -> list[str]:
    """How the workers of each stage spend their time in the long run."""
    num_items, timeline = _long(path_at, now)
    return [f"what workers do in {num_items} batches:", *[_shares(timeline, stage) for stage in path_at(now).stages]]


@lru_cache(maxsize=8)
def _long(path_at: PathAt, now: Now) -> tuple[int, Timeline]:
    """Return the number of batches, at most that of the shortest list of times, and what happens to them."""
    path = path_at(now)
    num_items = min([_LONG, *[len(stage.service_s) for stage in path.stages if isinstance(stage.service_s, Sized)]])
    timeline = simulate(path, num_items, now.seed)
    if not timeline.makespan_s:
        raise ValueError("no stage takes any time: there is no bottleneck")
    return num_items, timeline


def _shares(timeline: Timeline, stage: Stage) -> str:
    """Return a line on the workers of a stage, each of which does one thing after another."""
    spans = timeline.select(lane=stage.lanes())
    seconds = spans.stop_s - spans.start_s
    is_work = spans.kind == timeline.kinds.index(stage.name)
    whole_s = timeline.makespan_s * stage.num_workers  # the time of all workers
    work = seconds[is_work].sum() / whole_s
    blocked = seconds[~is_work].sum() / whole_s
    return f"  {stage.name:<7}{work:>5.0%} working, {blocked:>4.0%} blocked by the next stage"


def pipeline(own: Any = None) -> Explorer:
    """Return controls over the first 16 batches of a pipeline, and its bottleneck in the long run.

    Of a `Pipeline` of your own, each of whose stages has a `service_s`, the workers and queues can be set.
    """
    if own is None:
        return Explorer(SETTINGS, partial(draw, pipeline_of), partial(report, pipeline_of), PRESETS)
    stages = of_type("own", own, Pipeline).stages
    settings = []
    for place, stage in enumerate(stages):
        workers = range(1, stage.num_workers + 8)
        lengths = range(1, stage.capacity + 16)
        settings.append(Setting(f"workers_{place}", stage.num_workers, workers, f"{stage.name}: workers"))
        settings.append(Setting(f"queue_{place}", stage.capacity, lengths, f"{stage.name}: queue length"))
    settings.append(Setting("seed", 0, range(21), "seed"))

    def changed(now: Now) -> Pipeline:
        *numbers, _ = now
        changes = zip(stages, numbers[::2], numbers[1::2], strict=True)
        return Pipeline([replace(stage, num_workers=workers, capacity=length) for stage, workers, length in changes])

    return Explorer(settings, partial(draw, changed), partial(report, changed), {})
