"""Profiles made up for tests: times as the model has them, with noise that is the same each time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rankscope.box import Profile
from rankscope.box.points import Point

PROVENANCE: dict[str, Any] = {
    "name": "made up",
    "date": "2030-01-02T03:04:05+00:00",
    "command": "rankscope profile -o made.json",
    "rankscope": "0.1.0",
    "python": "3.12.1",
    "torch": "2.13.0",
    "backend": "gloo",
    "num_ranks": 4,
    "num_nodes": 1,
    "ranks_per_node": [4],
    "network": "loopback",
    "system": "Linux 6.1 x86_64",
    "cpu": "a processor",
    "num_cores": 8,
    "memory_bytes": 2**34,
    "gpus": [{"name": "a card", "memory_bytes": 2**33, "driver": "1", "cuda": "12.4", "nccl": "2.20"}],
}
PROTOCOL: dict[str, Any] = {
    "warm_up": 2,
    "iterations": 9,
    "dtype": "float32",
    "start": "agreed instant",
    "statistic": "slowest rank of each iteration",
    "clock": "monotonic",
    "verified": True,
}
SIZES = tuple(2**power for power in range(10, 25))
ALPHA_S, BYTES_PER_S, GAMMA = 50e-6, 1e9, 1e-10


def samples(seconds: float, draw: np.random.Generator, noise: float = 0.02, number: int = 9) -> list[float]:
    """Return so many times round this one."""
    return [float(one) for one in seconds * (1 + noise * draw.standard_normal(number))]


def point(what: str, num_bytes: int, seconds: float, noise: float = 0.0, **options: Any) -> Point:
    """Return a point of nine clean iterations."""
    return Point(what, num_bytes, samples(seconds, np.random.default_rng(num_bytes), noise), [True] * 9, options)


def links(
    where: Sequence[str] = ("intra",),
    how: Mapping[str, float] = {"ping_pong": 1.0, "together": 1.0},
    sizes: Sequence[int] = SIZES,
    noise: float = 0.02,
    seconds: Callable[[int], float] = lambda size: ALPHA_S + size / BYTES_PER_S,
) -> list[Point]:
    """Return messages, those of a kind so many times as long as `seconds` says, and sums in memory."""
    messages = [
        point(kind, size, times * seconds(size), noise, link=place)
        for place in where
        for kind, times in how.items()
        for size in sizes
    ]
    return messages + [point("add", size, 1e-6 + size * GAMMA, noise) for size in sizes]


def profile(points: Sequence[Point] = (), **provenance: Any) -> Profile:
    """Return a profile of these points."""
    return Profile(PROVENANCE | provenance, PROTOCOL, tuple(points))


def collective(
    base: Profile,
    times: Mapping[str, Callable[[int], float]],
    what: str = "allreduce",
    sizes: Sequence[int] = SIZES,
    noise: float = 0.02,
) -> Profile:
    """Return the profile with a collective whose algorithms take what the functions say."""
    for name, seconds in times.items():
        for size in sizes:
            base = base.add(point(what, size, seconds(size), noise, algorithm=name, in_place=True))
    return base


def as_predicted(base: Profile, names: Sequence[str], share: float = 1.0, noise: float = 0.02) -> Profile:
    """Return the profile with an allreduce that takes what is predicted, or a share of that."""
    times = {
        name: lambda size, name=name: share * base.predict(point("allreduce", size, 1.0, algorithm=name)).makespan_s  # type: ignore[misc]
        for name in names
    }
    return collective(base, times, noise=noise)
