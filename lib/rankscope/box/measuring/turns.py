"""Measuring several tasks in turns on all ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from .plan import Name, Protocol

if TYPE_CHECKING:
    from ...collectives.timing import Ranks, TimedTask


class Timings(NamedTuple):
    """The seconds of each iteration, and which iterations are clean."""

    seconds: tuple[float, ...]
    clean: tuple[bool, ...]


def measure_all(tasks: Mapping[Name, TimedTask], ranks: Ranks, protocol: Protocol) -> dict[Name, Timings]:
    """Return per task the seconds of each iteration (the slowest rank's) and which are clean; equal on every rank.

    The tasks take turns, so that drift affects all of them equally.
    """
    estimates = ranks.slowest([_estimate(task, ranks) for task in tasks.values()])
    expected_s = dict(zip(tasks, estimates, strict=True))
    iterations = protocol.in_turns(expected_s, lambda name: ranks.once(tasks[name]))
    return {name: _of_all(own, ranks) for name, own in iterations.items()}


def _estimate(task: TimedTask, ranks: Ranks) -> float:
    """Return the seconds of one whole iteration, after a first one that warms the caches."""
    ranks.once(task)
    begin = time.monotonic()
    ranks.once(task)
    return time.monotonic() - begin


def _of_all(own: list[tuple[float, bool]], ranks: Ranks) -> Timings:
    """Return the timings of all ranks: of the slowest, and clean only if every rank was undisturbed."""
    seconds = [iteration_s for iteration_s, _ in own]
    disturbed = [float(not clean) for _, clean in own]
    of_all = ranks.slowest(seconds + disturbed)
    return Timings(tuple(of_all[: len(own)]), tuple(not dirty for dirty in of_all[len(own) :]))
