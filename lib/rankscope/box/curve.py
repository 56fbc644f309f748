"""`Curve`: measured times interpolated to every size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from ..common.checks import check_field, number
from .fit import LEAST_SIZES, Times

_PEAK = math.log(1.2)  # by so much longer in log time than at either neighbour: the measurement was disturbed


def _measured(name: str, value: Any) -> dict[int, float]:
    """Return the seconds by size above 0, in ascending order. Raises ValueError for too few sizes."""
    sizes = sorted(size for size in value if size > 0)
    if len(sizes) < LEAST_SIZES:
        raise ValueError(f"{name} must be of at least {LEAST_SIZES} sizes above 0, got {sizes}")
    return {size: value[size] for size in sizes}


class Curve(msgspec.Struct, frozen=True, dict=True):
    """The time of an operation at every size, interpolated from `measured_s`, the seconds by size in bytes.

    Between measured sizes, `seconds` is a monotone cubic (Fritsch and Carlson 1980, as scipy's PchipInterpolator) in
    the logarithms of size and time, so it does not overshoot and it keeps a protocol switch. Below the smallest size
    the time stays constant; above the largest, each further byte costs what it cost between the last two sizes. A
    measured size has its measured time; one of 0 is left out. A size that takes at least 1.2 times as long as either
    neighbour does not affect others, because a disturbance makes a measurement slower.

    Times must be above 0, as those of points are. Raises ValueError for fewer than 5 sizes above 0.

    >>> curve = Curve({2**power: 10e-6 + 2**power / 1e9 for power in range(10, 22)})
    >>> print(f"{curve.seconds(48 * 1024) * 1e6:.1f} µs")
    59.1 µs
    """

    measured_s: Mapping[int, float]

    def __post_init__(self) -> None:
        check_field(self, "measured_s", _measured)

    def seconds(self, num_bytes: float) -> float:
        """Return the time of `num_bytes` in seconds. Raises ValueError for a negative size."""
        number("num_bytes", num_bytes, 0)
        if num_bytes in self.measured_s:
            return self.measured_s[int(num_bytes)]
        octaves, log_s = self._knots
        octave = np.clip(math.log2(max(num_bytes, 1)), octaves[0], octaves[-1])  # 0 bytes have no logarithm
        seconds = math.exp(self._interpolate(octave))
        before_bytes, last_bytes = np.exp2(octaves[-2:])
        before_s, last_s = np.exp(log_s[-2:])
        s_per_byte = (last_s - before_s) / (last_bytes - before_bytes)
        if s_per_byte <= 0:  # The largest size took no longer than the one before it: assume time proportional to size.
            s_per_byte = last_s / last_bytes
        return float(seconds + max(num_bytes - last_bytes, 0.0) * s_per_byte)

    def covers(self, num_bytes: float) -> bool:
        """Return whether `num_bytes` lies within the range of measured sizes."""
        return min(self.measured_s) <= num_bytes <= max(self.measured_s)

    @cached_property
    def _knots(self) -> tuple[Times, Times]:
        """The octaves (log2 of bytes) and log seconds of the sizes that the curve goes through: all but peaks.

        The largest size is none, because no size above it can show whether it begins another protocol.
        """
        octaves = np.log2(list(self.measured_s))
        log_s = np.log(list(self.measured_s.values()))
        before = np.append(-math.inf, log_s[:-1])
        after = np.append(log_s[1:], math.inf)
        is_even = log_s - np.maximum(before, after) <= _PEAK
        return octaves[is_even], log_s[is_even]

    @cached_property
    def _interpolate(self) -> Callable[[float], Any]:
        from scipy.interpolate import PchipInterpolator  # here: without scipy, everything else works

        return PchipInterpolator(*self._knots)  # type: ignore[no-any-return]
