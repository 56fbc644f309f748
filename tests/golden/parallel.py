"""ZeRO's memory and traffic, ranks that run out of batches, and the schedules of pipeline parallelism."""

from __future__ import annotations

import random
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from rankscope.cluster import Link
from rankscope.sampling import Assignment, assign, shard_files
from rankscope.train import pipeline_parallel, uneven, zero

from ..small import Tied
from .values import Cases, attempt, floats, ints, plain, timeline

_MESSAGE_S = Link(20e-6, 5e9).seconds(1e6)
_SCHEDULES = (("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("Interleaved1F1B", 3))
_HANDLINGS = ("hang", "drop", "pad", "join")
_RECIPES = ("fp32", "mixed", "bf16")
_OPTIMIZERS = ("sgd", "momentum", "adam", "adam_8bit")


def cases() -> Cases:
    draw = random.Random(46)
    all_cases: Cases = {}
    for number in range(40):
        batches = [draw.randint(1, 8) for _ in range(draw.randint(1, 6))]
        all_cases[f"uneven {number}"] = partial(_uneven, batches, draw.randrange(1000))
    for (name, chunks), ranks, microbatches in product(_SCHEDULES, (1, 2, 3, 4, 8), (1, 2, 4, 6, 8, 16)):
        key = f"schedule {name} of {chunks} chunks, {ranks} ranks, {microbatches} microbatches"
        all_cases[key] = partial(attempt, _schedule, name, ranks, microbatches, chunks)
    for size in (1e6, 7.5e9):
        for stage, num_ranks in product(range(4), (1, 7, 64)):
            all_cases[f"zero, {size:.0f} parameters, stage {stage}, {num_ranks} ranks"] = partial(
                _zero, size, num_ranks, stage, [{"largest_layer": size / 10}]
            )
    for way in zero.WAYS:
        options: list[dict[str, Any]] = [{"rank": rank, "activation_bytes": 1000} for rank in (None, 0, 3)]
        all_cases[f"zero of a module, {way}"] = partial(_zero, Tied(), 4, way, options)
    return all_cases


def _zero(model: Any, num_ranks: int, stage: Any, options: list[dict[str, Any]]) -> list[Any]:
    """The traffic, and the memory with each recipe and optimizer."""
    terms = []
    for recipe, optimizer, option in product(_RECIPES, _OPTIMIZERS, options):
        terms.append(plain(zero.memory(model, num_ranks, stage, recipe, optimizer, **option).terms))
    return [terms, plain(zero.traffic(model, num_ranks, stage).exchanges)]


def _uneven(num_batches: list[int], seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    files = [draw.randint(1, 8) for _ in range(12)]
    epoch = _of_files(files, len(num_batches), seed).with_loader(draw.randint(1, 4))
    even = assign(40, len(num_batches), seed=seed).with_loader(3)
    values: dict[str, Any] = {"batches": num_batches, "epoch": [ints(rank) for rank in epoch.ranks]}
    for handling in _HANDLINGS:
        values[handling] = timeline(uneven.simulate(num_batches, handling, 0.01, 0.003, 0.2))
        values[f"{handling}, trained"] = [
            attempt(_trained, reads, handling, divide) for reads in (epoch, even) for divide in (False, True)
        ]
    return values


def _of_files(sizes: list[int], num_ranks: int, seed: int) -> Assignment:
    """An epoch in which each rank reads whole files."""
    starts = np.cumsum([0, *sizes])
    names = [f"{file:09}" for file in range(len(sizes))]  # numbers that sort as names, too
    ranks = []
    for rank in range(num_ranks):
        own = [int(name) for name in shard_files(names, num_ranks, rank, seed)]
        samples = [np.arange(starts[file], starts[file + 1]) for file in own]
        ranks.append(np.concatenate([np.empty(0, dtype=np.int64), *samples]))
    return Assignment(int(starts[-1]), tuple(ranks), sampler="files", seed=seed)


def _trained(reads: Assignment, handling: str, divide: bool) -> list[Any]:
    predicted = uneven.predict(reads, handling, divide)
    columns = [floats(predicted.scale), floats(predicted.weights), *map(ints, predicted.trained.ranks)]
    return [columns, plain(predicted.stuck)]


def _schedule(*arguments: Any) -> dict[str, Any]:
    schedule = pipeline_parallel.build(*arguments)
    return {
        "text": schedule.to_text().splitlines()[1:],
        "in flight": plain(schedule.activations_in_flight()),
        "bubble": pipeline_parallel.bubble_share(pipeline_parallel.simulate(schedule, 0.01, 0.02)),
        "messages": plain(pipeline_parallel.messages(schedule)),
        "spans": timeline(pipeline_parallel.simulate(schedule, 0.01, 0.021, message_s=_MESSAGE_S)),
        "without messages": timeline(pipeline_parallel.simulate(schedule, 0.01, 0.021)),
    }
