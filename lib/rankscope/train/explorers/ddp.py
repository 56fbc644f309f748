"""The explorer of notebook 07: buckets, network and model, and which part of the allreduces a step cannot hide."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ...common.units import bytes_words, parse_bytes, time_words, times_in_one_unit
from ...common.words import count_of
from ...explorers import networks
from ...explorers.explorer import Explorer, Now, Setting, Steps, sizes
from ...explorers.networks import BY_HAND, Networks
from ...figures.marks import Drawing
from ...figures.timelines import draw_timeline
from ...networks import Measured
from ...timeline import Timeline
from ..ddp.architectures import ARCHITECTURES, architecture_step
from ..ddp.recommend import CapCandidate, Recommendation, recommend
from ..ddp.step import Contention, LocalStep, simulate
from ..figures.ddp import draw_caps

DEFAULT_CAP = "default"
CAPS = Steps((*sizes(20, 24), ("25 MiB (default)", DEFAULT_CAP), *sizes(25, 35)))
# Parameters, gradients and Adam's two moments of LLaMA-7B take 108 GB in float32. So a rank of DDP needs a GPU like the
# B200 with its 180 GB, and next to all that only the activations of a few sequences of 2,048 tokens fit. Somebody who
# trains it that way accumulates: 64 ranks with 8 micro-batches of one sequence have a million tokens per step.
_LLAMA = {"model": "LLaMA-7B", "network": "nccl:b200", "num_ranks": 64, "num_samples": 1, "tflops": 500}
_SLOW = {"network": BY_HAND, "gb_per_s": 3}
PRESETS: dict[str, dict[str, Any]] = {
    "ResNet-50 on 32 A100s": {"network": networks.DEFAULT},
    "everything in one bucket": {"cap": "128 MiB"},
    "no overlap": {"overlap": False},
    "two V100s on 25 GbE": {"network": "v100_25gbe_2x1_no_gdr", "tflops": 10},
    "a small CNN over Gloo": {"model": "small CNN", "network": "loopback, two cores", "tflops": 1},
    "a network of 3 GB/s": _SLOW,
    "the same, 4 micro-batches": {**_SLOW, "accumulation": 4},
    "GPT-2, contention 100 %": {"model": "GPT-2", "slower": 100},
    "the same without overlap": {"model": "GPT-2", "slower": 100, "overlap": False},
    "LLaMA-7B on 64 B200s": {**_LLAMA, "accumulation": 8},
}
_CAPS_MB = tuple(2.0**power for power in range(16))  # up to 32 GiB, more than the gradients of any model here
_MIB = 2**20
_ROUNDING_S = 1e-9  # by which sums of the same times in another order may differ


def local(now: Now) -> LocalStep:
    """Return the times of the model's step on one rank."""
    return architecture_step(now.model, now.num_samples, now.tflops * 1e12)


def cap_mb(now: Now) -> float | None:
    """Return the chosen cap in MiB, None for DDP's default."""
    if now.cap == DEFAULT_CAP:
        return None
    return parse_bytes("cap", now.cap) / _MIB


def options(now: Now) -> dict[str, Any]:
    """Return the arguments of `simulate` and `recommend` that do not depend on the cap or the network."""
    slower = 1 + now.slower / 100
    return {"contention": Contention(slower, slower), "accumulation": now.accumulation, "overlap": now.overlap}


