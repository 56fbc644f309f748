"""`Curve`: measured times interpolated to every size, with an interval."""

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
# From curves in published logs; python -m tests.benchmarks.curves --calibrate finds them again.
_TYPICAL = 0.05  # the median residual per octave
_TRUST = 0.3  # weight of that median, in sizes of the curve itself
_WIDE = 2.7  # multiple of the scale that covers 90 % of the sizes left out
_LEAST_OCTAVES = 0.35  # the interval at this distance covers 90 % of the sizes that were measured twice


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

    `interval_s` covers 90 % of further measurements. Its width comes from split conformal prediction with a local scale
    (Lei et al. 2018). Each size is left out in turn, and its residual is divided by its distance from its neighbours in
    octaves, a b / (a + b), which is 0 at a neighbour, and nearly the distance from it if the other one is far. The
    scale is the weighted mean of these and of the typical residual of published curves; the weight halves with each
    octave of distance. The half-width in log time is the scale, times the distance, times the factor that covered 90 %
    of the sizes left out of published curves. Outside the measured range the distance counts from its last size, so the
    interval widens.

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
        octave = np.clip(_octave(num_bytes), octaves[0], octaves[-1])
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

    def interval_s(self, num_bytes: float) -> tuple[float, float]:
        """Return the ends, in seconds, of the range that covers 90 % of measurements. Raises as `seconds` does."""
        seconds = self.seconds(num_bytes)
        octave = _octave(num_bytes)
        distance = _LEAST_OCTAVES
        if num_bytes not in self.measured_s:
            distance = max(_distance(self._knots[0], octave), _LEAST_OCTAVES)
        inner, per_octave = self._residuals
        weight = np.exp2(-np.abs(inner - octave))
        scale = (_TRUST * _TYPICAL + weight @ per_octave) / (_TRUST + weight.sum())
        factor = math.exp(_WIDE * scale * distance)
        return seconds / factor, seconds * factor

    @cached_property
    def _all(self) -> tuple[Times, Times]:
        """The octaves (log2 of bytes) and log seconds of all sizes."""
        return np.log2(list(self.measured_s)), np.log(list(self.measured_s.values()))

    @cached_property
    def _knots(self) -> tuple[Times, Times]:
        """Those of `_all` that the curve goes through: all but peaks.

        The largest size is none, because no size above it can show whether it begins another protocol.
        """
        octaves, log_s = self._all
        before = np.append(-math.inf, log_s[:-1])
        after = np.append(log_s[1:], math.inf)
        is_even = log_s - np.maximum(before, after) <= _PEAK
        return octaves[is_even], log_s[is_even]

    @cached_property
    def _interpolate(self) -> Callable[[float], Any]:
        return _pchip(*self._knots)

    @cached_property
    def _residuals(self) -> tuple[Times, Times]:
        """The octave of each inner size, and how far it is off the curve through the others, per octave of distance.

        A size is inner if the curve has smaller and larger sizes. Peaks are not among the others, but have a residual:
        further measurements may be disturbed, too.
        """
        knots, knots_log_s = self._knots
        rows = []
        for octave, log_s in zip(*self._all, strict=True):
            others = knots != octave
            if knots[others][0] < octave < knots[others][-1]:
                off = log_s - _pchip(knots[others], knots_log_s[others])(octave)
                rows.append((octave, abs(off) / _distance(knots[others], octave)))
        inner, per_octave = np.array(rows).T
        return inner, per_octave


def _octave(num_bytes: float) -> float:
    """Return log2 of a size; 0 below one byte, as 0 bytes have no logarithm."""
    return math.log2(max(num_bytes, 1))


def _distance(knots: Times, octave: float) -> float:
    """Return the distance from the knots in octaves: a b / (a + b) between two, else that from the nearest."""
    away = np.abs(knots - octave)
    is_below = knots <= octave
    closeness = 1 / away[is_below].min(initial=math.inf) + 1 / away[~is_below].min(initial=math.inf)
    return float(1 / closeness)


def _pchip(x: Times, y: Times) -> Callable[[float], Any]:
    from scipy.interpolate import PchipInterpolator  # here: without scipy, everything else works

    return PchipInterpolator(x, y)  # type: ignore[no-any-return]
