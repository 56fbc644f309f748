"""The public figures of `train`: a call of each view, drawings, and what is refused.

They are for the battery in `tests/figures/test_every_figure.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from rankscope import figures
from rankscope.cluster import Link
from rankscope.figures.marks import Drawing
from rankscope.train import ddp, fsdp, zero
from rankscope.train.ddp import LocalStep
from rankscope.train.ddp.recommend import Recommendation
from rankscope.train.figures.ddp import draw_buckets, draw_caps
from rankscope.train.figures.fsdp import draw_fsdp_step
from rankscope.train.figures.memory import draw_memory

LIMITS = {"24 GB": 24e9, "80 GB": 80e9, "141 GB": 141e9}
STAGES = {f"stage {s}": zero.memory(7.5e9, 64, s) for s in range(4)}
BUCKETS = ddp.DDPBuckets(
    tuple(ddp.Gradient(str(n), (n + 1) << 18, sparse=n == 0) for n in range(6)),
    (((0, 1, 2, 3, 4, 5),), ((5,), (4, 3), (0,), (2, 1))),
    (1 << 20, 2 << 20),
)


@cache
def sharded_step(**options: Any) -> fsdp.PredictedStep:
    layers = [
        fsdp.ShardedLayer(f"layers.{n}", [50_000_000], forward_s=4e-3, backward_s=8e-3, activation_bytes=60_000_000)
        for n in range(4)
    ]
    step = fsdp.ModuleStep.of_layers([*layers, fsdp.ShardedLayer("head", [9_000_000], 1e-3, 2e-3)], optimizer_s=2e-3)
    costs = fsdp.FSDPCosts.of_link(Link(10e-6, 40e9), num_ranks=8, copy_bytes_per_s=1e12)
    return fsdp.predict(step, costs, num_ranks=8, wrap=["layers.*"], **options)


@cache
def recommendation(**options: Any) -> Recommendation:
    local = LocalStep.modelled([1 << 20] * 64, 0.064, unpack_s=0.004)
    return ddp.recommend(local, ddp.cost(Link(50e-6, 2e9), num_ranks=8), **options)


# of each public figure, and of each of its views, a call as the notebooks make it
FIGURES: dict[str, Callable[..., Axes]] = {
    "bucket_caps": lambda **on: figures.bucket_caps(recommendation(), **on),
    "buckets": lambda **on: figures.buckets(BUCKETS, **on),
    "fsdp_step": lambda **on: figures.fsdp_step(sharded_step(), **on),
    "zero_memory": lambda **on: figures.zero_memory(STAGES, LIMITS, **on),
}

DRAWINGS: dict[str, Drawing] = {
    "buckets": draw_buckets(BUCKETS),
    "caps": draw_caps(recommendation(), 8),
    "fsdp_step": draw_fsdp_step(sharded_step(prefetch=1)),
    "memory": draw_memory(STAGES, LIMITS, "stage 1"),
}

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: figures.bucket_caps(BUCKETS), "recommendation must be a Recommendation"),
    (lambda: figures.buckets(recommendation()), "buckets must be a DDPBuckets"),
    (lambda: figures.fsdp_step([]), "step must be a PredictedStep"),
    (lambda: figures.zero_memory({"a": 3}), "must be a ZeroMemory"),
    (lambda: figures.zero_memory(STAGES, {"24 GB": np.nan}), "limits_bytes"),
]
