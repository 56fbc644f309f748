"""`Cores`: how fast threads run that share the cores of a machine."""

from __future__ import annotations

import math
from typing import NamedTuple

_NUM_HALVINGS = 60  # of the interval in which the share of a core is searched: as exact as a float


class Cores(NamedTuple):
    """Cores that fetches and steps share fairly.

    `fetch_cpu` and `step_cpu` are the numbers of cores that a fetch or step keeps busy while it runs alone, such as 0.1
    if it mostly waits, or 4 for a step with 4 threads.
    """

    num_cores: float = math.inf
    fetch_cpu: float = 1.0
    step_cpu: float = 1.0

    def speeds(self, num_fetches: int, stepping: bool) -> tuple[float, float]:
        """Return the speed of each fetch and that of the step, relative to running alone.

        A thread that computes for a share c of its time and waits for the rest takes (1 - c) + c / s times as long if
        it gets a share s of a core. All threads get the same s, at which all cores are busy, or 1. It is searched by
        halving an interval: the larger s is, the more cores are busy.
        """
        step_cpu = self.step_cpu if stepping else 0.0
        if num_fetches * self.fetch_cpu + step_cpu <= self.num_cores:  # there are enough for all
            return 1.0, 1.0
        low = 0.0
        high = 1.0
        for _ in range(_NUM_HALVINGS):
            share = (low + high) / 2
            fetch_speed = _speed(share, self.fetch_cpu)
            step_speed = _speed(share, self.step_cpu)
            if num_fetches * self.fetch_cpu * fetch_speed + step_cpu * step_speed > self.num_cores:
                high = share
            else:
                low = share
        return fetch_speed, step_speed


def _speed(share: float, cpu: float) -> float:
    """Return the speed of threads that keep `cpu` cores busy when they run alone and each get this share of a core."""
    computing = min(cpu, 1.0)  # of a thread's time; above 1 there are several threads that always compute
    return share / (share * (1 - computing) + computing)  # 1 / ((1 - c) + c / s)
