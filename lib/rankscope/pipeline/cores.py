"""`Cores`: how fast pieces of work go that share the cores of a machine fairly."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..values.checks import number


@dataclass(frozen=True)
class Cores:
    """How fast fetches and steps go that share cores; raises ValueError for what is negative or no number."""

    num_cores: float
    fetch_cpu: float
    step_cpu: float
    _known: dict[tuple[int, bool], tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_cores", number("num_cores", self.num_cores, above=0, high=math.inf))
        for name in ("fetch_cpu", "step_cpu"):
            object.__setattr__(self, name, number(name, getattr(self, name), 0))

    def speeds(self, num_fetches: int, stepping: bool) -> tuple[float, float]:
        """Return the speeds of each fetch and of the step, 1 being that of one that runs alone.

        A thread that computes for a share c of its time and waits for the rest takes (1 - c) + c / s times as long
        where it gets a share s of a core; s is such that all cores are busy, or 1.
        """
        if num_fetches * self.fetch_cpu + stepping * self.step_cpu <= self.num_cores:
            return 1.0, 1.0
        if (num_fetches, stepping) not in self._known:
            low, high = 0.0, 1.0
            for _ in range(60):
                share = (low + high) / 2
                fetch, step = self._slowed(self.fetch_cpu, share), self._slowed(self.step_cpu, share)
                if num_fetches * self.fetch_cpu * fetch + stepping * self.step_cpu * step > self.num_cores:
                    high = share
                else:
                    low = share
            self._known[num_fetches, stepping] = fetch, step
        return self._known[num_fetches, stepping]

    @staticmethod
    def _slowed(cpu: float, share: float) -> float:
        computing = min(cpu, 1.0)  # of each thread
        return share / (share * (1 - computing) + computing)
