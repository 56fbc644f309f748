"""`Curve`: measured times interpolated to every size, with an interval and the points that look wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..common.checks import check_field, number
from .fit import LEAST_SIZES, Times

# In log time: by how much more than each neighbour an odd size takes, …
_PEAK = math.log(1.2)
# … or by how much it is off from three lines through its neighbours.
_ODD = math.log(1.5)
# From 243 curves in published logs; python -m tests.benchmarks.curves --calibrate finds nearly the same in the bank.
_TYPICAL = 0.05  # the median residual per octave
_TRUST = 0.3  # weight of that median, in sizes of the curve itself
_WIDE = 2.7  # multiple of the scale that covers 90 % of the sizes left out
_LEAST_OCTAVES = 0.35  # the interval at this distance covers 90 % of the sizes that were measured twice
_MOST = math.log(1e6)  # largest half-width: beyond it nothing is known


def _measured(name: str, value: Any) -> dict[int, float]:
    """Return the seconds by size, in ascending order of size. Raises ValueError for too few sizes above 0."""
    sizes = sorted(value)
    if sum(size > 0 for size in sizes) < LEAST_SIZES:
        raise ValueError(f"{name} must be of at least {LEAST_SIZES} sizes above 0, got {sizes}")
    return {size: value[size] for size in sizes}


class _Knots(NamedTuple):
    """Octaves (log2 of bytes) and log seconds of some sizes."""

    octaves: Times
    log_s: Times


class Curve(msgspec.Struct, frozen=True, dict=True):
    """The time of an operation at every size, interpolated from `measured_s`, the seconds by size in bytes.

    Between measured sizes, `seconds` is a monotone cubic (Fritsch and Carlson 1980, as scipy's PchipInterpolator) in
    the logarithms of size and time, so it does not overshoot and it keeps a protocol switch. Below the smallest size
    the time stays constant; above the largest, each further byte costs what it cost between the last two sizes. A
    measured size, 0 included, has its measured time. `odd` points that are slow do not affect other sizes: a
    disturbance makes a measurement slower.

    `interval_s` covers 90 % of further measurements. Its width comes from split conformal prediction with a local scale
    (Lei et al. 2018). Each size is left out in turn, and its residual is divided by its distance from its neighbours in
    octaves, a b / (a + b), which is 0 at a neighbour, and nearly the distance from it if the other one is far. The
    scale is the weighted mean of these and of the typical residual of published curves; the weight halves with each
    octave of distance. The half-width in log time is the scale, times the distance, times the factor that covered 90 %
    of the sizes left out of published curves. Outside the measured range the distance counts from its last size, so the
    interval widens.

    Times must be above 0, as those of points are, and are not checked. Raises ValueError for fewer than 5 sizes above
    0.

    >>> curve = Curve({2**power: 10e-6 + 2**power / 1e9 for power in range(10, 22)})
    >>> print(f"{curve.seconds(48 * 1024) * 1e6:.1f} µs; {dict(curve.odd)}")
    59.1 µs; {}
    """

    measured_s: Mapping[int, float]

    def __post_init__(self) -> None:
        check_field(self, "measured_s", _measured)

    def seconds(self, num_bytes: float) -> float:
        """Return the time of `num_bytes` in seconds. Raises ValueError for a negative size."""
        number("num_bytes", num_bytes, 0)
        if num_bytes in self.measured_s:
            return self.measured_s[int(num_bytes)]
        octaves, log_s = self._even_knots
        before_bytes, last_bytes = np.exp2(octaves[-2:])
        before_s, last_s = np.exp(log_s[-2:])
        if num_bytes <= last_bytes:
            octave = max(_octave(num_bytes), octaves[0])  # below the smallest size the time is constant
            return math.exp(self._interpolate(octave))
        s_per_byte = (last_s - before_s) / (last_bytes - before_bytes)
        if s_per_byte <= 0:  # The largest size took no longer than the one before it: assume time proportional to size.
            s_per_byte = last_s / last_bytes
        return float(last_s + (num_bytes - last_bytes) * s_per_byte)

    def covers(self, num_bytes: float) -> bool:
        """Return whether `num_bytes` lies within the range of measured sizes above 0."""
        sizes = [size for size in self.measured_s if size]
        return min(sizes) <= num_bytes <= max(sizes)

    def interval_s(self, num_bytes: float) -> tuple[float, float]:
        """Return the ends, in seconds, of the range that covers 90 % of measurements. Raises as `seconds` does."""
        seconds = self.seconds(num_bytes)
        octave = _octave(num_bytes)
        distance = _LEAST_OCTAVES
        if num_bytes not in self.measured_s:
            distance = max(_distance(self._even_knots.octaves, octave), _LEAST_OCTAVES)
        residuals = self._residuals
        weight = np.exp2(-np.abs(residuals.octaves - octave))
        scale = (_TRUST * _TYPICAL + weight @ residuals.per_octave) / (_TRUST + weight.sum())
        factor = math.exp(min(_WIDE * scale * distance, _MOST))
        return seconds / factor, seconds * factor

    @cached_property
    def odd(self) -> Mapping[int, float]:
        """The sizes that disagree with their neighbours, each with its time as a multiple of the one interpolated.

        An odd size takes at least 1.2 times as long as either neighbour. Or it is off by more than 1.5 times, in the
        same direction, from three lines in the logarithms: between its neighbours, through the two sizes below and
        through the two above. A protocol switch agrees with one side, so it is not odd. The oddest size is found first
        and then left out of the search for others.
        """
        sizes = [size for size in self.measured_s if size]  # those of the knots
        octaves, log_s = self._knots
        odd = {}
        while len(octaves) > 3:  # of three sizes, the middle one has no second size on either side
            # The largest is never odd: no size above it can show whether a protocol switch begins there.
            off = [_off(octaves, log_s, index) for index in range(len(octaves) - 1)]
            worst = int(np.argmax(np.abs(off)))
            if off[worst] == 0:  # none is odd
                break
            odd[sizes.pop(worst)] = math.exp(off[worst])
            octaves = np.delete(octaves, worst)
            log_s = np.delete(log_s, worst)
        return dict(sorted(odd.items()))

    @cached_property
    def _knots(self) -> _Knots:
        """All sizes above 0."""
        sizes = [size for size in self.measured_s if size]
        return _Knots(np.log2(sizes), np.log([self.measured_s[size] for size in sizes]))

    @cached_property
    def _is_even(self) -> NDArray[np.bool_]:
        """Which sizes above 0 the curve goes through: all but those that are odd because they are slow."""
        return np.array([self.odd.get(size, 0) <= 1 for size in self.measured_s if size])

    @cached_property
    def _even_knots(self) -> _Knots:
        return _Knots(self._knots.octaves[self._is_even], self._knots.log_s[self._is_even])

    @cached_property
    def _interpolate(self) -> Callable[[float], Any]:
        return _pchip(*self._even_knots)

    @cached_property
    def _residuals(self) -> _Residuals:
        """How far each inner size is off the curve through the others.

        A size is inner if the curve has smaller and larger sizes. Slow odd sizes are not among the others, but have a
        residual: further measurements may be disturbed, too.
        """
        octaves, log_s = self._knots
        indices = np.arange(len(octaves))
        inner = []
        per_octave = []
        for left_out in indices:
            octave = octaves[left_out]
            others = self._is_even & (indices != left_out)
            knots = octaves[others]
            if knots[0] < octave < knots[-1]:
                off = log_s[left_out] - _pchip(knots, log_s[others])(octave)
                inner.append(octave)
                per_octave.append(abs(off) / _distance(knots, octave))
        return _Residuals(np.array(inner), np.array(per_octave))


class _Residuals(NamedTuple):
    """How far sizes are off the curve through the others, in log time per octave of distance."""

    octaves: Times
    per_octave: Times


def _off(octaves: Times, log_s: Times, index: int) -> float:
    """Return the log of the ratio of a size's time to the time that its neighbours suggest; 0 if it is not odd.

    `index` is that of any size but the largest.
    """
    own_log_s = log_s[index]
    if index == 0:
        # Small sizes take about equally long, so the next size suggests the time of the smallest. A smaller time is not
        # odd, because fewer bytes may take less.
        off = float(own_log_s - log_s[1])
        return off if off > _PEAK else 0.0
    # Three lines: between the neighbours, through the two sizes below, and through the two above.
    pairs = [(index - 1, index + 1), (index - 2, index - 1), (index + 1, index + 2)]
    suggested_log_s = []
    for first, second in pairs:
        if second >= len(octaves):
            continue  # no second size above
        if first < 0:  # No second size below, and there the time is constant.
            suggested_log_s.append(log_s[second])
            continue
        width = max(octaves[second] - octaves[first], 1e-9)  # 0 for huge sizes that differ by a byte
        slope = (log_s[second] - log_s[first]) / width
        suggested_log_s.append(log_s[first] + slope * (octaves[index] - octaves[first]))
    off_lines = own_log_s - np.array(suggested_log_s)
    is_off_all_lines = off_lines.min() > _ODD or off_lines.max() < -_ODD
    is_peak = own_log_s - max(log_s[index - 1], log_s[index + 1]) > _PEAK
    if is_off_all_lines or is_peak:
        return float(off_lines[0])  # from the line between its neighbours
    return 0.0


def _octave(num_bytes: float) -> float:
    """Return log2 of a size; 0 below one byte, as 0 bytes have no logarithm."""
    return math.log2(max(num_bytes, 1))


def _distance(knots: Times, octave: float) -> float:
    """Return the distance from the knots in octaves: a b / (a + b) between two, else that from the nearest."""
    next_index = int(np.searchsorted(knots, octave))  # of the first knot that is not below `octave`
    if next_index == 0:
        return float(knots[0] - octave)
    below = octave - knots[next_index - 1]
    if next_index == len(knots):
        return float(below)
    above = knots[next_index] - octave
    return float(below * above / (below + above))


def _pchip(x: Times, y: Times) -> Callable[[float], Any]:
    from scipy.interpolate import PchipInterpolator  # here: without scipy, everything else works

    return PchipInterpolator(x, y)  # type: ignore[no-any-return]
