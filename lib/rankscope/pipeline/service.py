"""How long a piece of work takes: a constant, a distribution, measured times, or a function of the item.

Distributions have a mean and a coefficient of variation (standard deviation / mean). The mean decides the upper bound
of a stage's throughput, and the variation decides how much of it is lost to queues that run empty or full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..common.checks import check_field, is_scalar, number

Seconds: TypeAlias = NDArray[np.float64]


@runtime_checkable
class Distribution(Protocol):
    """An object with a mean that draws independent times; the first n are the same for any number of them."""

    @property
    def mean_s(self) -> float: ...

    def draw(self, rng: np.random.Generator, num_items: int) -> Seconds: ...


Service: TypeAlias = float | Sequence[float] | Seconds | Distribution | Callable[[Any], float]


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
        sigma = math.sqrt(math.log1p(self.cv**2))
        # Without the term of sigma², `mean_s` would be the median.
        return self.mean_s * np.exp(sigma * rng.standard_normal(num_items) - sigma**2 / 2)


def draw(name: str, service_s: Service, num_items: int, *stream: int) -> Seconds:
    """Return the times of items 0 to num_items - 1, which are the same each time for the same `stream`.

    Only a distribution uses `stream`: the seed, the rank and the number of the stage or of the kind of times. Raises
    ValueError, naming the work, for a list that is too short and for a time that is negative or not finite.
    """
    service_s = check(name, service_s)
    if isinstance(service_s, Distribution):
        rng = np.random.default_rng([number % 2**64 for number in stream])  # numpy takes none below 0
        return check_times(name, service_s.draw(rng, num_items))
    if callable(service_s):
        return check_times(name, [service_s(item) for item in range(num_items)])
    if isinstance(service_s, float):
        return np.full(num_items, service_s)
    if len(service_s) < num_items:
        raise ValueError(f"{name} must have a time for each of {num_items} items, got {len(service_s)}")
    return np.asarray(service_s[:num_items])


def check(name: str, service_s: Service) -> Service:
    """Return a time as a float, a list as a column of seconds, and a distribution or a function as it is.

    Raises ValueError, naming the work, for anything else.
    """
    if is_scalar(service_s):
        return number(name, service_s, 0)
    if isinstance(service_s, Distribution) or callable(service_s):
        return service_s
    times_s = check_times(name, service_s)
    if not times_s.size:
        raise ValueError(f"{name} must have at least one time, got none")
    return times_s


def check_times(name: str, times_s: Any) -> Seconds:
    """Return a read-only column of seconds; raise ValueError unless it is a list of finite numbers of at least 0."""
    expected = f"{name} must be seconds, a list of them, a distribution or a function"
    try:
        column = np.array(times_s, dtype=np.float64)  # a copy, because the caller may change the list
    except (TypeError, ValueError):
        raise ValueError(f"{expected}, got {times_s!r}") from None
    if column.ndim != 1:
        raise ValueError(f"{expected}, got an array of shape {column.shape}")
    is_valid = np.isfinite(column) & (column >= 0)
    if not is_valid.all():
        item = int(is_valid.argmin())  # the first invalid one
        raise ValueError(f"{name} must be finite seconds of at least 0, got {column[item]} for item {item}")
    column.flags.writeable = False
    return column
