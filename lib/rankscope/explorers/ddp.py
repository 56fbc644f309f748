"""The explorer of notebook 09: buckets, link and model, and what of the allreduces a step cannot hide."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..cluster import Link
from ..ddp.architectures import ARCHITECTURES, architecture_step
from ..ddp.cost import Cost
from ..ddp.cost import cost as allreduce_cost
from ..ddp.recommend import Recommendation, recommend
from ..ddp.step import Contention, LocalStep, simulate
from ..figures.ddp import draw_caps
from ..figures.marks import Drawing
from ..figures.timelines import draw_timeline
from ..timeline import Timeline
from ..values.checks import count_of
from ..values.units import bytes_words, time_words
from .panel import Explorer, Now, Setting, shows

_MOST_LOG2_CAP = 15
SETTINGS = (
    Setting("model", "ResNet-50", ARCHITECTURES, "model"),
    Setting("num_samples", 32, (1, 256), "batch a rank"),
    Setting("tflops", 40, (1, 500), "TFLOP/s"),
    Setting("log2_cap_mb", 3, (0, _MOST_LOG2_CAP), "log₂ cap [MiB]"),
    Setting("log2_ranks", 5, (1, 12), "log₂ ranks"),
    Setting("alpha_us", 50, (0, 500), "α [µs]"),
    Setting("gb_per_s", 25, (1, 400), "B [GB/s]"),
    Setting("slower", 0, (0, 200), "contention [%]"),
    Setting("accumulation", 1, (1, 8), "accumulation"),
    Setting("default_cap", True, (False, True), "DDP's default cap"),
    Setting("overlap", True, (False, True), "overlap"),
)
_CAPS_MB = tuple(2.0**power for power in range(_MOST_LOG2_CAP + 1))
_local = lru_cache(maxsize=8)(architecture_step)


def timeline(now: Now) -> Timeline:
    """Return one step: allreduces are rings over links of `alpha_us` and `gb_per_s`."""
    return simulate(local(now), cost(now), bucket_cap_mb=cap_mb(now), **options(now))


def local(now: Now) -> LocalStep:
    return _local(now.model, now.num_samples, now.tflops * 1e12)


def cost(now: Now) -> Cost:
    return allreduce_cost(Link(now.alpha_us / 1e6, now.gb_per_s * 1e9), 2**now.log2_ranks)


def cap_mb(now: Now) -> float | None:
    return None if now.default_cap else float(2**now.log2_cap_mb)


def options(now: Now) -> dict[str, Any]:
    slower = 1 + now.slower / 100
    return {"contention": Contention(slower, slower), "accumulation": now.accumulation, "overlap": now.overlap}


@lru_cache(maxsize=1)
def recommended(now: Now) -> Recommendation:
    return recommend(local(now), cost(now), caps_mb=_CAPS_MB, **options(now))


def picture(now: Now) -> Drawing:
    """One step."""
    spans, cap = timeline(now), cap_mb(now)
    words = "DDP's default cap" if cap is None else f"a cap of {cap:g} MiB"
    return draw_timeline(spans, title=f"{now.model} with {words}: {time_words(spans.makespan_s)} a step")


def caps(now: Now) -> Drawing:
    """A step with DDP's default and with other caps."""
    return draw_caps(recommended(now), cap_mb(now))


def report(now: Now) -> list[str]:
    """What the step is made of, and what is recommended."""
    step, found = local(now), recommended(now)
    mine = next(one for one in (found.default, *found.candidates) if one.bucket_cap_mb == cap_mb(now))
    held_s = max(mine.step_s - mine.wait_s - found.alone_s, 0.0)
    whole_s = float(cost(now)(step.num_bytes))
    gradients = f"{count_of(len(step.parameters), 'gradient')} of {bytes_words(step.num_bytes)}"
    what = f"{now.model}: {gradients}, {time_words(step.backward_s)} of backward a micro-batch"
    parts = f"computing alone {time_words(found.alone_s)}, held up {time_words(held_s)}"
    return [
        f"{what}; {2**now.log2_ranks} ranks",
        f"{time_words(mine.step_s)} a step: {parts}, waiting {time_words(mine.wait_s)} (exposed communication)",
        f"one allreduce of all gradients would take {time_words(whole_s)} by itself",
        *str(found).splitlines(),
    ]


@shows(SETTINGS)
def ddp() -> Explorer:
    """Return controls over one step, its time with other caps, what it is made of, and the cap that is recommended.

    `tflops` is what a rank computes per second, and `slower` by how many per cent computing and communicating slow each
    other down.
    """
    return Explorer(SETTINGS, {"picture": picture, "caps": caps}, report)
