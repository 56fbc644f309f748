"""The explorer of notebook a2: trainers in lock step on part files, which they load themselves or have loaded ahead."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ...common.units import percent_words
from ...common.words import and_joined, count_of
from ...drawing.drawing import Drawing
from ...panel.explorer import Explorer, Now, Setting, Steps, jitter
from ...timeline import Timeline
from ...timeline.picture import draw_timeline
from ..service import Lognormal
from .model import idle_share, simulate_parts

SETTINGS = (
    Setting("num_trainers", 4, range(1, 17), "trainers"),
    Setting("queue_size", 0, range(9), "queue length"),
    Setting("num_loaders", 1, range(1, 5), "loaders"),
    Setting("load_ms", 160, Steps((*range(0, 200, 20), *range(200, 601, 50))), "loading a part [ms]"),
    Setting("step_ms", 50, Steps((1, 2, 5, *range(10, 101, 10))), "step [ms]"),
    Setting("steps_per_part", 4, range(1, 13), "steps per part"),
    Setting(
        "aligned",
        False,
        (),
        "parts end together",
        lambda now: now.num_trainers > 1 and now.steps_per_part > 1,
    ),
    jitter(100),
    Setting("seed", 0, range(21), "seed", lambda now: now.load_ms > 0 and now.jitter > 0),
)
PRESETS: dict[str, dict[str, Any]] = {
    "1 trainer": {"num_trainers": 1},
    "16 trainers": {"num_trainers": 16},
    "16 trainers, queue of 4": {"num_trainers": 16, "queue_size": 4},
    "parts end together": {"aligned": True},
    "loading too slow": {"load_ms": 300, "queue_size": 2},
    "the same with 2 loaders": {"load_ms": 300, "queue_size": 2, "num_loaders": 2},
}
_SHOWN = 6  # parts of each trainer in the picture
_LONG = 40  # parts of each trainer in the report


def predicted(now: Now, num_parts: int) -> Timeline:
    """Return the timeline of `num_parts` parts per trainer; a queue of 0 is the synchronous dataset.

    Unless parts end together, the first part of each trainer is a step shorter than that of the rank before it, down to
    one step, and then begins again with a whole part.
    """
    steps_of_trainers = []
    for rank in range(now.num_trainers):
        steps = [now.steps_per_part] * num_parts
        if not now.aligned:
            steps[0] -= rank % now.steps_per_part
        steps_of_trainers.append(steps)
    return simulate_parts(
        Lognormal(now.load_ms / 1e3, now.jitter / 100),
        steps_of_trainers,
        now.step_ms / 1e3,
        queue_size=now.queue_size or None,  # None: parts are loaded when they are needed
        num_loaders=now.num_loaders,
        seed=now.seed,
    )


def draw(now: Now) -> list[Drawing]:
    """The first parts of each trainer, and in the title and the deck how idle they are in the long run, and why."""
    loading_ms = now.load_ms / now.num_loaders
    stepping_ms = now.step_ms * now.steps_per_part
    title = f"Trainers are idle {percent_words(_idle_share(now))} of the time"
    deck = f"With loading ahead, a part arrives every {loading_ms:.3g} ms and lasts {stepping_ms} ms"
    return [draw_timeline(predicted(now, _SHOWN), title=title, deck=deck)]


def report(now: Now) -> list[str]:
    """How idle the trainers are with other queues."""
    shares = [f"{_idle_share(now._replace(queue_size=size)):z.0%} with a queue of {size}" for size in (0, 2, 8)]
    return [f"in {_LONG} parts each, {count_of(now.num_trainers, 'trainer')} are idle {and_joined(shares)}"]


@lru_cache(maxsize=64)
def _idle_share(now: Now) -> float:
    return idle_share(predicted(now, _LONG))


def parts() -> Explorer:
    """Return controls over the first parts of trainers in lock step, and how idle they are in the long run.

    `jitter` is the standard deviation of loading, in per cent of its mean. A queue of 0 loads a part when it is needed.
    """
    return Explorer(SETTINGS, draw, report, PRESETS)
