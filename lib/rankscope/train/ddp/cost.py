"""`cost`: the seconds of an allreduce by its bytes, as a machine's profile or a link gives them."""

from __future__ import annotations

import numpy as np

from ...cluster import Link
from ...common.checks import function, whole
from ...networks import Cost, CostTable, HasCost, Seconds, ring_cost

__all__ = ["Cost", "CostTable", "Seconds", "cost", "costs_s"]


def cost(machine: HasCost | Link, num_ranks: int | None = None) -> Cost:
    """Return a function from bytes (a number or an array) to the seconds of one allreduce without other traffic.

    For a profile this is `Profile.cost`: the backend's own allreduce as measured, or for another number of ranks the
    prediction for a ring. For a link it is the closed form of a ring.

    Raises ValueError for a link without `num_ranks`, and as `Profile.cost` does.

    >>> seconds = cost(Link(alpha_s=1e-5, bytes_per_s=1e9), num_ranks=4)
    >>> round(seconds(1e6), 9)
    0.00156
    """
    if isinstance(machine, Link):
        return ring_cost(machine, whole("num_ranks (of a link)", num_ranks, 1))
    if not callable(getattr(machine, "cost", None)):
        raise ValueError(f"machine must be a Profile or a Link, got {machine!r}")
    return machine.cost(num_ranks)


def costs_s(cost: Cost, num_bytes: Seconds) -> Seconds:
    """Return what `cost` gives for each size; ValueError if it gives no times, or not one for each size."""
    given = function("cost", cost, "of bytes, such as ddp.cost makes")(num_bytes)
    seconds = np.asarray(given, dtype=float)
    good = seconds.shape in ((), num_bytes.shape) and (np.isfinite(seconds) & (seconds >= 0)).all()
    if not good:
        raise ValueError(f"cost must give finite seconds of at least 0, one for each size, got {seconds}")
    return np.broadcast_to(seconds, num_bytes.shape)
