"""`Curve`: what was measured at some sizes, interpolated to all, with an interval and the points that look wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..values.checks import number, whole
from ..values.frozen import ReadOnly, checked, frozen, mapping
from .fit import LEAST_SIZES, Times

_PEAK = math.log(1.2)  # above both neighbours, of which the larger one took less
_ODD = math.log(1.5)  # off from what either side says
# Of the 243 curves of 21 machines that published logs hold; python -m tests.benchmarks.curves --calibrate finds them.
_TYPICAL = 0.05  # the median residual per octave
_TRUST = 0.3  # so many sizes of the curve itself count as much as that
_WIDE = 2.7  # of the scale: what holds 90 % of the sizes left out
_LEAST_OCTAVES = 0.35  # 90 % of sizes that were measured twice differ by no more than the interval at this distance
_MOST = math.log(1e6)  # an interval's half: nothing is known by then


def _measured(name: str, value: Any) -> ReadOnly:
    found = mapping(name, value)
    sizes = sorted(whole(f"{name}: size", size, 0) for size in found)
    if len(sizes) - (0 in sizes) < LEAST_SIZES:
        raise ValueError(f"{name} must be of at least {LEAST_SIZES} sizes above 0, got {sizes}")
    return ReadOnly({size: number(f"{name} of {size} bytes", found[size], 1e-12, 1e9) for size in sizes})


@frozen
class Curve:
    """What something takes at every size, from what it took at some: `measured_s`, a time by size.

    Between sizes, `seconds` is a monotone cubic (Fritsch and Carlson 1980, as scipy's PchipInterpolator) in the
    logarithms of size and time, so that it neither overshoots nor forgets a switch of protocol. Below the smallest
    size it is the time of the smallest; above the largest, each byte more takes what it took between the last two
    sizes. At a size that was measured, 0 among them, it is what was measured. Points that are `odd` and slow are passed
    by: they say nothing of sizes other than their own. (What disturbs a measurement makes it slower.)

    `interval_s` holds 90 % of further measurements. Its width is split conformal prediction with a local scale (Lei et
    al. 2018): each size is left out in turn, its residual is divided by its distance from its neighbours in octaves,
    a b / (a + b), and the mean of these, near sizes weighing more (half as much an octave further), and of the
    typical residual of published curves is the scale. Times the distance, and times what held 90 % of the sizes left
    out of published curves, it is the interval's half in log time. Outside of the measured sizes the distance is that
    from the last of them, and the interval widens.

    Raises ValueError for times that nothing takes, and for fewer than 5 sizes above 0.

    >>> curve = Curve({2**power: 10e-6 + 2**power / 1e9 for power in range(10, 22)})
    >>> print(f"{curve.seconds(48 * 1024) * 1e6:.1f} µs; {dict(curve.odd)}")
    59.1 µs; {}
    """

    measured_s: Mapping[int, float] = checked(_measured, hash=False)

    def seconds(self, num_bytes: float) -> float:
        """Return how long so many bytes take. Raises ValueError for fewer than 0."""
        if number("num_bytes", num_bytes, 0) in self.measured_s:
            return self.measured_s[int(num_bytes)]
        x, y, line = self._kept
        (size, last), (time, last_s) = np.exp2(x[-2:]), np.exp(y[-2:])
        if num_bytes <= last:
            return math.exp(line(max(math.log2(max(num_bytes, 1)), x[0])))
        return float(last_s + (num_bytes - last) * (max((last_s - time) / (last - size), 0.0) or last_s / last))

    def covers(self, num_bytes: float) -> bool:
        """Return whether so many bytes lie within the sizes above 0 that were measured."""
        sizes = [size for size in self.measured_s if size]
        return min(sizes) <= num_bytes <= max(sizes)

    def interval_s(self, num_bytes: float) -> tuple[float, float]:
        """Return from and to where 90 % of measurements at this size lie. Raises ValueError as `seconds` does."""
        seconds, x = self.seconds(num_bytes), math.log2(max(num_bytes, 1))
        far = _LEAST_OCTAVES if num_bytes in self.measured_s else max(_octaves(self._kept[0], x), _LEAST_OCTAVES)
        places, residuals = self._residuals
        weight = np.exp2(-np.abs(places - x))
        scale = (_TRUST * _TYPICAL + weight @ residuals) / (_TRUST + weight.sum())
        wide = math.exp(min(_WIDE * scale * far, _MOST))
        return seconds / wide, seconds * wide

    @cached_property
    def odd(self) -> Mapping[int, float]:
        """The sizes that are off from both neighbours, and how many times as long they take as the neighbours say.

        They take 1.2 times as long as either neighbour or longer, or they are off in the same direction, by more than
        1.5 times, from the line between their neighbours, from that through the two below and from that through the
        two above (in the logarithms). A switch agrees with one side, and is not odd. The oddest is found first, and
        has no say about the others.
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
        """Where sizes between others lie, and how far each is off the curve through these, per octave from them."""
        (x, y), places = self._points, np.arange(len(self._even))
        found = []
        for place in places:
            others = x[self._even & (places != place)]
            if others[0] < x[place] < others[-1]:
                off = y[place] - _pchip(others, y[self._even & (places != place)])(x[place])
                found.append((x[place], abs(off) / _octaves(others, x[place])))
        return np.array([x for x, _ in found]), np.array([off for _, off in found])


def _off(x: Times, y: Times, place: int) -> float:
    """How far a time is off (its logarithm) from what its neighbours say; 0 where that is not odd."""
    if place == 0:
        return float(y[0] - y[1]) if y[0] - y[1] > _PEAK else 0.0
    pairs = [(place - 1, place + 1), (place - 2, place - 1), (place + 1, place + 2)]
    lines = [(max(a, 0), b) for a, b in pairs if b < len(x)]  # below the smallest size it takes as long
    off = y[place] - np.array([y[a] + (y[b] - y[a]) / max(x[b] - x[a], 1e-9) * (x[place] - x[a]) for a, b in lines])
    odd = off.min() > _ODD or off.max() < -_ODD or y[place] - max(y[place - 1], y[place + 1]) > _PEAK
    return float(off[0]) if odd else 0.0


def _octaves(knots: Times, x: float) -> float:
    """How far x is from the knots next to it: a b / (a + b) between two, the distance outside of all."""
    place = int(np.searchsorted(knots, x))
    a, b = (x - knots[place - 1] if place else np.inf), (knots[place] - x if place < len(knots) else np.inf)
    return float(min(a, b) if np.inf in (a, b) else a * b / (a + b))


def _pchip(x: Times, y: Times) -> Callable[[float], Any]:
    from scipy.interpolate import PchipInterpolator  # here: without scipy, everything else works

    return PchipInterpolator(x, y)  # type: ignore[no-any-return]
