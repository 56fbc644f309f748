"""Measuring several tasks in turns on all ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from .plan import Name, Protocol

if TYPE_CHECKING:
    from ...collectives.timing import Ranks, TimedTask


class Timings(NamedTuple):
    """The seconds of each iteration, and which iterations are clean, which means undisturbed."""

    seconds: tuple[float, ...]
    clean: tuple[bool, ...]


def measure_all(tasks: Mapping[Name, TimedTask], ranks: Ranks, protocol: Protocol) -> dict[Name, Timings]:
    """Return per task the seconds of each iteration (the slowest rank's) and which are clean; equal on every rank.

    The tasks take turns, so that drift affects all of them equally.
    """
    estimates = ranks.slowest([_estimate(task, ranks) for task in tasks.values()])
    expected_s = dict(zip(tasks, estimates, strict=True))
    iterations = protocol.in_turns(expected_s, lambda name: ranks.once(tasks[name]))
    return {name: _over_all_ranks(own_iterations, ranks) for name, own_iterations in iterations.items()}


def _estimate(task: TimedTask, ranks: Ranks) -> float:
    """Return the seconds of one whole iteration, after a first one that warms the caches."""
    ranks.once(task)
    begin = time.monotonic()
    ranks.once(task)
    return time.monotonic() - begin


def _over_all_ranks(own_iterations: list[tuple[float, bool]], ranks: Ranks) -> Timings:
    """Return the seconds of the slowest rank per iteration, and which iterations no rank was disturbed in.

    An own iteration has this rank's seconds, and whether it was undisturbed.
    """
    seconds = [own_s for own_s, _ in own_iterations]
    disturbed = [float(not is_clean) for _, is_clean in own_iterations]
    maxima = ranks.slowest(seconds + disturbed)  # one exchange for both; the maximum of 0 and 1 is "any rank"
    num_iterations = len(own_iterations)
    clean = [was_disturbed == 0 for was_disturbed in maxima[num_iterations:]]
    return Timings(tuple(maxima[:num_iterations]), tuple(clean))
