"""Measuring several tasks in turns on all ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .plan import Name, Protocol

if TYPE_CHECKING:
    from ...collectives.timing import Ranks, TimedTask

Timings = tuple[tuple[float, ...], tuple[bool, ...]]  # seconds, and which iterations are clean


def measure_all(tasks: Mapping[Name, TimedTask], ranks: Ranks, protocol: Protocol) -> dict[Name, Timings]:
    """Return per task the seconds of each iteration (the slowest rank's) and which are clean; equal on every rank.

    The tasks take turns, so that drift affects all of them equally.
    """
    estimates = ranks.slowest([_estimate(task, ranks) for task in tasks.values()])
    found = protocol.in_turns(dict(zip(tasks, estimates, strict=True)), lambda name: ranks.once(tasks[name]))
    return {name: _of_all(mine, ranks) for name, mine in found.items()}


def _estimate(task: TimedTask, ranks: Ranks) -> float:
    """The seconds of one whole iteration, after a first one that warms the caches."""
    ranks.once(task)
    begin = time.monotonic()
    ranks.once(task)
    return time.monotonic() - begin


def _of_all(mine: list[tuple[float, bool]], ranks: Ranks) -> Timings:
    both = ranks.slowest([seconds for seconds, _ in mine] + [float(not clean) for _, clean in mine])
    return tuple(both[: len(mine)]), tuple(not dirty for dirty in both[len(mine) :])
