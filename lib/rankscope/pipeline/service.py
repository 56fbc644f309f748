"""How long a piece of work takes: always the same time, times that are drawn, or a time for each item.

Drawn times have a mean and a coefficient of variation (standard deviation / mean). The mean decides the upper bound of
a stage's throughput, and the variation decides how much of it is lost to queues that run empty or full.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..common.checks import check_field, is_scalar, number

Seconds: TypeAlias = NDArray[np.float64]


class Lognormal(msgspec.Struct, frozen=True):
    """Times with a long tail, such as those of reads from shared storage; `cv` is the standard deviation over the mean.

    Raises ValueError if the mean or the cv is negative or not finite.

    >>> Lognormal(0.010, cv=0.5).draw(np.random.default_rng(0), 3).round(4).tolist()
    [0.0095, 0.0084, 0.0121]
    """

    mean_s: float
    cv: float

    def __post_init__(self) -> None:
        check_field(self, "mean_s", number, 0)
        check_field(self, "cv", number, 0, 1e100)  # the square of a larger one could overflow

    def draw(self, rng: np.random.Generator, num_items: int) -> Seconds:
        """Return independent times; the first ones are the same for any number of them."""
        sigma = math.sqrt(math.log1p(self.cv**2))
        # Without the term of sigma², `mean_s` would be the median.
        return self.mean_s * np.exp(sigma * rng.standard_normal(num_items) - sigma**2 / 2)


Service: TypeAlias = float | Sequence[float] | Seconds | Lognormal


def draw(name: str, service_s: Service | None, num_items: int, *stream: int) -> Seconds:
    """Return the times of items 0 to num_items - 1, which are the same each time for the same `stream`.

    Only `Lognormal` uses `stream`: the seed, the rank and the number of the stage or of the kind of times. Raises
    ValueError, naming the work, for a list that is too short and for what `check` refuses.
    """
    service_s = check(name, service_s)
    if isinstance(service_s, Lognormal):
        rng = np.random.default_rng([number % 2**64 for number in stream])  # numpy takes none below 0
        return service_s.draw(rng, num_items)
    if isinstance(service_s, float):
        return np.full(num_items, service_s)
    if len(service_s) < num_items:
        raise ValueError(f"{name} must have a time for each of {num_items} items, got {len(service_s)}")
    return np.asarray(service_s[:num_items])


def check(name: str, service_s: Service | None) -> Service:
    """Return a time as a float, a list as a new column of seconds, and a `Lognormal` as it is.

    Raises ValueError, naming the work, for anything else: times are finite and at least 0.
    """
    if is_scalar(service_s):
        return number(name, service_s, 0)
    if isinstance(service_s, Lognormal):
        return service_s
    try:
        column = np.array(service_s, dtype=np.float64)
    except (TypeError, ValueError):
        column = np.empty(0)
    if column.ndim != 1 or not column.size or not np.isfinite(column).all() or column.min() < 0:
        raise ValueError(
            f"{name} must be finite seconds of at least 0, a list of them or a Lognormal, got {service_s!r}"
        )
    return column
