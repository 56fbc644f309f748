"""The explorer of notebook 07: buckets and network, and which part of the allreduces a step cannot hide."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ...box.profile import Profile
from ...common.units import bytes_words, parse_bytes, times_in_one_unit
from ...common.words import count_of
from ...drawing.drawing import Drawing
from ...panel.explorer import Explorer, Now, Setting, Steps, sizes
from ...timeline import Timeline
from ...timeline.picture import draw_timeline
from ..network_settings import BY_HAND, Networks
from .bucketing import MIB
from .local import Contention
from .model import simulate
from .picture import draw_caps
from .recommend import Recommendation, recommend
from .resnet50 import resnet50_step

FLOPS_PER_S = 40e12  # of a rank, about an A100 in single precision with TF32; a larger batch stands for a slower one
DEFAULT_CAP = "default"
CAPS = Steps((*sizes(20, 24), ("25 MiB (default)", DEFAULT_CAP), *sizes(25, 29)))
_resnet50_step = lru_cache(maxsize=16)(resnet50_step)
PRESETS: dict[str, dict[str, Any]] = {
    "4 micro-batches": {"accumulation": 4},
    "everything in one bucket": {"cap": "128 MiB"},
    "no overlap": {"overlap": False},
    "contention 100 %": {"slower": 100},
    "NCCL's model of A100s": {"network": "nccl:a100"},
    "measured on 32 A100s": {"network": "abci_a100_4x8"},
}


def ddp(profiles: Mapping[str, Profile] | None = None) -> Explorer:
    """Return controls over one step of ResNet-50, its time with other caps, its parts, and the cap that is recommended.

    The networks are latency and bandwidth set by hand, NCCL's model, machines of the bank, and recorded Gloo.
    `profiles`, by name, come before them, and the first of them is shown at first. A network that was measured has its
    own number of ranks. `slower` says by how many per cent computing and communicating slow each other down.

    Raises ValueError for anything but profiles, and for a profile without the backend's own allreduce.
    """
    networks = Networks(profiles)

    @lru_cache(maxsize=1)  # pictures and report ask for the same
    def predicted(now: Now) -> tuple[float | None, Timeline, Recommendation]:
        """Return the chosen cap in MiB (None for DDP's default), one step with it, and all caps compared."""
        slower = 1 + now.slower / 100
        options: dict[str, Any] = {
            "contention": Contention(slower, slower),
            "accumulation": now.accumulation,
            "overlap": now.overlap,
        }
        local = _resnet50_step(now.num_samples, FLOPS_PER_S)
        cap_mb = None if now.cap == DEFAULT_CAP else parse_bytes("cap", now.cap) / MIB
        cost = networks.cost(now)
        return cap_mb, simulate(local, cost, bucket_cap_mb=cap_mb, **options), recommend(local, cost, **options)

    def draw(now: Now) -> list[Drawing]:
        cap_mb, step, recommendation = predicted(now)
        whole, wait = times_in_one_unit(step.makespan_s, step.select(kind="wait").busy_s)
        job = f"ResNet-50, {count_of(networks.num_ranks(now), 'rank')}"
        if now.network == BY_HAND:
            job += f", {now.gb_per_s} GB/s"
        pictured = draw_timeline(step, f"Rank 0 waits for {wait} of {whole}", job)
        return [draw_caps(recommendation, cap_mb, job=job), pictured]

    def report(now: Now) -> list[str]:
        _, step, recommendation = predicted(now)
        wait_s = step.select(kind="wait").busy_s
        whole, alone, wait = times_in_one_unit(step.makespan_s, recommendation.alone_s, wait_s)
        num_bytes = _resnet50_step(now.num_samples, FLOPS_PER_S).num_bytes
        return [
            f"ResNet-50: {bytes_words(num_bytes)} of gradients; {count_of(networks.num_ranks(now), 'rank')}",
            f"{whole} per step: {alone} without communication, waiting {wait} (exposed communication)",
            *str(recommendation).splitlines(),
            *networks.about(now, num_bytes),
        ]

    network, num_ranks, latency, bandwidth = networks.settings()
    settings = (
        network,
        bandwidth._replace(default=3),  # so slow that a step waits for most of its time
        num_ranks,
        Setting("cap", DEFAULT_CAP, CAPS, "bucket cap"),
        Setting("num_samples", 32, Steps((1, 2, 4, 8, 16, 32, 64, 128, 256)), "batch size per rank"),
        Setting("accumulation", 1, range(1, 9), "micro-batches per step"),
        Setting("overlap", True, (), "overlap"),
        Setting("slower", 0, Steps((0, 10, 20, 50, 100, 200)), "contention [%]", lambda now: now.overlap),
        latency,
    )
    return Explorer(settings, draw, report, PRESETS)
