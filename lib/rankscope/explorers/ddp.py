"""The explorer of notebook 09: buckets, link and model, and what of the allreduces a step cannot hide."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import ipywidgets as widgets

from ..cluster import Link
from ..ddp.architectures import ARCHITECTURES, architecture_step
from ..ddp.cost import allreduce_cost
from ..ddp.local_step import Contention, LocalStep
from ..ddp.overlap import simulate_step
from ..ddp.recommend import Recommendation, recommend_bucket_cap
from ..figures.cap_bars import draw_bucket_caps
from ..figures.svg import to_svg
from ..figures.timelines import draw_timeline
from ..timeline import Timeline
from ..values.checks import count_of, one_of
from ..values.units import bytes_words, time_words
from .panel import choice, chosen, panel, slider, switch

DEFAULTS: dict[str, Any] = {
    "model": "ResNet-50",
    "num_samples": 32,
    "tflops": 40,
    "log2_cap_mb": 3,
    "log2_ranks": 5,
    "alpha_us": 50,
    "gb_per_s": 25,
    "slower": 0,
    "accumulation": 1,
    "default_cap": True,
    "overlap": True,
}
RANGES = {"num_samples": (1, 256), "tflops": (1, 500), "log2_cap_mb": (0, 15), "log2_ranks": (1, 12),
          "alpha_us": (0, 500), "gb_per_s": (1, 400), "slower": (0, 200), "accumulation": (1, 8)}  # fmt: skip
_LABELS = {"model": "model", "num_samples": "batch a rank", "tflops": "TFLOP/s", "log2_cap_mb": "log₂ cap [MiB]",
           "log2_ranks": "log₂ ranks", "alpha_us": "α [µs]", "gb_per_s": "B [GB/s]", "slower": "contention [%]",
           "accumulation": "accumulation", "default_cap": "DDP's default cap", "overlap": "overlap"}  # fmt: skip
_CAPS_MB = tuple(2.0**power for power in range(RANGES["log2_cap_mb"][1] + 1))


def timeline(**settings: Any) -> Timeline:
    """Return the step of these settings, those of `DEFAULTS` where not given.

    `tflops` is what a rank gets through, and `slower` by how many per cent computing and communicating hold each other
    up. An allreduce is a ring over links of `alpha_us` and `gb_per_s`.
    """
    now = _chosen(settings)
    return simulate_step(_local(now), _cost(now), bucket_cap_mb=_cap(now), **_options(now))


def picture(**settings: Any) -> str:
    """Return the step as SVG."""
    now = _chosen(settings)
    step = timeline(**now)
    cap = "DDP's default cap" if _cap(now) is None else f"a cap of {_cap(now):g} MiB"
    return to_svg(draw_timeline(step, title=f"{now['model']} with {cap}: {time_words(step.makespan_s)} a step"))


def caps(**settings: Any) -> str:
    """Return the steps with DDP's default and with other caps as SVG."""
    now = _chosen(settings)
    return to_svg(draw_bucket_caps(_recommendation(now), _cap(now)))


def report(**settings: Any) -> str:
    """Return as text what the step is made of, and what is recommended."""
    now = _chosen(settings)
    local, found = _local(now), _recommendation(now)
    mine = next(one for one in (found.default, *found.candidates) if one.bucket_cap_mb == _cap(now))
    held_s = max(mine.step_s - mine.wait_s - found.alone_s, 0.0)
    whole_s = float(_cost(now)(local.num_bytes))
    gradients = f"{count_of(len(local.parameters), 'gradient')} of {bytes_words(local.num_bytes)}"
    what = f"{now['model']}: {gradients}, {time_words(local.backward_s)} of backward a micro-batch"
    parts = f"computing alone {time_words(found.alone_s)}, held up {time_words(held_s)}"
    return "\n".join(
        [
            f"{what}; {2 ** now['log2_ranks']} ranks",
            f"{time_words(mine.step_s)} a step: {parts}, waiting {time_words(mine.wait_s)} (exposed communication)",
            f"one allreduce of all gradients would take {time_words(whole_s)} by itself",
            str(found),
        ]
    )


def ddp(**settings: Any) -> widgets.VBox:
    """Return controls for `DEFAULTS` (`settings` replaces some) over the step, the caps and the report.

    Raises ValueError for a setting that does not exist or lies outside its slider.
    """
    initial = _chosen(settings)
    controls: dict[str, Any] = {"model": choice(initial["model"], list(ARCHITECTURES), _LABELS["model"])}
    controls |= {name: slider(initial[name], RANGES[name], _LABELS[name]) for name in RANGES}
    controls |= {name: switch(initial[name], _LABELS[name]) for name in ("default_cap", "overlap")}
    return panel(controls, lambda now: (picture(**now) + caps(**now), report(**now)))


def _local(now: dict[str, Any]) -> LocalStep:
    return _step(now["model"], now["num_samples"], now["tflops"] * 1e12)


_step = lru_cache(maxsize=8)(architecture_step)


def _cost(now: dict[str, Any]) -> Any:
    return allreduce_cost(Link(now["alpha_us"] / 1e6, now["gb_per_s"] * 1e9), 2 ** now["log2_ranks"])


def _cap(now: dict[str, Any]) -> float | None:
    return None if now["default_cap"] else float(2 ** now["log2_cap_mb"])


def _options(now: dict[str, Any]) -> dict[str, Any]:
    held = Contention(*[1 + now["slower"] / 100] * 2)
    return {"contention": held, "accumulation": now["accumulation"], "overlap": now["overlap"]}


def _recommendation(now: dict[str, Any]) -> Recommendation:
    return recommend_bucket_cap(_local(now), _cost(now), caps_mb=_CAPS_MB, **_options(now))


def _chosen(settings: dict[str, Any]) -> dict[str, Any]:
    current = chosen(settings, DEFAULTS, RANGES)
    one_of("model", current["model"], tuple(ARCHITECTURES))
    return current
