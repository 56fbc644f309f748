"""DDP's buckets and steps, FSDP's collectives and memory, ZeRO's memory, Join, DataParallel and pipeline schedules."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from rankscope.cluster import Link
from rankscope.sampling import assign
from rankscope.train import data_parallel, ddp, fsdp, pipeline_parallel, uneven, zero

from .values import Cases, attempt, fields, floats, ints, plain, timeline

_LINK = Link(20e-6, 5e9)
_CAPS_MB = (None, 1.0, 5.0, 25.0, 100.0)
_SCHEDULES = (("gpipe", 1), ("one_f_one_b", 1), ("interleaved_1f1b", 2), ("interleaved_1f1b", 3))
_HANDLINGS = ("hang", "drop", "throw", "pad", "join")


def cases() -> Cases:
    rng = np.random.RandomState(46)
    all_cases: Cases = {}
    for number in range(80):
        all_cases[f"buckets {number}"] = partial(_buckets, _gradients(rng), int(rng.randint(1000)))
    for number in range(60):
        all_cases[f"ddp step {number}"] = partial(_ddp_step, _gradients(rng), int(rng.randint(1000)))
    for name in ("small CNN", "ResNet-50", "GPT-2", "LLaMA-7B"):
        all_cases[f"job {name}"] = partial(_job, name)
    for name in MODULES:
        all_cases[f"buckets of {name}"] = partial(_module_buckets, name)
        all_cases[f"zero {name}"] = partial(_zero_module, name)
        for number, settings in enumerate(_FSDP_SETTINGS):
            all_cases[f"fsdp {name} {number}"] = partial(_fsdp, name, settings)
        all_cases[f"fsdp {name}, recommended"] = partial(_fsdp_recommended, name)
    for size in (1e6, 7.5e9):
        all_cases[f"zero {size:.0f} parameters"] = partial(_zero_numbers, size)
    for number in range(40):
        batches = rng.randint(1, 9, rng.randint(1, 7)).tolist()
        all_cases[f"uneven {number}"] = partial(_uneven, batches, int(rng.randint(1000)))
    for name, chunks in _SCHEDULES:
        for ranks in (1, 2, 3, 4, 8):
            for microbatches in (1, 2, 4, 6, 8, 16):
                key = f"schedule {name} of {chunks} chunks, {ranks} ranks, {microbatches} microbatches"
                all_cases[key] = partial(_schedule, name, ranks, microbatches, chunks)
    for number in range(20):
        all_cases[f"data_parallel {number}"] = partial(_data_parallel, int(rng.randint(1000)))
    return all_cases


# ---- DDP


def _gradients(rng: np.random.RandomState) -> list[int]:
    """The bytes of each gradient, some of which are small and some larger than a bucket."""
    sizes = 2 ** rng.uniform(4, 25, rng.randint(1, 40))
    return (4 * np.maximum(sizes // 4, 1)).astype(int).tolist()


def _bucket_rows(buckets: Any) -> list[Any]:
    return [[plain(bucket.indices), bucket.num_bytes, bucket.cap_bytes, bucket.closed] for bucket in buckets]


def _all_buckets(parameters: Any, ready_order: list[int]) -> list[Any]:
    values = []
    for cap_mb in _CAPS_MB:
        for options in ({}, {"ready_order": ready_order}, {"find_unused_parameters": True}, {"static_graph": True}):
            made = ddp.buckets(parameters, cap_mb, **options)
            values.append([_bucket_rows(made.first), _bucket_rows(made.rebuilt), made.rebuilt_at])
    return values


def _buckets(sizes: list[int], seed: int) -> dict[str, Any]:
    """All buckets of float32 gradients of these bytes, whose numbers a module of such parameters has."""
    parameters = [nn.Parameter(torch.empty(size // 4, device="meta")) for size in sizes]
    order = np.random.RandomState(seed).permutation(len(sizes)).tolist()
    assigned = plain(ddp.assign_buckets(parameters, 5.0, 0.5))
    return {"sizes": sizes, "assigned": assigned, "buckets": _all_buckets(parameters, order)}


def _module_buckets(name: str) -> list[Any]:
    module = MODULES[name]()
    num_parameters = sum(parameter.requires_grad for parameter in module.parameters())
    return _all_buckets(module, list(range(num_parameters)))


def _ddp_step(sizes: list[int], seed: int) -> dict[str, Any]:
    rng = np.random.RandomState(seed)
    times_s = rng.uniform(0.002, 0.05, 4)
    local = ddp.LocalStep.modelled(
        sizes, times_s[0], forward_s=times_s[1], optimizer_s=times_s[2] / 4, unpack_s=times_s[3] / 8
    )
    if rng.randint(2):  # gradients that become ready in an order of their own
        ready_s = np.sort(rng.uniform(0, times_s[0], len(sizes)))[rng.permutation(len(sizes))]
        local = ddp.LocalStep(local.parameters, ready_s, times_s[1], times_s[0], times_s[2] / 4, times_s[3] / 8)
    cost = ddp.cost(_LINK, int(rng.choice([2, 4, 8, 64])))
    contention = ddp.Contention(float(rng.uniform(1, 1.5)), float(rng.uniform(1, 2)))
    options: dict[str, Any] = {
        "contention": contention if rng.randint(2) else ddp.Contention(),
        "accumulation": int(rng.choice([1, 1, 2, 4])),
        "overlap": bool(rng.randint(4)),
    }
    steps = [timeline(ddp.simulate(local, cost, bucket_cap_mb=cap_mb, **options)) for cap_mb in _CAPS_MB]
    advice = ddp.recommend(local, cost, **options)
    return {
        "sizes": sizes,
        "ready order": plain(local.ready_order),
        "steps": steps,
        "candidates": plain([*advice.candidates, advice.default, advice.chosen]),
        "alone_s": float(advice.alone_s),
    }


def _job(name: str) -> list[Any]:
    values = []
    for num_ranks in (2, 8, 64):
        for cap_mb in (None, 25.0, 100.0):
            job = ddp.job(name, 0.3, ddp.cost(_LINK, num_ranks), bucket_cap_mb=cap_mb)
            values.append(plain([job.step_s, job.allreduce_s, job.epoch_s(1_281_167, 32 * num_ranks, 5.0)]))
    return values


# ---- modules, for FSDP and ZeRO


def _tied() -> nn.Module:
    """A small language model whose head is its embedding."""
    blocks = [nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 40), nn.GELU(), nn.Linear(40, 16)) for _ in range(3)]
    module = nn.Sequential(nn.Embedding(30, 16), *blocks, nn.Linear(16, 30, bias=False))
    module[-1].weight = module[0].weight
    return module


def _frozen() -> nn.Module:
    """A network with a part that is not trained, and with a buffer."""
    module = nn.Sequential(nn.Conv2d(3, 7, 3), nn.GroupNorm(1, 7), nn.ReLU(), nn.Flatten(), nn.Linear(7 * 36, 5))
    module[0].requires_grad_(False)
    module[1].register_buffer("usual", torch.ones(7))
    return module


def _deep() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(33, 17), nn.Tanh(), nn.Linear(17, 33)) for _ in range(6)))


MODULES = {"tied": _tied, "frozen": _frozen, "deep": _deep}
_INPUTS = {
    "tied": lambda: torch.arange(40).reshape(4, 10) % 30,
    "frozen": lambda: torch.ones(4, 3, 8, 8),
    "deep": lambda: torch.ones(8, 33),
}
_FSDP_SETTINGS: list[dict[str, Any]] = [
    {"num_ranks": 2},
    {"num_ranks": 4, "wrap": ["*"]},
    {"num_ranks": 3, "wrap": ["*"]},
    {"num_ranks": 8, "wrap": ["*"], "reshard_after_forward": False},
    {"num_ranks": 8, "wrap": ["*"], "reshard_after_forward": None},
    {"num_ranks": 8, "wrap": ["*"], "reshard_after_forward": 2},
    {"num_ranks": 8, "wrap": ["*"], "num_replicas": 2, "prefetch": 1},
    {"num_ranks": 4, "wrap": ["*"], "param_dtype": "bfloat16", "reduce_dtype": "float32"},
    {"num_ranks": 4, "wrap": ["1"], "prefetch": 2},
]


def _loss(name: str) -> Any:
    """A loss of the named module as FSDP's functions call it."""
    return lambda module, rank, number: module(_INPUTS[name]()).float().square().mean()


