"""DDP's buckets and steps, ranks that run out of batches, DataParallel, and the schedules of pipeline parallelism."""

from __future__ import annotations

import random
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from rankscope.cluster import Link
from rankscope.sampling import Assignment, assign
from rankscope.train import data_parallel, ddp, pipeline_parallel, uneven

from .values import Cases, attempt, floats, ints, plain, timeline

_LINK = Link(20e-6, 5e9)
_CAPS_MB = (None, 1.0, 5.0, 25.0, 100.0)
_SCHEDULES = (("gpipe", 1), ("one_f_one_b", 1), ("interleaved_1f1b", 2), ("interleaved_1f1b", 3))
_HANDLINGS = ("hang", "drop", "throw", "pad", "join")


def cases() -> Cases:
    draw = random.Random(46)
    all_cases: Cases = {}
    for number in range(60):
        all_cases[f"buckets {number}"] = partial(_buckets, _gradients(draw), draw.randrange(1000))
        all_cases[f"step {number}"] = partial(_step, _gradients(draw), draw.randrange(1000))
    for name in ("ResNet-50", "GPT-2"):
        all_cases[f"step of {name}"] = partial(_architecture, name)
    for number in range(40):
        batches = [draw.randint(1, 8) for _ in range(draw.randint(1, 6))]
        all_cases[f"uneven {number}"] = partial(_uneven, batches, draw.randrange(1000))
    for (name, chunks), ranks, microbatches in product(_SCHEDULES, (1, 2, 3, 4, 8), (1, 2, 4, 6, 8, 16)):
        key = f"schedule {name} of {chunks} chunks, {ranks} ranks, {microbatches} microbatches"
        all_cases[key] = partial(attempt, _schedule, name, ranks, microbatches, chunks)
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


def _uneven(num_batches: list[int], seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    files = [draw.randint(1, 8) for _ in range(12)]
    epoch = uneven.files_epoch(files, len(num_batches), draw.randint(1, 4), seed)
    even = assign(40, len(num_batches), seed=seed).with_loader(3)
    values: dict[str, Any] = {"batches": num_batches, "epoch": [ints(rank) for rank in epoch.ranks]}
    for handling in _HANDLINGS:
        values[handling] = timeline(uneven.simulate(num_batches, handling, 0.01, 0.003, 0.2))
        values[f"{handling}, trained"] = [
            attempt(_trained, reads, handling, divide) for reads in (epoch, even) for divide in (False, True)
        ]
    return values


def _trained(reads: Assignment, handling: str, divide: bool) -> list[Any]:
    predicted = uneven.predict(reads, handling, divide)
    columns = [floats(predicted.scale), floats(predicted.weights), *map(ints, predicted.trained.ranks)]
    return [columns, plain(predicted.counts), plain(predicted.failed)]


def _schedule(*arguments: Any) -> dict[str, Any]:
    schedule = pipeline_parallel.build(*arguments)
    pipeline_parallel.verify(schedule)
    return {
        "text": schedule.to_text().splitlines(),
        "in flight": plain(schedule.activations_in_flight()),
        "bubble": attempt(lambda: plain(pipeline_parallel.bubble_share(*arguments))),
        "simulated bubble": plain(pipeline_parallel.simulated_bubble(schedule)),
        "traffic": plain(pipeline_parallel.traffic(schedule, 1e6)),
        "spans": timeline(pipeline_parallel.simulate(schedule, 0.01, 0.021, _LINK, 1e6)),
        "without messages": timeline(pipeline_parallel.simulate(schedule, 0.01, 0.021)),
    }


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
