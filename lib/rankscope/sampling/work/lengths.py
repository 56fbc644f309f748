"""Made-up lengths of samples in tokens, about 100 on average, for the explorers of samplers."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from ..samplers.permutation import IntArray

MEAN_LENGTH = 100


@lru_cache(maxsize=2)
def lognormal(size: int) -> IntArray:
    """Return lengths as those of texts: many short ones and a few that are ten times as long."""
    normal = np.random.RandomState(0).standard_normal(size)
    of_mean_1 = np.exp(normal - 0.5)
    lengths: IntArray = np.maximum(np.rint(MEAN_LENGTH * of_mean_1), 1).astype(np.int64)  # no sample is empty
    return lengths


def two_kinds(size: int) -> IntArray:
    """Return lengths of which the first quarter is long, as if two datasets were joined."""
    return np.where(np.arange(size) < size // 4, 250, 50)


LENGTHS: dict[str, Callable[[int], IntArray]] = {"lognormal": lognormal, "two kinds": two_kinds}
