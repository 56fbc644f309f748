"""The explorer of notebook 04: trainers in lock-step on part files, loaded by themselves or ahead of them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import ipywidgets as widgets

from ..figures.svg import to_svg
from ..figures.timelines import draw_timeline
from ..parts.simulate import simulate, simulated_idle_share
from ..pipeline import Lognormal
from ..timeline import Timeline
from ..values.checks import count_of
from .panel import chosen, panel, slider, switch

DEFAULTS: dict[str, Any] = {
    "load_ms": 160,
    "step_ms": 50,
    "steps_per_part": 4,
    "jitter": 100,
    "num_trainers": 4,
    "queue_size": 0,
    "num_loaders": 1,
    "seed": 0,
    "aligned": False,
}
RANGES = {"load_ms": (0, 600), "step_ms": (1, 100), "steps_per_part": (1, 12), "jitter": (0, 200),
          "num_trainers": (1, 16), "queue_size": (0, 8), "num_loaders": (1, 4), "seed": (0, 20)}  # fmt: skip
_LABELS = {"load_ms": "load [ms]", "step_ms": "step [ms]", "steps_per_part": "steps a part", "jitter": "jitter [%]",
           "num_trainers": "trainers", "queue_size": "queue", "num_loaders": "loaders", "seed": "seed",
           "aligned": "parts end together"}  # fmt: skip
_SHOWN, _LONG = 6, 60  # parts of a trainer in the picture, and in the report


def predicted(num_parts: int, **settings: Any) -> Timeline:
    """Return the timeline of `num_parts` parts a trainer; a queue of 0 is the synchronous dataset.

    `jitter` is the standard deviation of loading in per cent of its mean. Unless parts end together, the first part of
    each trainer is shorter than that of the one before.
    """
    return simulate(**_inputs(num_parts, _chosen(settings)))


def picture(**settings: Any) -> str:
    """Return the first parts as SVG; the settings are those of `DEFAULTS`, where not given."""
    return to_svg(draw_timeline(predicted(_SHOWN, **settings), title=f"The first {_SHOWN} parts of each trainer"))


def report(**settings: Any) -> str:
    """Return as text how idle the trainers are, and how idle they would be with other queues."""
    now = _chosen(settings)
    shares = {size: _idle_share(**now | {"queue_size": size}) for size in (0, 1, 2, 4, 8)}
    share = _idle_share(**now)
    trainers = count_of(now["num_trainers"], "trainer")
    lines = [f"over {_LONG} parts each, {trainers}: {share:.0%} of the time without a step"]
    loading_ms, stepping_ms = now["load_ms"] / now["num_loaders"], now["step_ms"] * now["steps_per_part"]
    bound = "training, if the queue is long enough"
    if loading_ms > stepping_ms:
        bound = f"loading: in the long run no queue gets below {1 - stepping_ms / loading_ms:.0%}"
    every = f"loading ahead, the loaders bring a part every {loading_ms:.3g} ms"
    lines.append(f"{every}, it lasts {stepping_ms} ms: bound by {bound}")
    names = {size: f"queue of {size}" if size else "synchronous" for size in shares}
    return "\n".join([*lines, *(f"  {names[size]:<12}{share:>5.0%} idle" for size, share in shares.items())])


def parts(**settings: Any) -> widgets.VBox:
    """Return sliders for `DEFAULTS` (`settings` replaces some) over the picture and the report.

    Raises ValueError for a setting that does not exist or lies outside its slider.
    """
    initial = _chosen(settings)
    controls: dict[str, Any] = {name: slider(initial[name], RANGES[name], _LABELS[name]) for name in RANGES}
    controls["aligned"] = switch(initial["aligned"], _LABELS["aligned"])
    return panel(controls, lambda current: (picture(**current), report(**current)))


@lru_cache(maxsize=64)
def _idle_share(**now: Any) -> float:
    return simulated_idle_share(**_inputs(_LONG, now))


def _inputs(num_parts: int, now: dict[str, Any]) -> dict[str, Any]:
    length, trainers = now["steps_per_part"], now["num_trainers"]
    firsts = [length if now["aligned"] else length - rank % length for rank in range(trainers)]
    return {
        "load_s": Lognormal(now["load_ms"] / 1e3, now["jitter"] / 100),
        "steps_per_part": [[first, *[length] * (num_parts - 1)] for first in firsts],
        "step_s": now["step_ms"] / 1e3,
        "queue_size": now["queue_size"] or None,
        "num_loaders": now["num_loaders"],
        "seed": now["seed"],
    }


def _chosen(settings: dict[str, Any]) -> dict[str, Any]:
    return chosen(settings, DEFAULTS, RANGES)
