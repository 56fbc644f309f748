"""Simulated pipelines, DataLoaders, part files and transfers, and the advice on recorded loaders."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np

from rankscope import pipeline as package
from rankscope.pipeline import Lognormal, Pipeline, Stage, advise, simulate
from rankscope.pipeline.cores import Cores
from rankscope.pipeline.epoch import BatchTimes, epoch
from rankscope.pipeline.profile import COLUMNS, LoaderProfile, LoaderSettings, PinningCosts
from rankscope.pipeline.service import draw as drawn_s
from rankscope.sampling import assign
from rankscope.timeline import Timeline

from .values import Cases, fields, plain, timeline

_ADVICE = ("bottleneck", "bottleneck_next", "waiting_share", "recorded_s")


def cases() -> Cases:
    draw = random.Random(45)
    all_cases: Cases = {}
    for number in range(40):
        all_cases[f"pipeline {number}"] = partial(_pipeline, *_random_pipeline(draw))
        all_cases[f"loader {number}"] = partial(_loader, _random_loader(draw))
        all_cases[f"part files {number}"] = partial(_parts, _random_parts(draw))
        all_cases[f"transfer {number}"] = partial(_transfer, _random_transfer(draw))
        all_cases[f"advice {number}"] = partial(_advice, draw.randrange(10**6))
    return all_cases


def _times(draw: random.Random, num_items: int) -> Any:
    """Seconds as a constant, a distribution, or a time for each item."""
    mean_s = draw.uniform(0.001, 0.05)
    listed = [mean_s * draw.uniform(0.5, 1.5) for _ in range(num_items)]
    return draw.choice([mean_s, Lognormal(mean_s, draw.uniform(0, 1.5)), listed])


def _random_pipeline(draw: random.Random) -> tuple[Any, ...]:
    num_items, num_ranks = draw.randint(1, 60), draw.choice([1, 1, 2, 4])
    stages = []
    for place in range(draw.randint(1, 4)):
        counts = (draw.randint(1, 4), draw.randint(1, 4), draw.choice([False, True]))
        stages.append(Stage(f"stage {place}", _times(draw, 200), None, *counts))
    if num_ranks > 1:  # then the last stage is the step that all ranks make together
        stages.append(Stage("train", _times(draw, 200)))
    return Pipeline(stages), num_items, num_ranks, num_ranks > 1 and draw.choice([False, True]), draw.randrange(100)


def _pipeline(pipeline: Pipeline, num_items: int, num_ranks: int, has_batches: bool, seed: int) -> dict[str, Any]:
    if has_batches:
        num_items = len(assign(num_items + num_ranks, num_ranks, seed=seed).with_loader(3).batches(0))
    spans = simulate(pipeline, num_items, seed, num_ranks)
    facts = fields(pipeline, ("bottleneck", "bound_per_s"))
    return {**facts, "bounds_per_s": plain(pipeline.bounds_per_s()), "spans": timeline(spans)}


def _random_loader(draw: random.Random) -> dict[str, Any]:
    num_batches = draw.randint(1, 80)
    services = [_times(draw, num_batches), _times(draw, num_batches)]
    num_workers = draw.choice([0, 1, 2, 3, 5, 8])
    prefetch_factor = draw.randint(1, 3)
    in_order = draw.choice([False, True, True])
    seed = draw.randrange(100)
    handover_s, receive_s, pin_s, held_s, startup_s = 0.0, 0.0, None, 0.0, 0.0
    if draw.choice([False, True]):
        handover_s, receive_s, held_s = (draw.uniform(0.0001, 0.003) for _ in range(3))
        pin_s, startup_s = draw.choice([None, 0.001]), draw.uniform(0, 0.2)
    cores = Cores()
    if draw.choice([False, True]):
        cores = Cores(draw.randint(1, 4), draw.uniform(0.2, 1), draw.uniform(0.2, 1))
    fetch, step = (drawn_s("it", service, num_batches, seed, 0, stream) for stream, service in enumerate(services))
    handover, receive = [handover_s] * num_batches, [receive_s] * num_batches
    pin = [pin_s] * num_batches if pin_s else None
    return {
        "work": BatchTimes(fetch.tolist(), step.tolist(), handover, receive, pin, held_s, startup_s),
        "num_workers": num_workers,
        "prefetch_factor": prefetch_factor,
        "in_order": in_order,
        "cores": cores,
    }


def _loader(options: dict[str, Any]) -> dict[str, Any]:
    return timeline(Timeline.of(epoch(**options)))


def _random_parts(draw: random.Random) -> dict[str, Any]:
    trainers, num_parts = draw.randint(1, 4), draw.randint(1, 7)
    listed = [[draw.uniform(0.01, 0.2) for _ in range(num_parts)] for _ in range(trainers)]
    return {
        "load_s": draw.choice([0.05, Lognormal(0.05, draw.uniform(0, 1.5)), listed]),
        "steps_per_part": [[draw.randint(1, 5) for _ in range(num_parts)] for _ in range(trainers)],
        "step_s": Lognormal(0.01, draw.uniform(0, 1)),
        "queue_size": draw.choice([None, 1, 2, 3]),
        "num_loaders": draw.randint(1, 3),
        "barrier_s": draw.choice([0, 0.002]),
        "seed": draw.randrange(100),
    }


def _parts(options: dict[str, Any]) -> dict[str, Any]:
    spans = package.simulate_parts(**options)
    return {"idle_share": float(package.idle_share(spans)), "spans": timeline(spans)}


def _random_transfer(draw: random.Random) -> dict[str, Any]:
    times_s = {name: draw.uniform(0.0005, 0.01) for name in ("load_s", "copy_s", "step_s")}
    counts = {"num_batches": draw.randint(3, 40), "num_workers": draw.randint(1, 3)}
    return {**counts, **times_s, "pin_s": draw.choice([0, 0.0007])}


def _transfer(options: dict[str, Any]) -> list[Any]:
    values = []
    for prefetched in (False, True):
        spans = package.simulate_transfer(prefetched=prefetched, **options)
        values.append([float(package.overlap_share(spans)), timeline(spans)])
    return values


def _advice(seed: int) -> dict[str, Any]:
    """The advice on a loader whose times vary, some of them by much."""
    draw = random.Random(seed)
    means_s = {name: draw.choice([1e-5, 0.002, 0.01, 0.03]) for name in COLUMNS}
    columns: dict[str, Any] = {}
    for name, mean_s in means_s.items():
        columns[name] = np.array([mean_s * draw.choice([0.8, 0.9, 1.1, 1.2, 5.0]) for _ in range(40)])
    has_gpu = draw.choice([False, True])
    settings = LoaderSettings(draw.randrange(5), 2, pin_memory=has_gpu and draw.choice([False, True]))
    costs = draw.choice([PinningCosts(0.004, 0.003, 0.001), None]) if has_gpu else None
    startup_s = draw.choice([0, 0.5])
    profile = LoaderProfile(settings, 40, draw.choice([2, 4, 64]), startup_s=startup_s, pinning=costs, **columns)
    advice = advise(profile, num_workers=(0, 1, 2, 4, 8), num_batches=100)
    rows = sorted(_row(row) for row in advice.rows)
    return fields(advice, _ADVICE) | {"current": _row(advice.current), "best": _row(advice.best), "rows": rows}


def _row(row: Any) -> list[Any]:
    settings = row.settings
    options = [settings.num_workers, settings.prefetch_factor, settings.in_order, settings.pin_memory]
    return [options, float(row.predicted_s), float(row.speedup)]
