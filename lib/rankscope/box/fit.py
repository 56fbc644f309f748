"""`fit_link`: the latency and bandwidth of a link, fitted to messages of many sizes, and how far it is off."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..cluster import Link
from ..common.checks import each, number
from ..common.units import percent_words, rate_words, time_words

LEAST_SIZES = 5  # of a fit
_NOISE = 0.02  # share of a time: residuals far above it count by their size, not by its square, so outliers do little
_EXACT = 1e-12  # relative change at which the fit ends
_NOTHING = 1e-6  # share of a time that counts as 0

Times = NDArray[np.float64]


class LinkFit(msgspec.Struct, frozen=True):
    """A link, fitted to every second size. `held_out_error` is the median relative error at the sizes in between."""

    link: Link
    held_out_error: float

    def __str__(self) -> str:
        off = percent_words(self.held_out_error, 1)
        return f"α {time_words(self.link.alpha_s)}, B {rate_words(self.link.bytes_per_s)}; {off} off on held-out sizes"


def fit_link(num_bytes: Sequence[int], seconds: Sequence[float]) -> LinkFit:
    """Fit latency and bandwidth to the times of messages, one for each size in `num_bytes`.

    The residuals are logarithms, so microseconds weigh as much as seconds, and their loss is soft L1, so outliers do
    little (`scipy.optimize.least_squares`). Every second size is held out.

    Raises ValueError if there are fewer than 5 sizes, or a size twice, or if a time is outside 1e-12 to 1e9 s.

    >>> sizes = [4**power for power in range(5, 13)]
    >>> print(fit_link(sizes, [5e-3 + size / 12.5e6 for size in sizes]))  # 5 ms and 100 Mbit/s
    α 5 ms, B 12.5 MB/s; 0.0 % off on held-out sizes
    """
    by_size = dict(zip(num_bytes, each("seconds", seconds, number, 1e-12, 1e9), strict=True))
    if not LEAST_SIZES <= len(by_size) == len(num_bytes):
        raise ValueError(f"num_bytes must be at least {LEAST_SIZES} different sizes, got {list(num_bytes)}")
    sizes = np.array(sorted(by_size), dtype=float)
    times_s = np.array([by_size[size] for size in sizes])
    alpha_s, s_per_byte = _line(sizes[::2], times_s[::2]).tolist()
    predicted_s = alpha_s + sizes[1::2] * s_per_byte
    bytes_per_s = 1 / s_per_byte if s_per_byte else np.inf  # without bound if bytes cost no time
    error = float(np.median(np.abs(predicted_s / times_s[1::2] - 1)))
    return LinkFit(Link(alpha_s, bytes_per_s), error)


def _line(sizes: Times, seconds: Times) -> Times:
    """Fit α and β (seconds per byte), both at least 0."""
    from scipy.optimize import least_squares  # here: without scipy, everything else works

    unit = np.array([seconds[0], seconds[-1] / sizes[-1]])  # so that both parameters are about 1

    def residuals(parameters: Times) -> Times:
        alpha_s, s_per_byte = parameters * unit
        return np.asarray(np.log((alpha_s + sizes * s_per_byte) / seconds))

    fit = least_squares(
        residuals,
        (1.0, 1.0),
        bounds=(0, np.inf),
        loss="soft_l1",
        f_scale=_NOISE,
        ftol=_EXACT,
        xtol=_EXACT,
        gtol=_EXACT,
    )
    return np.asarray(np.where(fit.x < _NOTHING, 0.0, fit.x) * unit)
