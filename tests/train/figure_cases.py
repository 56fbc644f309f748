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
from rankscope.train.ddp.buckets import ParameterSpec
from rankscope.train.ddp.recommend import Recommendation
from rankscope.train.figures.ddp import draw_buckets, draw_caps
from rankscope.train.figures.fsdp import draw_fsdp_step
from rankscope.train.figures.memory import draw_memory

LIMITS = {"24 GB": 24e9, "80 GB": 80e9, "141 GB": 141e9}
STAGES = {f"stage {s}": zero.memory(7.5e9, 64, s) for s in range(4)}
OVER_RANKS = {f"stage {s}": [zero.memory(7.5e9, 2**p, s) for p in range(11)] for s in range(4)}
SPECS = [ParameterSpec(str(n), 1 << 19) for n in range(12)]


@cache
def sharded_step(**options: Any) -> fsdp.PredictedStep:
    layers = [
        fsdp.ShardedLayer(f"layers.{n}", [50_000_000], forward_s=4e-3, backward_s=8e-3, activation_bytes=60_000_000)
        for n in range(4)
    ]
    step = fsdp.ModuleStep.of_layers([*layers, fsdp.ShardedLayer("head", [9_000_000], 1e-3, 2e-3)], optimizer_s=2e-3)
    costs = fsdp.FSDPCosts.of_link(Link(10e-6, 40e9), num_ranks=8, copy_bytes_per_s=1e12)
    return fsdp.predict(step, costs, num_ranks=8, wrap=["layers.*"], **options)


def step_without_memory() -> fsdp.PredictedStep:
    frozen = fsdp.ShardedParameter(("w",), (0,), trainable=False)
    step = fsdp.ModuleStep.of_layers([fsdp.ShardedLayer("a", [frozen], forward_s=1.0)])
    return fsdp.predict(step, lambda num_bytes: 1.0, num_ranks=2)


@cache
def recommendation(**options: Any) -> Recommendation:
    local = LocalStep.modelled([1 << 20] * 64, 0.064, unpack_s=0.004)
    return ddp.recommend(local, ddp.cost(Link(50e-6, 2e9), num_ranks=8), **options)


# of each public figure, and of each of its views, a call as the notebooks make it
FIGURES: dict[str, Callable[..., Axes]] = {
    "bucket_caps": lambda **on: figures.bucket_caps(
        recommendation(), {1.0: [0.1, 0.11, 0.12], None: [0.2, 0.21]}, **on
    ),
    "buckets": lambda **on: figures.buckets(ddp.buckets(SPECS, 2.0), **on),
    "fsdp_step": lambda **on: figures.fsdp_step(sharded_step(), **on),
    "zero_memory": lambda **on: figures.zero_memory(STAGES, LIMITS, **on),
    "zero_memory over ranks": lambda **on: figures.zero_memory(OVER_RANKS, LIMITS, **on),
}

DRAWINGS: dict[str, Drawing] = {
    "buckets": draw_buckets(ddp.buckets([*SPECS, ParameterSpec("sparse", 1 << 20, sparse=True)])),
    "caps": draw_caps(recommendation(), 8),
    "fsdp_step": draw_fsdp_step(sharded_step(prefetch=1)),
    "memory": draw_memory(STAGES, LIMITS, "stage 1"),
}

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: figures.fsdp_step([]), r"step must be a PredictedStep, got \[\]"),
    (lambda: figures.fsdp_step(step_without_memory()), "step must have memory to be drawn"),
    (lambda: figures.buckets([]), r"buckets must be a DDPBuckets, got \[\]"),
    (
        lambda: figures.buckets(ddp.buckets([ParameterSpec(str(n), 100) for n in range(257)], 0)),
        "^a drawing has at most 256 buckets, got 257: take a larger cap$",
    ),
    (lambda: figures.bucket_caps([1, 2]), "recommendation must be a Recommendation"),
    (lambda: figures.bucket_caps(recommendation(caps_mb=(8,))), r"at least two caps above 0 to be drawn, got \[8.0\]"),
    (lambda: figures.bucket_caps(recommendation(), {8: []}), "measured must have at least one step .* got none for 8"),
    (
        lambda: figures.bucket_caps(recommendation(), {8: [-1]}),
        "measured must be a finite number of at least 0, got -1",
    ),
    (lambda: figures.bucket_caps(recommendation(), {-8: [1]}), "a cap of measured must be a .* number above 0, got -8"),
    (lambda: figures.bucket_caps(recommendation(), [1.0]), r"measured must be a mapping, got \[1.0\]"),
    (
        lambda: figures.bucket_caps(recommendation(), {8: 0.5}),
        "measured must be a list of seconds of steps for each cap, got 0.5",
    ),
    (lambda: figures.zero_memory(STAGES, [24e9]), "limits_bytes must be a mapping, got"),
    (lambda: figures.zero_memory(OVER_RANKS, [24e9]), "limits_bytes must be a mapping, got"),
    (lambda: figures.zero_memory({}), "memories must be at least one, by name, got {}"),
    (lambda: figures.zero_memory({"a": 3}), r"memories\['a'\] must be a ZeroMemory, got 3"),
    (lambda: figures.zero_memory({"a": [1, 2]}), r"memories\['a'\] must be a sequence of ZeroMemory, got \[1, 2\]"),
    (lambda: figures.zero_memory({"a": []}), "memories must be lines of at least two numbers of ranks"),
    (lambda: figures.zero_memory(STAGES, {"24 GB": np.nan}), "limits_bytes must be a finite .* at least 0, got nan"),
    (lambda: figures.zero_memory(OVER_RANKS, {"none": 0}), "limits_bytes must be a finite number above 0, got 0"),
]
