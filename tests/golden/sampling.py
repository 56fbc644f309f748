"""The order of every sampler at 300 random settings, with audits, and what remains of an epoch after a stop."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np

from rankscope.sampling import (
    Assignment,
    BalancedSampler,
    DistributedRandomSampler,
    DistributedSampler,
    KeyedSampler,
    WeightedSampler,
    assign,
    audit,
    epoch_work,
    shard_files,
)

from .values import Cases, fields, floats, ints, plain

SAMPLERS = ("torch", "libtorch_random", "libtorch_sequential", "keyed", "balanced", "weighted")
_SETTINGS_OF_EACH = 50
_HUGE = 10**12
_COUNTS = ("epoch", "seed", "num_reads", "num_repeats", "shortest", "longest", "unit", "drops_incomplete")
_INDICES = ("overlap", "dropped", "out_of_range")


def cases() -> Cases:
    """Return the settings, and what each of them gives."""
    draw = random.Random(44)
    all_cases: Cases = {}
    for sampler in SAMPLERS:
        for number in range(_SETTINGS_OF_EACH):
            all_cases[f"{sampler} {number}"] = partial(_epochs, sampler, _settings(sampler, draw))
    for number in range(40):
        all_cases[f"stopped {number}"] = partial(_rest, *_stopped(draw))
    all_cases["keyed, 10**12 samples"] = _huge
    all_cases["libtorch, shuffled again"] = _shuffled_again
    all_cases["files"] = _files
    return all_cases


def _lengths(size: int, seed: int) -> np.ndarray[Any, Any]:
    """Lengths of samples between 1 and 999, of which a few are long."""
    return 1 + (np.random.RandomState(seed).uniform(size=size) ** 3 * 998).astype(np.int64)


def _settings(sampler: str, draw: random.Random) -> dict[str, Any]:
    least = 1 if sampler in ("balanced", "weighted") else 0
    settings: dict[str, Any] = {
        "size": int(2 ** draw.uniform(0, 11.5)) - 1 + least,
        "num_replicas": draw.choice([1, 2, 3, 4, 5, 7, 8, 16, 31, 64]),
        "drop_last": draw.choice([False, True]),
        "epoch": draw.randrange(6),
    }
    if not sampler.startswith("libtorch"):
        settings["seed"] = draw.randrange(1000)
        if sampler != "weighted":
            settings["shuffle"] = draw.choice([False, True, True, True])
    if sampler == "balanced":
        settings |= {"batch_size": draw.randint(1, 8), "window": draw.choice([2, 10, 100])}
        settings["cost"] = draw.choice(["linear", "quadratic"])
    if sampler == "weighted" and draw.choice([False, True]):
        settings["num_samples"] = draw.randint(1, 2 * settings["size"])
    return settings


def _epochs(sampler: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What the ranks read in an epoch and in the next one, the audit of both, and the cost of the steps."""
    options = dict(settings)
    options["num_ranks"] = options.pop("num_replicas")  # the name in the stored settings
    lengths = _lengths(options["size"], 1)
    name_of_values = {"balanced": "lengths", "weighted": "weights"}.get(sampler)
    if name_of_values is not None:
        options[name_of_values] = lengths
    first = assign(sampler=sampler, **options)
    second = assign(sampler=sampler, **(options | {"epoch": options["epoch"] + 1}))
    weights = lengths if sampler == "weighted" else None
    have_lengths = all((rank < lengths.size).all() for rank in (*first.ranks, *second.ranks))
    audited = audit([first, second], weights=weights, lengths=lengths if have_lengths else None)
    epochs = [
        fields(epoch, _COUNTS) | {name: ints(getattr(epoch, name)) for name in _INDICES} for epoch in audited.epochs
    ]
    return {
        "settings": settings,
        "reads": [_reads(epoch) for epoch in (first, second)],
        "repeats": [ints(np.concatenate(epoch.repeats())) for epoch in (first, second)],
        "findings": [finding.kind for finding in audited.findings],
        "epochs": epochs,
        "never_seen": ints(audited.never_seen),
        "repeated_orders": plain(audited.repeated_orders),
        "work": [_work(epoch, lengths) for epoch in (first, second)] if have_lengths else [],
        "batches": _reads(first.with_loader(3, drop_last=True)) if first.batch_stops is None else [],
    }


