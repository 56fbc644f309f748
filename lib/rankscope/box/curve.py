"""`Curve`: measured times interpolated to every size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from ..common.checks import check_field, number
from ..networks import CostTable
from .fit import LEAST_SIZES

_PEAK = 1.2  # times as long as at either neighbour: the measurement was disturbed


def _measured(name: str, value: Any) -> dict[int, float]:
    """Return the seconds by size above 0, in ascending order. Raises ValueError for too few sizes."""
    sizes = sorted(size for size in value if size > 0)
    if len(sizes) < LEAST_SIZES:
        raise ValueError(f"{name} must be of at least {LEAST_SIZES} sizes above 0, got {sizes}")
    return {size: value[size] for size in sizes}


class Curve(msgspec.Struct, frozen=True, dict=True):
    """The time of an operation at every size, interpolated from `measured_s`, the seconds by size in bytes.

    A `CostTable` joins and extends them, so a protocol switch is kept. A measured size has its measured time; one of 0
    is left out. A size that takes at least 1.2 times as long as either neighbour does not affect others, because a
    disturbance makes a measurement slower.

    Times must be above 0, as those of points are. Raises ValueError for fewer than 5 sizes above 0.

    >>> curve = Curve({2**power: 10e-6 + 2**power / 1e9 for power in range(10, 22)})
    >>> print(f"{curve.seconds(48 * 1024) * 1e6:.1f} µs")
    59.2 µs
    """

    measured_s: Mapping[int, float]

    def __post_init__(self) -> None:
        check_field(self, "measured_s", _measured)

    def seconds(self, num_bytes: float) -> float:
        """Return the time of `num_bytes` in seconds. Raises ValueError for a negative size."""
        number("num_bytes", num_bytes, 0)
        if num_bytes in self.measured_s:
            return self.measured_s[int(num_bytes)]
        return float(self._table(num_bytes))

    def covers(self, num_bytes: float) -> bool:
        """Return whether `num_bytes` lies within the range of measured sizes."""
        return min(self.measured_s) <= num_bytes <= max(self.measured_s)

    @cached_property
    def _table(self) -> CostTable:
        """The sizes and the times that the curve goes through: all but peaks.

        The largest size is none, because no size above it can show whether it begins another protocol.
        """
        sizes = np.array(list(self.measured_s), dtype=float)
        times_s = np.array(list(self.measured_s.values()))
        before_s = np.append(0.0, times_s[:-1])
        after_s = np.append(times_s[1:], math.inf)
        is_even = times_s <= _PEAK * np.maximum(before_s, after_s)
        return CostTable(tuple(sizes[is_even]), tuple(times_s[is_even]))
