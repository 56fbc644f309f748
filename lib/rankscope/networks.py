"""What an allreduce takes on a network: a cost is a function from bytes to seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from .cluster import Link
from .collectives import closed_form
from .common.checks import check_field, each, number

Seconds = NDArray[np.float64]
Cost = Callable[[Any], Any]  # from an array of bytes to as many seconds, or to one number for all


class CostTable(msgspec.Struct, frozen=True):
    """Times in seconds at some sizes, joined by straight lines.

    Below the smallest size the time stays constant; above the largest, each further byte costs what it cost between the
    last two sizes. Raises ValueError unless there are at least two sizes in ascending order and a time for each.

    >>> CostTable((100.0, 200.0), (2.0, 3.0))(np.array([50.0, 150.0, 400.0]))
    array([2. , 2.5, 5. ])
    """

    num_bytes: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        check_field(self, "num_bytes", each, number, 0)
        check_field(self, "seconds", each, number, 0)
        if len(self.num_bytes) < 2 or not (np.diff(self.num_bytes) > 0).all():
            raise ValueError(f"num_bytes must be at least two rising sizes, got {self.num_bytes!r}")
        if len(self.seconds) != len(self.num_bytes):
            raise ValueError(f"seconds must be {len(self.num_bytes)}, one for each size, got {self.seconds!r}")

    def __call__(self, num_bytes: Any) -> Seconds:
        """Return the seconds of one number of bytes or of an array of them."""
        *_, small, largest = self.num_bytes
        *_, small_s, largest_s = self.seconds
        s_per_byte = (largest_s - small_s) / (largest - small)
        if s_per_byte <= 0:  # The largest size took no longer than the one before it: assume time proportional to size.
            s_per_byte = largest_s / largest
        size = np.asarray(num_bytes, dtype=float)
        above = np.maximum(size - largest, 0.0)
        return np.asarray(np.interp(size, self.num_bytes, self.seconds) + above * s_per_byte)


def ring_cost(link: Link, num_ranks: int) -> Cost:
    """Return the cost of an allreduce by a ring over equal links, without other traffic.

    >>> round(ring_cost(Link(alpha_s=1e-5, bytes_per_s=1e9), num_ranks=4)(1e6), 9)
    0.00156
    """
    return lambda num_bytes: closed_form("allreduce", "ring", num_ranks, num_bytes, link)
