"""Networks by what an allreduce takes on them, and the table of those that explorers offer.

A `Network` is a name and a function from a number of ranks to a cost; a cost is a function from bytes to seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from .cluster import Link
from .collectives import closed_form
from .common.checks import check_field, each, function, number, of_type, optional, whole

Seconds = NDArray[np.float64]
Cost = Callable[[Any], Any]  # from an array of bytes to as many seconds, or to one number for all


class CostTable(msgspec.Struct, frozen=True):
    """Times in seconds at some sizes, joined and extended by straight lines, and never below 0.

    Raises ValueError unless there are at least two sizes in ascending order and a time for each.

    >>> CostTable((0.0, 100.0), (1.0, 2.0))(np.array([50.0, 200.0]))
    array([1.5, 3. ])
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
        size = np.asarray(num_bytes, dtype=float)
        sizes = np.array(self.num_bytes)
        seconds = np.array(self.seconds)
        slopes = np.maximum(np.diff(seconds) / np.diff(sizes), 0.0)  # beyond the ends more bytes never take less
        below = np.minimum(size - sizes[0], 0.0)  # how far a size is below the first one, as a number of at most 0
        above = np.maximum(size - sizes[-1], 0.0)
        inside = np.interp(size, sizes, seconds)  # beyond the ends it is the time of the end
        return np.asarray(np.maximum(inside + below * slopes[0] + above * slopes[-1], 0.0))


class Network(msgspec.Struct, frozen=True, eq=False):
    """A network that an explorer offers: what an allreduce takes on it.

    `name` is what a state line says and `label` what the list shows. `cost_of` returns the cost for a number of ranks.
    A network that was measured has its `num_ranks`, and its cost is for those only; None means any number. Beyond
    `most_bytes`, the largest size that was measured, the cost is extrapolated. `about` says where the times are from,
    a line each.

    Raises ValueError for a name, label or function that is none, and for numbers out of range.

    >>> slow = Network("slow", "a slow network", lambda num_ranks: lambda num_bytes: num_ranks * num_bytes / 1e6)
    >>> slow.cost(4)(1e6)
    4.0
    """

    name: str
    label: str
    cost_of: Callable[[int], Cost]
    num_ranks: int | None = None
    most_bytes: float = math.inf
    about: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_field(self, "name", of_type, str)
        check_field(self, "label", of_type, str)
        check_field(self, "cost_of", function, "of a number of ranks")
        check_field(self, "num_ranks", optional, whole, 1)
        check_field(self, "most_bytes", number, above=0, high=math.inf)
        check_field(self, "about", each, of_type, str)

    def relabelled(self, label: str) -> Network:
        """Return the same network with another label."""
        return replace(self, label=label)

    def ranks(self, num_ranks: int) -> int:
        """Return the number of ranks that a cost is for: the network's own, or `num_ranks` if it takes any."""
        return num_ranks if self.num_ranks is None else self.num_ranks

    def cost(self, num_ranks: int) -> Cost:
        """Return the cost of an allreduce over the network's own number of ranks, or over `num_ranks`."""
        return self.cost_of(self.ranks(num_ranks))


class HasCost(Protocol):
    """What has a cost of its own, such as a `Profile`."""

    def cost(self, num_ranks: int | None = None) -> Cost:
        """Return the cost of an allreduce over so many ranks, None for those that were measured."""
        ...


class Measured(Protocol):
    """What has a network of its own, such as a `Profile`."""

    def network(self, name: str) -> Network:
        """Return the network under this name."""
        ...


def ring_cost(link: Link, num_ranks: int) -> Cost:
    """Return the cost of an allreduce by a ring over equal links, without other traffic.

    >>> round(ring_cost(Link(alpha_s=1e-5, bytes_per_s=1e9), num_ranks=4)(1e6), 9)
    0.00156
    """
    return lambda num_bytes: closed_form("allreduce", "ring", num_ranks, num_bytes, link)
