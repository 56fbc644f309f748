"""`Curve`: measured times interpolated to every size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from ..common.checks import check_field, number
from .fit import LEAST_SIZES, Times

_PEAK = 1.2  # times as long as at either neighbour: the measurement was disturbed


def _measured(name: str, value: Any) -> dict[int, float]:
    """Return the seconds by size above 0, in ascending order. Raises ValueError for too few sizes."""
    sizes = sorted(size for size in value if size > 0)
    if len(sizes) < LEAST_SIZES:
        raise ValueError(f"{name} must be of at least {LEAST_SIZES} sizes above 0, got {sizes}")
    return {size: value[size] for size in sizes}


class Curve(msgspec.Struct, frozen=True, dict=True):
    """The time of an operation at every size, interpolated from `measured_s`, the seconds by size in bytes.

    Measured sizes are joined by straight lines, so a protocol switch is kept. Below the smallest size the time stays
    constant; above the largest, each further byte costs what it cost between the last two sizes. A measured size has
    its measured time; one of 0 is left out. A size that takes at least 1.2 times as long as either neighbour does not
    affect others, because a disturbance makes a measurement slower.

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
        sizes, times_s = self._knots
        s_per_byte = (times_s[-1] - times_s[-2]) / (sizes[-1] - sizes[-2])
        if s_per_byte <= 0:  # The largest size took no longer than the one before it: assume time proportional to size.
            s_per_byte = times_s[-1] / sizes[-1]
        return float(np.interp(num_bytes, sizes, times_s) + max(num_bytes - sizes[-1], 0.0) * s_per_byte)

    def covers(self, num_bytes: float) -> bool:
        """Return whether `num_bytes` lies within the range of measured sizes."""
        return min(self.measured_s) <= num_bytes <= max(self.measured_s)

    @cached_property
    def _knots(self) -> tuple[Times, Times]:
        """The sizes in bytes and their times in seconds that the curve goes through: all but peaks.

        The largest size is none, because no size above it can show whether it begins another protocol.
        """
        sizes = np.array(list(self.measured_s), dtype=float)
        times_s = np.array(list(self.measured_s.values()))
        before_s = np.append(0.0, times_s[:-1])
        after_s = np.append(times_s[1:], math.inf)
        is_even = times_s <= _PEAK * np.maximum(before_s, after_s)
        return sizes[is_even], times_s[is_even]