def _reads(epoch: Assignment) -> dict[str, Any]:
    """How many samples each rank reads, all of them rank by rank, and where batches end, if there are any."""
    stops = epoch.batch_stops
    return {
        "num_steps": epoch.num_steps,
        "counts": ints([rank.size for rank in epoch.ranks]),
        "indices": ints(np.concatenate(epoch.ranks)),
        "batch_stops": None if stops is None else ints(np.concatenate(stops)),
    }


def _work(epoch: Assignment, lengths: np.ndarray[Any, Any]) -> dict[str, Any]:
    work = epoch_work(epoch, lengths, cost="quadratic")
    numbers = {name: float(getattr(work, name)) for name in ("imbalance", "padding_share")}
    return numbers | {"tokens": ints(work.tokens), "step_costs": floats(work.step_costs.sum(axis=1))}


def _stopped(draw: random.Random) -> tuple[Any, ...]:
    """A sampler, its settings, the numbers of ranks before and after, and the share of the epoch that was trained."""
    kind = draw.choice(["torch", "keyed", "weighted", "balanced"])
    before = draw.choice([1, 2, 3, 4, 8])
    # A rest of balanced batches will be divided among other ranks in another way than today.
    after = before if kind == "balanced" else draw.choice([1, 2, 3, 4, 8])
    settings = {"seed": draw.randrange(100), "drop_last": draw.choice([False, True])}
    return kind, draw.randint(60, 460), settings, before, after, draw.uniform(0.1, 0.9)


def _sampler(kind: str, size: int, settings: dict[str, Any], num_ranks: int, rank: int) -> Any:
    if kind == "torch":
        return DistributedSampler(size, num_ranks, rank, **settings)
    if kind == "keyed":
        return KeyedSampler(size, num_ranks, rank, **settings)
    if kind == "weighted":
        return WeightedSampler(_lengths(size, 2), num_ranks, rank, **settings)
    return BalancedSampler(_lengths(size, 2), num_ranks, rank, batch_size=4, **settings)


def _rest(kind: str, size: int, settings: dict[str, Any], before: int, after: int, share: float) -> dict[str, Any]:
    """What each rank of the second job reads: the rest of epoch 2, and the epoch after it."""
    stopped = _sampler(kind, size, settings, before, 0)
    stopped.set_epoch(2)
    state = stopped.state_after(int(len(stopped) * share))
    rests = []
    for rank in range(after):
        sampler = _sampler(kind, size, settings, after, rank)
        (sampler.resume if kind == "torch" else sampler.load_state_dict)(state)
        rest = list(sampler)
        sampler.set_epoch(3)
        rests.append([ints(_flat(rest)), ints(_flat(sampler))])
    return {
        "sampler": kind,
        "size": size,
        "settings": settings,
        "ranks": [before, after],
        "share": share,
        "rests": rests,
    }


def _flat(items: Any) -> list[int]:
    return [index for item in items for index in (item if isinstance(item, list) else [item])]


def _huge() -> list[int]:
    """Samples at some positions of rank 5 of 64."""
    sampler = KeyedSampler(_HUGE, 64, 5, seed=7)
    return [int(sampler[position]) for position in (0, 1, 2, 1000, 10**9, len(sampler) - 1)]


def _shuffled_again() -> list[Any]:
    """Each epoch of libtorch's sampler shuffles the order of the one before it."""
    sampler = DistributedRandomSampler(50, 4, 1, shuffle_first=True)
    orders = []
    for _ in range(4):
        orders.append([sampler.next(5), sampler.next(7), sampler.next(50), sampler.next(1)])
        sampler.reset()
    return orders


def _files() -> list[Any]:
    names = [f"part_{number:03d}" for number in range(37)]
    return [
        shard_files(names, trainers, trainer, seed)
        for trainers in (1, 4)
        for trainer in range(trainers)
        for seed in (0, 9)
    ]
