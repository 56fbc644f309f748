"""`allreduce_cost`: the seconds of an allreduce by its bytes, as a machine's profile or a link tells them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..cluster import Link
from ..collectives import closed_form
from ..machine import Profile
from ..values.checks import whole
from .local_step import Seconds, numbers

Cost = Callable[[Any], Any]  # of an array of bytes: as many seconds, or one for all

_PREDICTED_AT = tuple(4**power for power in range(5, 16))  # 1 KiB to 1 GiB


@dataclass(frozen=True)
class CostTable:
    """Seconds at some numbers of bytes; straight lines between them, and on in both directions, never below 0.

    >>> CostTable((0.0, 100.0), (1.0, 2.0))(np.array([50.0, 200.0]))
    array([1.5, 3. ])
    """

    num_bytes: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        sizes, seconds = numbers("num_bytes", self.num_bytes), numbers("seconds", self.seconds)
        if sizes.size < 2 or sizes.shape != seconds.shape or not (np.diff(sizes) > 0).all():
            raise ValueError(f"num_bytes must be at least two rising sizes, a time for each, got {self.num_bytes!r}")
        if not (np.isfinite(seconds).all() and (seconds >= 0).all() and np.isfinite(sizes).all()):
            raise ValueError(f"seconds must be finite and at least 0, got {self.seconds!r}")

    def __call__(self, num_bytes: Any) -> Seconds:
        """Return the seconds of so many bytes, an array of them as well."""
        size, sizes, seconds = np.asarray(num_bytes, dtype=float), np.array(self.num_bytes), np.array(self.seconds)
        first = np.clip(np.searchsorted(sizes, size, side="right") - 1, 0, sizes.size - 2)
        slope = np.maximum(np.diff(seconds) / np.diff(sizes), 0.0)  # beyond the ends more bytes never take less
        inside = np.interp(size, sizes, seconds)
        beyond = np.where(size > sizes[-1], size - sizes[-1], np.minimum(size - sizes[0], 0.0)) * slope[first]
        found: Seconds = np.maximum(inside + beyond, 0.0)
        return found


def allreduce_cost(machine: Profile | Link, num_ranks: int | None = None, algorithm: str | None = None) -> Cost:
    """Return a function from bytes (an array of sizes, too) to the seconds of one allreduce that has the wire alone.

    Of a profile it is what was measured of `algorithm`, by default of the backend's own ("native"), the medians joined
    by straight lines; for another number of ranks, and where it was not measured, what `Profile.predict` says of it
    ("ring" in the place of "native") from 1 KiB to 1 GiB. Of a link it is the closed form, by default of a ring.

    Raises ValueError for a link without `num_ranks`, and for what `closed_form` and `Profile.predict` refuse.

    >>> seconds = allreduce_cost(Link(alpha_s=1e-5, bytes_per_s=1e9), num_ranks=4)
    >>> round(seconds(1e6), 9)
    0.00156
    """
    if isinstance(machine, Link):
        ranks = whole("num_ranks (of a link)", num_ranks, 1)
        name = algorithm or "ring"
        closed_form("allreduce", name, ranks, 0, machine)  # refuses now what it would refuse later
        return lambda num_bytes: closed_form("allreduce", name, ranks, num_bytes, machine)
    if not isinstance(machine, Profile):
        raise ValueError(f"machine must be a Profile or a Link, got {machine!r}")
    ranks = machine.num_ranks if num_ranks is None else whole("num_ranks", num_ranks, 1)
    if ranks == machine.num_ranks:
        measured: dict[int, float] = {}
        for point in machine.select("allreduce", algorithm=algorithm or "native"):
            measured[point.num_bytes] = min(point.median_s, measured.get(point.num_bytes, np.inf))
        if len(measured) > 1:
            return CostTable(tuple(sorted(measured)), tuple(measured[size] for size in sorted(measured)))
    name = "ring" if algorithm in (None, "native") else str(algorithm)
    seconds = (machine.predict("allreduce", name, size, ranks).makespan_s for size in _PREDICTED_AT)
    return CostTable(_PREDICTED_AT, tuple(seconds))


def costs_s(cost: Cost, num_bytes: Seconds) -> Seconds:
    """Return what `cost` says of each size; ValueError where that is no time, or not one for each."""
    if not callable(cost):
        raise ValueError(f"cost must be a function of bytes, as allreduce_cost makes them, got {cost!r}")
    seconds = np.asarray(cost(num_bytes), dtype=float)
    good = seconds.shape in ((), num_bytes.shape) and (np.isfinite(seconds) & (seconds >= 0)).all()
    if not good:
        raise ValueError(f"cost must give finite seconds of at least 0, one for each size, got {seconds}")
    return np.broadcast_to(seconds, num_bytes.shape)
