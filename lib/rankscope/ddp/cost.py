"""`cost`: the seconds of an allreduce by its bytes, as a machine's profile or a link gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cluster import Link
from ..collectives import closed_form
from ..machine import Profile
from ..values.checks import function, number, whole
from ..values.frozen import checked, each, frozen

Seconds = NDArray[np.float64]
Cost = Callable[[Any], Any]  # from an array of bytes to as many seconds, or to one number for all

_PREDICTED_AT = tuple(4**power for power in range(5, 16))  # 1 KiB to 1 GiB


@frozen
class CostTable:
    """Seconds at some numbers of bytes, with straight lines between them and beyond both ends, never below 0.

    Raises ValueError unless there are at least two rising sizes and a time for each.

    >>> CostTable((0.0, 100.0), (1.0, 2.0))(np.array([50.0, 200.0]))
    array([1.5, 3. ])
    """

    num_bytes: tuple[float, ...] = checked(each, number, 0)
    seconds: tuple[float, ...] = checked(each, number, 0)

    def __attrs_post_init__(self) -> None:
        if len(self.num_bytes) < 2 or not (np.diff(self.num_bytes) > 0).all():
            raise ValueError(f"num_bytes must be at least two rising sizes, got {self.num_bytes!r}")
        if len(self.seconds) != len(self.num_bytes):
            raise ValueError(f"seconds must be {len(self.num_bytes)}, one for each size, got {self.seconds!r}")

    def __call__(self, num_bytes: Any) -> Seconds:
        """Return the seconds of one number of bytes or of an array of them."""
        size, sizes, seconds = np.asarray(num_bytes, dtype=float), np.array(self.num_bytes), np.array(self.seconds)
        slopes = np.maximum(np.diff(seconds) / np.diff(sizes), 0.0)  # beyond the ends more bytes never take less
        before, after = np.minimum(size - sizes[0], 0.0), np.maximum(size - sizes[-1], 0.0)
        inside = np.interp(size, sizes, seconds)
        return np.asarray(np.maximum(inside + before * slopes[0] + after * slopes[-1], 0.0))


def cost(machine: Profile | Link, num_ranks: int | None = None) -> Cost:
    """Return a function from bytes (a number or an array) to the seconds of one allreduce that has the wire to itself.

    Of a profile these are the measured medians of the backend's own allreduce, joined by straight lines. For another
    number of ranks, and where it was not measured, it is what `Profile.predict` gives for a ring from 1 KiB to 1 GiB.
    Of a link it is the closed form of a ring.

    Raises ValueError for a link without `num_ranks`, and for what `Profile.predict` refuses.

    >>> seconds = cost(Link(alpha_s=1e-5, bytes_per_s=1e9), num_ranks=4)
    >>> round(seconds(1e6), 9)
    0.00156
    """
    if isinstance(machine, Link):
        ranks = whole("num_ranks (of a link)", num_ranks, 1)
        return lambda num_bytes: closed_form("allreduce", "ring", ranks, num_bytes, machine)
    if not isinstance(machine, Profile):
        raise ValueError(f"machine must be a Profile or a Link, got {machine!r}")
    ranks = machine.num_ranks if num_ranks is None else whole("num_ranks", num_ranks, 1)
    if ranks == machine.num_ranks:
        measured: dict[float, float] = {}
        for point in machine.select("allreduce", algorithm="native"):
            measured[point.num_bytes] = min(point.median_s, measured.get(point.num_bytes, np.inf))
        if len(measured) > 1:
            sizes = sorted(measured)
            return CostTable(tuple(sizes), tuple(measured[size] for size in sizes))
    seconds = (machine.predict("allreduce", "ring", size, ranks).makespan_s for size in _PREDICTED_AT)
    return CostTable(_PREDICTED_AT, tuple(seconds))


def costs_s(cost: Cost, num_bytes: Seconds) -> Seconds:
    """Return what `cost` gives for each size; ValueError if it gives no times, or not one for each size."""
    given = function("cost", cost, "of bytes, such as ddp.cost makes")(num_bytes)
    seconds = np.asarray(given, dtype=float)
    good = seconds.shape in ((), num_bytes.shape) and (np.isfinite(seconds) & (seconds >= 0)).all()
    if not good:
        raise ValueError(f"cost must give finite seconds of at least 0, one for each size, got {seconds}")
    return np.broadcast_to(seconds, num_bytes.shape)
