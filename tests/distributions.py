"""Distributions of a user's own, for `Stage` and the like."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Exponential(NamedTuple):
    """Memoryless times: their standard deviation is their mean."""

    mean_s: float

    def draw(self, rng: np.random.Generator, num_items: int) -> Any:
        return self.mean_s * rng.standard_exponential(num_items)
