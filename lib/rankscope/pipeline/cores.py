"""`Cores`: how fast threads run that share the cores of a machine."""

from __future__ import annotations

import math
from typing import NamedTuple

_NUM_HALVINGS = 60  # of the interval in which the share of a core is searched: as exact as a float


class Speeds(NamedTuple):
    """How fast each fetch and the step run; 1 is the speed of one that runs alone."""

    fetch: float
    step: float


class Cores(NamedTuple):
    """Cores that fetches and steps share fairly.

    `fetch_cpu` and `step_cpu` are the numbers of cores that a fetch or step keeps busy while it runs alone, such as 0.1
    if it mostly waits, or 4 for a step with 4 threads.
    """

    num_cores: float = math.inf
    fetch_cpu: float = 1.0
    step_cpu: float = 1.0

    def speeds(self, num_fetches: int, stepping: bool) -> Speeds:
        """Return the speeds of each fetch and of the step, relative to running alone.

        A thread that computes for a share c of its time and waits for the rest takes (1 - c) + c / s times as long if
        it gets a share s of a core. All threads get the same s, at which all cores are busy, or 1. It is searched by
        halving an interval: the larger s is, the more cores are busy.
        """
        step_cpu = self.step_cpu if stepping else 0.0
        if num_fetches * self.fetch_cpu + step_cpu <= self.num_cores:  # there are enough for all
            return Speeds(1.0, 1.0)
        low = 0.0
        high = 1.0
        for _ in range(_NUM_HALVINGS):
            share = (low + high) / 2
            speeds = Speeds(_speed(share, self.fetch_cpu), _speed(share, self.step_cpu))
            if num_fetches * self.fetch_cpu * speeds.fetch + step_cpu * speeds.step > self.num_cores:
                high = share
            else:
                low = share
        return speeds


def _speed(share: float, cpu: float) -> float:
    """Return the speed of threads that keep `cpu` cores busy when they run alone and each get this share of a core."""
    computing = min(cpu, 1.0)  # of a thread's time; above 1 there are several threads that always compute
    return share / (share * (1 - computing) + computing)  # 1 / ((1 - c) + c / s)
