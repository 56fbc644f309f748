"""`cost`: the seconds of an allreduce as a function of its bytes, from a machine's profile or a link."""

from __future__ import annotations

from ...cluster import Link
from ...common.checks import whole
from ...networks import Cost, HasCost, ring_cost


def cost(machine: HasCost | Link, num_ranks: int | None = None) -> Cost:
    """Return a function from bytes (a number or an array) to the seconds of one allreduce without other traffic.

    For a profile this is `Profile.cost`: the measured times of the backend's own allreduce or, for another number of
    ranks, the prediction for a ring. For a link it is the closed form of a ring.

    Raises ValueError if a link is given without `num_ranks`, or if a profile cannot predict the allreduce.

    >>> seconds = cost(Link(alpha_s=1e-5, bytes_per_s=1e9), num_ranks=4)
    >>> round(seconds(1e6), 9)
    0.00156
    """
    if isinstance(machine, Link):
        return ring_cost(machine, whole("num_ranks (of a link)", num_ranks, 1))
    if not callable(getattr(machine, "cost", None)):
        raise ValueError(f"machine must be a Profile or a Link, got {machine!r}")
    return machine.cost(num_ranks)
