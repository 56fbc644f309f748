"""`Curve`: measured times interpolated to every size, with an interval and the points that look wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.checks import number, whole
from ..common.frozen import ReadOnly, checked, frozen, mapping
from .fit import LEAST_SIZES, Times

_PEAK = math.log(1.2)  # slower than both neighbours, the larger one included
_ODD = math.log(1.5)  # off from what both sides suggest
# From 243 curves of 21 machines in published logs; python -m tests.benchmarks.curves --calibrate computes them.
_TYPICAL = 0.05  # the median residual per octave
_TRUST = 0.3  # weight of that median, in sizes of the curve itself
_WIDE = 2.7  # multiple of the scale that covers 90 % of the sizes left out
_LEAST_OCTAVES = 0.35  # the interval at this distance covers 90 % of the sizes that were measured twice
_MOST = math.log(1e6)  # largest half-width: beyond it nothing is known


def _measured(name: str, value: Any) -> ReadOnly:
    found = mapping(name, value)
    sizes = sorted(whole(f"{name}: size", size, 0) for size in found)
    if len(sizes) - (0 in sizes) < LEAST_SIZES:
        raise ValueError(f"{name} must be of at least {LEAST_SIZES} sizes above 0, got {sizes}")
    return ReadOnly({size: number(f"{name} of {size} bytes", found[size], 1e-12, 1e9) for size in sizes})


@frozen
class Curve:
    """The time of an operation at every size, interpolated from `measured_s`, the seconds by size in bytes.

    Between measured sizes, `seconds` is a monotone cubic (Fritsch and Carlson 1980, as scipy's PchipInterpolator) in
    the logarithms of size and time, so it does not overshoot and it keeps a protocol switch. Below the smallest size
    the time stays constant; above the largest, each further byte costs what it cost between the last two sizes. A
    measured size, 0 included, has its measured time. `odd` points that are slow do not affect other sizes: a
    disturbance makes a measurement slower.

    `interval_s` covers 90 % of further measurements. Its width comes from split conformal prediction with a local scale
    (Lei et al. 2018). Each size is left out in turn, and its residual is divided by its distance from its neighbours in
    octaves, a b / (a + b). The scale is the weighted mean of these and of the typical residual of published curves; the
    weight halves with each octave of distance. The half-width in log time is the scale, times the distance, times the
    factor that covered 90 % of the sizes left out of published curves. Outside the measured range the distance counts
    from its last size, so the interval widens.

    Raises ValueError for times outside 1e-12 to 1e9 s, and for fewer than 5 sizes above 0.

    >>> curve = Curve({2**power: 10e-6 + 2**power / 1e9 for power in range(10, 22)})
    >>> print(f"{curve.seconds(48 * 1024) * 1e6:.1f} µs; {dict(curve.odd)}")
    59.1 µs; {}
    """

    measured_s: Mapping[int, float] = checked(_measured, hash=False)

    def seconds(self, num_bytes: float) -> float:
        """Return the time of `num_bytes` in seconds. Raises ValueError for a negative size."""
        if number("num_bytes", num_bytes, 0) in self.measured_s:
            return self.measured_s[int(num_bytes)]
        x, y, line = self._kept
        (size, last), (time, last_s) = np.exp2(x[-2:]), np.exp(y[-2:])
        if num_bytes <= last:
            return math.exp(line(max(math.log2(max(num_bytes, 1)), x[0])))
        return float(last_s + (num_bytes - last) * (max((last_s - time) / (last - size), 0.0) or last_s / last))

    def covers(self, num_bytes: float) -> bool:
        """Return whether `num_bytes` lies within the range of measured sizes above 0."""
        sizes = [size for size in self.measured_s if size]
        return min(sizes) <= num_bytes <= max(sizes)

    def interval_s(self, num_bytes: float) -> tuple[float, float]:
        """Return the ends, in seconds, of the range that covers 90 % of measurements. Raises as `seconds` does."""
        seconds, x = self.seconds(num_bytes), math.log2(max(num_bytes, 1))
        far = _LEAST_OCTAVES if num_bytes in self.measured_s else max(_octaves(self._kept[0], x), _LEAST_OCTAVES)
        places, residuals = self._residuals
        weight = np.exp2(-np.abs(places - x))
        scale = (_TRUST * _TYPICAL + weight @ residuals) / (_TRUST + weight.sum())
        wide = math.exp(min(_WIDE * scale * far, _MOST))
        return seconds / wide, seconds * wide

    @cached_property
    def odd(self) -> Mapping[int, float]:
        """The sizes that disagree with their neighbours, each with its time as a multiple of the one interpolated.

        An odd size takes at least 1.2 times as long as either neighbour. Or it is off by more than 1.5 times, in the
        same direction, from three lines in the logarithms: between its neighbours, through the two sizes below and
        through the two above. A protocol switch agrees with one side, so it is not odd. The oddest size is found first
        and then left out of the search for others.
        """
        x, y = self._points
        found = dict[int, float]()
        while len(x) > 3:
            off = [_off(x, y, place) for place in range(len(x) - 1)]
            worst = int(np.argmax(np.abs(off)))
            if not off[worst]:
                break
            found[round(2 ** x[worst])] = math.exp(off[worst])
            x, y = np.delete(x, worst), np.delete(y, worst)
        return ReadOnly(sorted(found.items()))

    @cached_property
    def _points(self) -> tuple[Times, Times]:
        """Octaves and log seconds of the sizes above 0."""
        sizes = [size for size in self.measured_s if size]
        return np.log2(sizes), np.log([self.measured_s[size] for size in sizes])

    @cached_property
    def _even(self) -> NDArray[np.bool_]:
        return np.array([self.odd.get(size, 0) <= 1 for size in self.measured_s if size])

    @cached_property
    def _kept(self) -> tuple[Times, Times, Callable[[float], Any]]:
        x, y = (one[self._even] for one in self._points)
        return x, y, _pchip(x, y)

    @cached_property
    def _residuals(self) -> tuple[Times, Times]:
        """The octaves of inner sizes, and how far each is off the curve through the others, per octave of distance."""
        (x, y), places = self._points, np.arange(len(self._even))
        found = []
        for place in places:
            others = x[self._even & (places != place)]
            if others[0] < x[place] < others[-1]:
                off = y[place] - _pchip(others, y[self._even & (places != place)])(x[place])
                found.append((x[place], abs(off) / _octaves(others, x[place])))
        return np.array([x for x, _ in found]), np.array([off for _, off in found])


def _off(x: Times, y: Times, place: int) -> float:
    """The log of a time over the one its neighbours suggest; 0 if it is not odd."""
    if place == 0:
        return float(y[0] - y[1]) if y[0] - y[1] > _PEAK else 0.0
    pairs = [(place - 1, place + 1), (place - 2, place - 1), (place + 1, place + 2)]
    lines = [(max(a, 0), b) for a, b in pairs if b < len(x)]  # below the smallest size the time is constant
    off = y[place] - np.array([y[a] + (y[b] - y[a]) / max(x[b] - x[a], 1e-9) * (x[place] - x[a]) for a, b in lines])
    odd = off.min() > _ODD or off.max() < -_ODD or y[place] - max(y[place - 1], y[place + 1]) > _PEAK
    return float(off[0]) if odd else 0.0


def _octaves(knots: Times, x: float) -> float:
    """The distance of x from its knots: a b / (a + b) between two, else that from the nearest."""
    place = int(np.searchsorted(knots, x))
    a, b = (x - knots[place - 1] if place else np.inf), (knots[place] - x if place < len(knots) else np.inf)
    return float(min(a, b) if np.inf in (a, b) else a * b / (a + b))


def _pchip(x: Times, y: Times) -> Callable[[float], Any]:
    from scipy.interpolate import PchipInterpolator  # here: without scipy, everything else works

    return PchipInterpolator(x, y)  # type: ignore[no-any-return]