def _with_parameters(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings, in which "*" stands for the parts that have parameters."""
    if settings.get("wrap") != ["*"]:
        return settings
    names = [child for child, part in MODULES[name]().named_children() if list(part.parameters())]
    return settings | {"wrap": names[1:-1] if name == "tied" else names}  # what shares a tensor is not wrapped apart


def _fsdp(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The collectives and the memory of a step, whose forward and backward take the same times in every run."""
    options = _with_parameters(name, settings)
    torch.manual_seed(0)
    module, loss = MODULES[name](), _loss(name)
    wrap = options.get("wrap", [])
    calls = fsdp.collectives(module, loss=loss, **options)
    observed = fsdp.observed_step(module, loss, wrap, param_dtype=options.get("param_dtype"))
    step = _timed(observed)
    replicas = options.get("num_replicas", 1)
    costs = fsdp.FSDPCosts.of_link(_LINK, options["num_ranks"] // replicas, num_replicas=replicas, replica_link=_LINK)
    predictions = []
    for overlap in (True, False):
        predicted = fsdp.predict(step, costs, overlap=overlap, **options)
        memory = predicted.memory
        predictions.append(
            {
                "step_s": float(predicted.step_s),
                "wait_s": float(predicted.wait_s),
                "spans": timeline(predicted.timeline),
                "peak_bytes": memory.peak_bytes,
                "peak_terms": plain(memory.peak_terms),
                "num_bytes": ints(memory.num_bytes),
                "groups": plain(predicted.groups),
            }
        )
    return {"settings": options, "collectives": plain(calls), "predictions": predictions}


def _timed(step: fsdp.ModuleStep) -> fsdp.ModuleStep:
    """The step without the times that were measured, so that pieces share the totals by their parameters."""
    return step.scaled(0.0, 0.0, 0.0).scaled(0.010, 0.020, 0.001)


def _fsdp_recommended(name: str) -> list[Any]:
    torch.manual_seed(0)
    module, loss = MODULES[name](), _loss(name)
    values = []
    for memory_bytes in (1e4, 1e5, 1e6):
        costs = fsdp.FSDPCosts.of_link(_LINK, 4)
        advice = fsdp.recommend(module, num_ranks=4, memory_bytes=memory_bytes, cost=costs, backward_s=0.01, loss=loss)
        rows = sorted(plain(row) for row in advice.candidates)
        values.append([rows, attempt(lambda chosen=advice.chosen: plain(chosen) if chosen else None)])
    return values


def _zero_module(name: str) -> dict[str, Any]:
    module = MODULES[name]()
    values: dict[str, Any] = {}
    for way in zero.WAYS:
        for recipe in ("fp32", "bf16"):
            for optimizer in ("sgd", "momentum", "adam"):
                memories = [
                    attempt(
                        lambda rank=rank: plain(
                            zero.memory(module, 4, way, recipe, optimizer, rank=rank, activation_bytes=1000).terms
                        )
                    )
                    for rank in (None, 0, 3)
                ]
                values[f"{way} {recipe} {optimizer}"] = memories
        values[f"{way}, traffic"] = attempt(lambda way=way: plain(zero.traffic(module, 4, way).exchanges))
    sizes = [parameter.numel() for parameter in module.parameters()]
    return values | {"partition": plain(zero.partition(sizes, 3))}


def _zero_numbers(size: float) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for stage in range(4):
        for num_ranks in (1, 7, 64):
            for recipe in ("fp32", "mixed", "bf16"):
                for optimizer in ("sgd", "momentum", "adam", "adam_8bit"):
                    memory = attempt(
                        lambda stage=stage, ranks=num_ranks, recipe=recipe, optimizer=optimizer: plain(
                            zero.memory(size, ranks, stage, recipe, optimizer, largest_layer=size / 10).terms
                        )
                    )
                    values[f"stage {stage}, {num_ranks} ranks, {recipe}, {optimizer}"] = memory
            values[f"stage {stage}, {num_ranks} ranks, traffic"] = plain(zero.traffic(size, num_ranks, stage).exchanges)
    return values


# ---- ranks that run out of batches, DataParallel, pipelines


def _uneven(num_batches: list[int], seed: int) -> dict[str, Any]:
    values: dict[str, Any] = {"batches": num_batches}
    rng = np.random.RandomState(seed)
    epoch = uneven.files_epoch(rng.randint(1, 9, 12).tolist(), len(num_batches), int(rng.randint(1, 5)), seed)
    values["epoch"] = [ints(rank) for rank in epoch.ranks]
    even = assign(40, len(num_batches), seed=seed).with_loader(3)
    for handling in _HANDLINGS:
        values[handling] = timeline(uneven.simulate(num_batches, handling, 0.01, 0.003, 0.2))
        for key, reads in (("files", epoch), ("even", even)):
            for divide in (True, False):
                values[f"{handling}, {key}, {divide}"] = attempt(
                    lambda reads=reads, handling=handling, divide=divide: _predicted(
                        uneven.predict(reads, handling, divide)
                    )
                )
    return values


def _predicted(predicted: Any) -> dict[str, Any]:
    arrays = {name: floats(getattr(predicted, name)) for name in ("scale", "weights")}
    trained = [ints(rank) for rank in predicted.trained.ranks]
    return {**arrays, "trained": trained, "counts": plain(predicted.counts), "failed": plain(predicted.failed)}


def _schedule(name: str, num_ranks: int, num_microbatches: int, num_chunks: int) -> Any:
    return attempt(lambda: _built(pipeline_parallel.build(name, num_ranks, num_microbatches, num_chunks)))


def _built(schedule: pipeline_parallel.PipelineSchedule) -> dict[str, Any]:
    pipeline_parallel.verify(schedule)
    arguments = (schedule.name, schedule.num_ranks, schedule.num_microbatches, schedule.num_chunks)
    return {
        "text": schedule.to_text().splitlines() if schedule.num_ranks * schedule.num_microbatches <= 32 else [],
        "in flight": plain(schedule.activations_in_flight()),
        "bubble": attempt(lambda: plain(pipeline_parallel.bubble_share(*arguments))),
        "simulated bubble": plain(pipeline_parallel.simulated_bubble(schedule)),
        "traffic": plain(pipeline_parallel.traffic(schedule, 1e6)),
        "spans": timeline(pipeline_parallel.simulate(schedule, 0.01, 0.021, _LINK, 1e6)),
        "without messages": timeline(pipeline_parallel.simulate(schedule, 0.01, 0.021)),
    }


def _data_parallel(seed: int) -> dict[str, Any]:
    rng = np.random.RandomState(seed)
    names = ("input_bytes", "output_bytes", "parameter_bytes", "frozen_bytes", "buffer_bytes")
    num_bytes = dict(zip(names, (2 ** rng.uniform(3, 28, 5)).astype(int).tolist(), strict=True))
    sizes = data_parallel.StepSizes(int(rng.randint(1, 65)), **num_bytes)
    costs = data_parallel.StepCosts(_LINK, 0.01, 0.02, 0.001)
    num_devices = int(rng.choice([1, 2, 3, 4, 8]))
    values = {}
    for how in ("data_parallel", "ddp"):
        spans = attempt(lambda how=how: timeline(data_parallel.simulate(sizes, num_devices, costs, how)))
        traffic = data_parallel.traffic(sizes, num_devices, how)
        values[how] = [spans, floats(traffic.link_bytes.ravel()), plain(traffic.bytes_of)]
    return {**fields(sizes, ("batch_size", *names)), **values}
