"""The public figures of `train`: a call of each view, drawings, and what is refused.

They are for the battery in `tests/figures/test_every_figure.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from msgspec.structs import replace
from torch import Tensor, nn

from rankscope import figures
from rankscope.cluster import Link
from rankscope.drawing.drawing import Drawing
from rankscope.train import ddp, fsdp, zero
from rankscope.train.ddp import LocalStep
from rankscope.train.ddp.picture import draw_buckets, draw_caps
from rankscope.train.ddp.recommend import Recommendation
from rankscope.train.fsdp.picture import draw_fsdp_step

LIMITS = {"24 GB": 24e9, "80 GB": 80e9, "141 GB": 141e9}
STAGES = {f"stage {s}": zero.memory(7.5e9, 64, s) for s in range(4)}
BUCKETS = ddp.DDPBuckets(
    tuple(ddp.Gradient(str(n), (n + 1) << 18, sparse=n == 0) for n in range(6)),
    (((0, 1, 2, 3, 4, 5),), ((5,), (4, 3), (0,), (2, 1))),
    (1 << 20, 2 << 20),
)


def mean(module: nn.Module) -> Tensor:
    output: Tensor = module(torch.ones(64, 1024)).mean()
    return output


ON_A_GPU = fsdp.cost(lambda num_bytes: 1e-5 + num_bytes / 20e9, flops_per_s=1e12, bytes_per_s=1e12)


@cache
def sharded_step(**options: Any) -> fsdp.Step:
    module = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))).to("meta")
    return fsdp.observe(module, mean, num_ranks=8, wrap=["*"], optimizer=torch.optim.Adam, **options)


@cache
def recommendation(**options: Any) -> Recommendation:
    local = replace(LocalStep.modelled([1 << 20] * 64, 0.064), unpack_s=0.004)
    return ddp.recommend(local, ddp.cost(Link(50e-6, 2e9), num_ranks=8), **options)


# of each public figure, and of each of its views, a call as the notebooks make it
FIGURES: dict[str, Callable[..., Axes]] = {
    "bucket_caps": lambda **on: figures.bucket_caps(recommendation(), **on),
    "buckets": lambda **on: figures.buckets(BUCKETS, **on),
    "fsdp_step": lambda **on: figures.fsdp_step(sharded_step(), ON_A_GPU, **on),
    "zero_memory": lambda **on: figures.zero_memory(STAGES, LIMITS, **on),
}

DRAWINGS: dict[str, Drawing] = {
    "buckets": draw_buckets(BUCKETS),
    "caps": draw_caps(recommendation(), 8),
    "fsdp_step": draw_fsdp_step(sharded_step(), ON_A_GPU),
}

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: figures.bucket_caps(BUCKETS), "recommendation must be a Recommendation"),
    (lambda: figures.buckets(recommendation()), "buckets must be a DDPBuckets"),
    (lambda: figures.fsdp_step([], ON_A_GPU), "step must be a Step"),
    (lambda: figures.zero_memory({}), "at least one"),
    (lambda: figures.zero_memory(STAGES, {"24 GB": np.nan}), "limits_bytes"),
]