class Training:
    """The explorer's pictures and report of a step on some networks."""

    def __init__(self, networks: Networks) -> None:
        self.networks = networks
        self.recommended = lru_cache(maxsize=1)(self._recommended)  # pictures and report ask for the same

    def timeline(self, now: Now) -> Timeline:
        """Return one step."""
        return simulate(local(now), self.networks.cost(now), bucket_cap_mb=cap_mb(now), **options(now))

    def _recommended(self, now: Now) -> Recommendation:
        """Return the recommended cap: DDP's default, the chosen cap, and a series of caps are compared.

        The series ends with the first cap that has room for all gradients, because larger ones make the same bucket.
        """
        step = local(now)
        largest_mb = next(cap for cap in _CAPS_MB if cap * _MIB >= step.num_bytes)  # the last cap exceeds all models
        caps_mb = [cap for cap in _CAPS_MB if cap <= largest_mb or cap == cap_mb(now)]
        return recommend(step, self.networks.cost(now), caps_mb=caps_mb, **options(now))

    def draw(self, now: Now) -> list[Drawing]:
        """One step, and its time with DDP's default and with other caps."""
        timeline = self.timeline(now)
        cap = cap_mb(now)
        cap_words = "DDP's default cap" if cap is None else f"a cap of {cap:g} MiB"
        ranks = count_of(self.networks.num_ranks(now), "rank")
        title = f"{now.model}: {time_words(timeline.makespan_s)} per step"
        step = draw_timeline(timeline, title=title, deck=f"{ranks} with {cap_words}")
        return [step, draw_caps(self.recommended(now), cap)]

    def report(self, now: Now) -> list[str]:
        """The parts of a step, the recommended cap, and the source of the times of allreduces."""
        step = local(now)
        recommendation = self.recommended(now)
        chosen = _candidate(recommendation, cap_mb(now))
        held_up_s = chosen.step_s - chosen.wait_s - recommendation.alone_s  # by contention with the allreduces
        if held_up_s <= _ROUNDING_S:
            held_up_s = 0.0
        single_allreduce_s = float(self.networks.cost(now)(step.num_bytes))
        backward, whole, alone, held_up, wait, single_allreduce = times_in_one_unit(
            step.backward_s, chosen.step_s, recommendation.alone_s, held_up_s, chosen.wait_s, single_allreduce_s
        )
        gradients = f"{count_of(len(step.parameters), 'gradient')}, {bytes_words(step.num_bytes)} in total"
        ranks = count_of(self.networks.num_ranks(now), "rank")
        return [
            f"{now.model}: {gradients}; {backward} of backward per micro-batch; {ranks}",
            f"{whole} per step: computing alone {alone}, held up by allreduces {held_up}, "
            f"waiting {wait} (exposed communication)",
            f"one allreduce of all gradients would take {single_allreduce} by itself",
            *str(recommendation).splitlines(),
            *self.networks.about(now, step.num_bytes),
        ]


def _candidate(recommendation: Recommendation, cap_mb: float | None) -> CapCandidate:
    """Return the candidate with this cap, which is among those that `Training.recommended` compares."""
    candidates = (recommendation.default, *recommendation.candidates)
    return next(candidate for candidate in candidates if candidate.bucket_cap_mb == cap_mb)


def ddp(profiles: Mapping[str, Measured] | None = None) -> Explorer:
    """Return controls over one step, its time with other caps, its parts, and the cap that is recommended.

    The networks are machines of the bank, NCCL's model, recorded Gloo, and latency and bandwidth set by hand.
    `profiles`, by name, come before them. A network that was measured has its own number of ranks. `tflops` is the
    speed of a rank, and `slower` says by how many per cent computing and communicating slow each other down.

    Raises ValueError for anything but profiles, and for a profile without the backend's own allreduce.
    """
    offered = Networks(profiles)
    training = Training(offered)
    network, num_ranks, *link = offered.settings()
    speeds = Steps((1, 2, 5, 10, 20, 40, 60, 80, 100, 150, 200, 300, 400, 500))
    percents = Steps((0, 5, 10, 20, 30, 50, 75, 100, 150, 200))
    settings = (
        Setting("model", "ResNet-50", ARCHITECTURES, "model"),
        network,
        num_ranks,
        Setting("cap", DEFAULT_CAP, CAPS, "bucket cap"),
        Setting("num_samples", 32, Steps((1, 2, 4, 8, 16, 32, 64, 128, 256)), "batch size per rank"),
        Setting("accumulation", 1, range(1, 9), "micro-batches per step"),
        Setting("overlap", True, (), "overlap"),
        Setting("slower", 0, percents, "contention [%]", lambda now: now.overlap),
        Setting("tflops", 40, speeds, "TFLOP/s per rank"),
        *link,
    )
    return Explorer(settings, training.draw, training.report, PRESETS)
