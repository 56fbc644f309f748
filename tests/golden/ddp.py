"""DDP's buckets and steps, and DataParallel."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np

from rankscope.cluster import Link
from rankscope.train import data_parallel, ddp

from .values import Cases, floats, plain, timeline

_LINK = Link(20e-6, 5e9)
_CAPS_MB = (None, 1.0, 5.0, 25.0, 100.0)


def cases() -> Cases:
    draw = random.Random(46)
    all_cases: Cases = {}
    for number in range(60):
        all_cases[f"buckets {number}"] = partial(_buckets, _gradients(draw), draw.randrange(1000))
        all_cases[f"step {number}"] = partial(_step, _gradients(draw), draw.randrange(1000))
    for name in ("ResNet-50", "GPT-2"):
        all_cases[f"step of {name}"] = partial(_architecture, name)
    for _ in range(40):  # of cases that are in `parallel` now; those below keep their numbers
        for _ in range(draw.randint(1, 6)):
            draw.randint(1, 8)
        draw.randrange(1000)
    for number in range(20):
        all_cases[f"data_parallel {number}"] = partial(_data_parallel, draw.randrange(1000))
    return all_cases


def _gradients(draw: random.Random) -> list[int]:
    """The bytes of each gradient, some of which are small and some larger than a bucket."""
    return [4 * int(2 ** draw.uniform(2, 23)) for _ in range(draw.randint(1, 39))]


def _buckets(sizes: list[int], seed: int) -> dict[str, Any]:
    """The buckets of gradients of these bytes with each cap: in the order of definition, its reverse, and another."""
    gradients = [ddp.Gradient(str(number), size) for number, size in enumerate(sizes)]
    defined = list(range(len(sizes)))
    order = defined.copy()
    random.Random(seed).shuffle(order)
    made = [[ddp.assign(gradients, one, cap) for one in (defined, defined[::-1], order)] for cap in _CAPS_MB]
    return {"sizes": sizes, "buckets": plain(made)}


def _step(sizes: list[int], seed: int) -> dict[str, Any]:
    """The step with each cap, of gradients that are ready in the usual order or in one of their own, and the advice."""
    draw = random.Random(seed)
    backward_s = draw.uniform(0.002, 0.05)
    others_s = (draw.uniform(0.002, 0.05), draw.uniform(0, 0.01), draw.uniform(0, 0.01))
    names = ("forward_s", "optimizer_s", "unpack_s")
    local = ddp.LocalStep.modelled(sizes, backward_s, **dict(zip(names, others_s, strict=True)))
    if draw.choice([False, True]):
        ready_s = np.array([draw.uniform(0, backward_s) for _ in sizes])
        local = ddp.LocalStep(local.gradients, ready_s, others_s[0], backward_s, *others_s[1:])
    cost = ddp.cost(_LINK, draw.choice([2, 4, 8, 64]))
    options: dict[str, Any] = {
        "contention": draw.choice([ddp.Contention(), ddp.Contention(draw.uniform(1, 1.5), draw.uniform(1, 2))]),
        "accumulation": draw.choice([1, 1, 2, 4]),
        "overlap": draw.choice([False, True, True, True]),
    }
    advice = ddp.recommend(local, cost, caps_mb=[1, 2, 4, 8, 16, 25, 32, 64, 128, 256, 512], **options)
    return {
        "sizes": sizes,
        "steps": [timeline(ddp.simulate(local, cost, bucket_cap_mb=cap_mb, **options)) for cap_mb in _CAPS_MB],
        "candidates": plain([*advice.candidates, advice.default, advice.chosen]),
        "alone_s": float(advice.alone_s),
    }


def _architecture(name: str) -> list[Any]:
    local = ddp.architecture_step(name, 32, 40e12)
    return [floats(local.ready_s), local.num_bytes, local.forward_s, timeline(ddp.simulate(local, ddp.cost(_LINK, 8)))]


def _data_parallel(seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    num_bytes = [int(2 ** draw.uniform(3, 28)) for _ in range(5)][:3]
    sizes = data_parallel.StepSizes(draw.randint(1, 64), *num_bytes)
    costs = data_parallel.StepCosts(_LINK, 0.01, 0.02, 0.001)
    num_devices = draw.choice([1, 2, 3, 4, 8])
    values: dict[str, Any] = {"bytes": num_bytes, "devices": num_devices}
    for how in ("data_parallel", "ddp"):
        traffic = data_parallel.traffic(sizes, num_devices, how)
        spans = timeline(data_parallel.simulate(sizes, num_devices, costs, how))
        values[how] = [spans, floats(traffic)]
    return values
