"""Simulated pipelines, DataLoaders, part files and transfers, and the advice on recorded loaders."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from rankscope import parts, transfer
from rankscope.pipeline import Cores, Handover, Lognormal, Pipeline, Stage, advise, simulate, simulate_dataloader
from rankscope.pipeline.advice import COLUMNS, LoaderProfile, LoaderSettings, PinningCosts  # without public names
from rankscope.sampling import assign

from .values import Cases, fields, plain, timeline

_ADVICE = ("bottleneck", "bottleneck_next", "waiting_share", "recorded_s")


def cases() -> Cases:
    rng = np.random.RandomState(45)
    all_cases: Cases = {}
    for number in range(40):
        all_cases[f"pipeline {number}"] = partial(_pipeline, *_random_pipeline(rng))
    for number in range(60):
        all_cases[f"loader {number}"] = partial(_loader, _random_loader(rng))
    for number in range(40):
        all_cases[f"part files {number}"] = partial(_parts, _random_parts(rng))
    for number in range(20):
        all_cases[f"transfer {number}"] = partial(_transfer, _random_transfer(rng))
    for number in range(40):
        all_cases[f"advice {number}"] = partial(_advice, int(rng.randint(10**6)))
    return all_cases


def _times(rng: np.random.RandomState, num_items: int) -> Any:
    """Seconds as a constant, a distribution, or a time for each item."""
    mean_s = float(rng.uniform(0.001, 0.05))
    kind = rng.randint(3)
    if kind == 0:
        return mean_s
    if kind == 1:
        return Lognormal(mean_s, float(rng.uniform(0, 1.5)))
    return (mean_s * rng.uniform(0.5, 1.5, num_items)).tolist()


def _random_pipeline(rng: np.random.RandomState) -> tuple[Any, ...]:
    num_items = int(rng.randint(1, 60))
    num_ranks = int(rng.choice([1, 1, 2, 4]))
    stages = []
    for place in range(rng.randint(1, 5)):
        workers = int(rng.randint(1, 5))
        ordered = bool(rng.randint(2))
        stages.append(Stage(f"stage {place}", _times(rng, 200), None, workers, int(rng.randint(1, 5)), ordered))
    if num_ranks > 1:  # then the last stage is the step that all ranks make together
        stages.append(Stage("train", _times(rng, 200)))
    has_batches = num_ranks > 1 and bool(rng.randint(2))
    return Pipeline(stages), num_items, num_ranks, has_batches, int(rng.randint(100))


def _pipeline(pipeline: Pipeline, num_items: int, num_ranks: int, has_batches: bool, seed: int) -> dict[str, Any]:
    items: Any = num_items
    if has_batches:
        items = assign(num_items + num_ranks, num_ranks, seed=seed).with_loader(3)
    spans = simulate(pipeline, items, seed, num_ranks)
    facts = fields(pipeline, ("bottleneck", "bound_per_s"))
    return {**facts, "bounds_per_s": plain(pipeline.bounds_per_s()), "spans": timeline(spans)}


def _random_loader(rng: np.random.RandomState) -> dict[str, Any]:
    num_batches = int(rng.randint(1, 80))
    options: dict[str, Any] = {
        "fetch_s": _times(rng, num_batches),
        "step_s": _times(rng, num_batches),
        "num_batches": num_batches,
        "num_workers": int(rng.choice([0, 1, 2, 3, 5, 8])),
        "prefetch_factor": int(rng.randint(1, 4)),
        "in_order": bool(rng.randint(3)),
        "seed": int(rng.randint(100)),
    }
    if rng.randint(2):
        costs_s = rng.uniform(0.0001, 0.003, 4)
        pin_s = float(costs_s[2]) if rng.randint(2) else None
        options["handover"] = Handover(costs_s[0], costs_s[1], pin_s, costs_s[3], float(rng.uniform(0, 0.2)))
    if rng.randint(2):
        shares = rng.uniform(0.2, 1, 2)
        options["cores"] = Cores(int(rng.randint(1, 5)), float(shares[0]), float(shares[1]))
    return options


def _loader(options: dict[str, Any]) -> dict[str, Any]:
    return timeline(simulate_dataloader(**options))


def _random_parts(rng: np.random.RandomState) -> dict[str, Any]:
    trainers, num_parts = int(rng.randint(1, 5)), int(rng.randint(1, 8))
    load_s = _times(rng, 1)
    if isinstance(load_s, list):
        load_s = rng.uniform(0.01, 0.2, (trainers, num_parts)).tolist()
    return {
        "load_s": load_s,
        "steps_per_part": rng.randint(1, 6, (trainers, num_parts)).tolist(),
        "step_s": Lognormal(0.01, float(rng.uniform(0, 1))),
        "queue_size": None if rng.randint(3) == 0 else int(rng.randint(1, 4)),
        "num_loaders": int(rng.randint(1, 4)),
        "barrier_s": float(rng.choice([0, 0.002])),
        "seed": int(rng.randint(100)),
    }


def _parts(options: dict[str, Any]) -> dict[str, Any]:
    spans = parts.simulate(**options)
    return {"idle_share": float(parts.idle_share(spans)), "spans": timeline(spans)}


def _random_transfer(rng: np.random.RandomState) -> dict[str, Any]:
    names = ("load_s", "copy_s", "step_s")
    times_s = dict(zip(names, rng.uniform(0.0005, 0.01, 3).tolist(), strict=True))
    pin_s = float(rng.choice([0, 0.0007]))
    return {"num_batches": int(rng.randint(3, 40)), "num_workers": int(rng.randint(1, 4)), "pin_s": pin_s, **times_s}


def _transfer(options: dict[str, Any]) -> list[Any]:
    values = []
    for prefetched in (False, True):
        spans = transfer.simulate(prefetched=prefetched, **options)
        values.append([float(transfer.overlap_share(spans)), timeline(spans)])
    return values


def _advice(seed: int) -> dict[str, Any]:
    """The advice on a loader whose times vary by a fifth."""
    rng = np.random.RandomState(seed)
    columns = {}
    for name in COLUMNS:
        mean_s = float(rng.choice([1e-5, 0.002, 0.01, 0.03]))
        columns[name] = mean_s * rng.uniform(0.8, 1.2, 40)
    has_gpu = bool(rng.randint(2))
    settings = LoaderSettings(int(rng.randint(0, 5)), 2, pin_memory=has_gpu and bool(rng.randint(2)))
    costs = PinningCosts(0.004, 0.003, 0.001) if has_gpu and rng.randint(2) else None
    startup_s = float(rng.choice([0, 0.5]))
    profile = LoaderProfile(
        settings, 40, int(rng.choice([2, 4, 64])), has_gpu, startup_s=startup_s, pinning=costs, **columns
    )
    advice = advise(profile, num_workers=(0, 1, 2, 4, 8), num_batches=100)
    rows = sorted(_row(row) for row in advice.rows)
    return fields(advice, _ADVICE) | {"current": _row(advice.current), "best": _row(advice.best), "rows": rows}


def _row(row: Any) -> list[Any]:
    settings = row.settings
    options = [settings.num_workers, settings.prefetch_factor, settings.in_order, settings.pin_memory]
    return [options, float(row.predicted_s), float(row.speedup)]
