"""The explorer of notebook 09: buckets, link and model, and which part of the allreduces a step cannot hide."""

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
from ..values.units import bytes_words, parse_bytes, time_words
from .panel import Explorer, Now, Setting, Steps, shows, sizes

DEFAULT = "default"
CAPS = Steps((*sizes(20, 24), ("25 MiB (default)", DEFAULT), *sizes(25, 35)))
SETTINGS = (
    Setting("model", "ResNet-50", ARCHITECTURES, "model"),
    Setting("num_ranks", 32, Steps(2**power for power in range(1, 13)), "ranks"),
    Setting("cap", DEFAULT, CAPS, "bucket cap", "bucket_cap_mb; with the default the first bucket has 1 MiB"),
    Setting("num_samples", 32, Steps((1, 2, 4, 8, 16, 32, 64, 128, 256)), "batch size per rank"),
    Setting("tflops", 40, Steps((1, 2, 5, 10, 20, 40, 60, 80, 100, 150, 200, 300, 400, 500)), "TFLOP/s per rank"),
    Setting("alpha_us", 50, Steps((0, 1, 2, 5, 10, 20, 50, 100, 200, 500)), "latency (α) [µs]"),
    Setting("gb_per_s", 25, Steps((1, 2, 3, 5, 10, 25, 50, 100, 200, 400)), "bandwidth (B) [GB/s]"),
    Setting(
        "slower",
        0,
        Steps((0, 5, 10, 20, 30, 50, 75, 100, 150, 200)),
        "contention [%]",
        "by how much computing and communicating slow each other down",
    ),
    Setting("accumulation", 1, range(1, 9), "micro-batches per step"),
    Setting("overlap", True, (False, True), "overlap"),
)
PRESETS: dict[str, dict[str, Any]] = {
    "ResNet-50 on 25 GB/s": {},
    "a network of 3 GB/s": {"gb_per_s": 3},
    "the same, 4 micro-batches": {"gb_per_s": 3, "accumulation": 4},
    "everything in one bucket": {"cap": "128 MiB"},
    "no overlap": {"overlap": False},
    "GPT-2, contention 100 %": {"model": "GPT-2", "slower": 100},
    "the same without overlap": {"model": "GPT-2", "slower": 100, "overlap": False},
    "LLaMA-7B, 1,024 ranks": {"model": "LLaMA-7B", "num_ranks": 1024},
    "32 ranks on 1 GB/s": {"gb_per_s": 1},
}
_CAPS_MB = tuple(2.0**power for power in range(16))
_local = lru_cache(maxsize=8)(architecture_step)


def timeline(now: Now) -> Timeline:
    """Return one step: allreduces are rings over links of `alpha_us` and `gb_per_s`."""
    return simulate(local(now), cost(now), bucket_cap_mb=cap_mb(now), **options(now))


def local(now: Now) -> LocalStep:
    return _local(now.model, now.num_samples, now.tflops * 1e12)


def cost(now: Now) -> Cost:
    return allreduce_cost(Link(now.alpha_us / 1e6, now.gb_per_s * 1e9), now.num_ranks)


def cap_mb(now: Now) -> float | None:
    return None if now.cap == DEFAULT else parse_bytes("cap", now.cap) / 2**20


def options(now: Now) -> dict[str, Any]:
    slower = 1 + now.slower / 100
    return {"contention": Contention(slower, slower), "accumulation": now.accumulation, "overlap": now.overlap}


@lru_cache(maxsize=1)
def recommended(now: Now) -> Recommendation:
    """Return the best cap: of yours, and of those up to the first that holds all gradients."""
    step, yours = local(now), cap_mb(now)
    enough_mb = next(cap for cap in _CAPS_MB if cap * 2**20 >= step.num_bytes)
    caps_mb = [cap for cap in _CAPS_MB if cap <= enough_mb or cap == yours]
    return recommend(step, cost(now), caps_mb=caps_mb, **options(now))


def picture(now: Now) -> Drawing:
    """One step."""
    spans, cap = timeline(now), cap_mb(now)
    words = "DDP's default cap" if cap is None else f"a cap of {cap:g} MiB"
    return draw_timeline(spans, title=f"{now.model} with {words}: {time_words(spans.makespan_s)} per step")


def caps(now: Now) -> Drawing:
    """A step with DDP's default and with other caps."""
    return draw_caps(recommended(now), cap_mb(now))


def report(now: Now) -> list[str]:
    """The parts of a step, and what is recommended."""
    step, found = local(now), recommended(now)
    mine = next(one for one in (found.default, *found.candidates) if one.bucket_cap_mb == cap_mb(now))
    held_s = mine.step_s - mine.wait_s - found.alone_s
    held_s = held_s if held_s > 1e-9 else 0.0  # a sum in another order
    whole_s = float(cost(now)(step.num_bytes))
    gradients = f"{count_of(len(step.parameters), 'gradient')} of {bytes_words(step.num_bytes)}"
    what = f"{now.model}: {gradients}, {time_words(step.backward_s)} of backward per micro-batch"
    parts = f"computing alone {time_words(found.alone_s)}, held up {time_words(held_s)}"
    return [
        f"{what}; {now.num_ranks} ranks",
        f"{time_words(mine.step_s)} per step: {parts}, waiting {time_words(mine.wait_s)} (exposed communication)",
        f"one allreduce of all gradients would take {time_words(whole_s)} by itself",
        *str(found).splitlines(),
    ]


def without_effect(now: Now) -> dict[str, str]:
    """Contention, where computing and communicating never happen at the same time."""
    return {} if now.overlap else {"slower": "without overlap, computing and communicating never slow each other down"}


@shows(SETTINGS)
def ddp() -> Explorer:
    """Return controls over one step, its time with other caps, its parts, and the cap that is recommended.

    `tflops` is the speed of a rank, and `slower` says by how many per cent computing and communicating slow each other
    down.
    """
    return Explorer(SETTINGS, {"picture": picture, "caps": caps}, report, PRESETS, without_effect)
