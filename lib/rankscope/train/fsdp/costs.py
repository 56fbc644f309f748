"""`FSDPCosts`: the seconds of FSDP's collectives and copies, as functions of the bytes of the whole buffer."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from ...cluster import Link
from ...collectives import closed_form
from ...common.checks import check_field, function, number, of_type, optional, whole
from ...networks import Cost


def no_time(num_bytes: Any) -> float:
    """Return 0 s, the cost of what is left out."""
    return 0.0


class FSDPCosts(msgspec.Struct, frozen=True):
    """The times of an all-gather, a reduce-scatter and HSDP's all-reduce, without other traffic, and of copies.

    Each is a function from the bytes of the whole gathered, padded buffer to seconds; that of `allreduce` is a function
    of the bytes of the rank's shard. `copy_in` precedes an all-gather and `copy_out` follows it; `reduce_copy_in`
    precedes a reduce-scatter, and `copy_out_reduced`, which divides and casts, follows it. Copies take no time by
    default.

    `forward_hooks_s` and `backward_hooks_s` are the times in seconds of FSDP's own Python code around the forward and
    backward passes of one group. They delay the step if the same thread also computes, as on the CPU. The default of 0
    is right for a GPU that never waits for its process.

    The ranks do not leave a collective together. `allgather_spread`, `reduce_scatter_spread` and `allreduce_spread` are
    the times in seconds from the first rank to the last, for which the next collective waits if the ranks compute
    equally long. They count only without overlap. If more ranks than cores share a machine, the ranks that leave first
    compute on cores that the others do not need yet. `cores_per_rank` is the number of cores of a rank while all
    compute, at most 1.

    >>> costs = FSDPCosts.of_link(Link(alpha_s=1e-5, bytes_per_s=1e9), num_ranks=4)
    >>> round(costs.allgather(1e6), 9), round(costs.reduce_scatter(1e6), 9)
    (0.00078, 0.00078)
    """

    allgather: Cost
    reduce_scatter: Cost
    allreduce: Cost | None = None
    copy_in: Cost = no_time
    copy_out: Cost = no_time
    reduce_copy_in: Cost = no_time
    copy_out_reduced: Cost = no_time
    forward_hooks_s: float = 0.0
    backward_hooks_s: float = 0.0
    allgather_spread: Cost = no_time
    reduce_scatter_spread: Cost = no_time
    allreduce_spread: Cost = no_time
    cores_per_rank: float = 1.0

    def __post_init__(self) -> None:
        check_field(self, "allgather", function, "of bytes")
        check_field(self, "reduce_scatter", function, "of bytes")
        check_field(self, "allreduce", optional, function, "of bytes")
        check_field(self, "copy_in", function, "of bytes")
        check_field(self, "copy_out", function, "of bytes")
        check_field(self, "reduce_copy_in", function, "of bytes")
        check_field(self, "copy_out_reduced", function, "of bytes")
        check_field(self, "forward_hooks_s", number, 0)
        check_field(self, "backward_hooks_s", number, 0)
        check_field(self, "allgather_spread", function, "of bytes")
        check_field(self, "reduce_scatter_spread", function, "of bytes")
        check_field(self, "allreduce_spread", function, "of bytes")
        check_field(self, "cores_per_rank", number, above=0, high=1)

    @classmethod
    def of_link(
        cls,
        link: Link,
        num_ranks: int,
        *,
        num_replicas: int = 1,
        replica_link: Link | None = None,
        copy_bytes_per_s: float = math.inf,
    ) -> FSDPCosts:
        """Return the closed forms of rings over equal links, and copies at `copy_bytes_per_s`.

        With `num_replicas` the rings of all-gathers and reduce-scatters have ``num_ranks / num_replicas`` ranks, and
        the all-reduces go over `replica_link`, by default the same link. Raises ValueError if the replicas do not
        divide the ranks.
        """
        of_type("link", link, Link)
        num_ranks = whole("num_ranks", num_ranks, 2)
        num_replicas = whole("num_replicas", num_replicas, 1, num_ranks)
        if num_ranks % num_replicas:
            raise ValueError(f"num_replicas must divide the {num_ranks} ranks, got {num_replicas}")
        # Infinity, the default, is allowed: copies then take no time.
        copy_bytes_per_s = number("copy_bytes_per_s", copy_bytes_per_s, above=0, high=math.inf)
        num_shards = num_ranks // num_replicas
        allreduce = None
        if num_replicas > 1:
            if replica_link is None:
                replica_link = link
            of_type("replica_link", replica_link, Link)
            allreduce = _Ring("allreduce", num_replicas, replica_link)
        whole_buffer_copy = _Copy(copy_bytes_per_s)
        # An all-gather's copy-in copies the rank's own shard only, but its cost is asked for the whole buffer.
        shard_copy = _Copy(copy_bytes_per_s * num_shards)
        # Without `copy_out_reduced`: the shard's gradients are views of the reduced buffer (``foreach_reduce``).
        # Only dividing or casting them would take time.
        return cls(
            allgather=_Ring("allgather", num_shards, link),
            reduce_scatter=_Ring("reduce_scatter", num_shards, link),
            allreduce=allreduce,
            copy_in=shard_copy,
            copy_out=whole_buffer_copy,
            reduce_copy_in=whole_buffer_copy,
        )

    @classmethod
    def of_allreduce(cls, allreduce: Cost) -> FSDPCosts:
        """Return costs from that of an all-reduce: an all-gather and a reduce-scatter are half of it each.

        That is exact for a ring, whose all-reduce is one of each (Patarasuk and Yuan, 2009).

        >>> float(FSDPCosts.of_allreduce(lambda num_bytes: num_bytes / 1e9).allgather(2e6))
        0.001
        """
        half = _HalfOfAllreduce(function("cost", allreduce, "of bytes, such as ddp.cost makes"))
        return cls(half, half)


class _Ring(msgspec.Struct, frozen=True):
    """The closed form of a ring; a class, so that costs can be compared and pickled."""

    collective: str
    num_ranks: int
    link: Link

    def __call__(self, num_bytes: Any) -> Any:
        return closed_form(self.collective, "ring", self.num_ranks, num_bytes, self.link)


class _Copy(msgspec.Struct, frozen=True):
    bytes_per_s: float

    def __call__(self, num_bytes: Any) -> Any:
        return np.asarray(num_bytes) / self.bytes_per_s


class _HalfOfAllreduce(msgspec.Struct, frozen=True):
    cost: Cost

    def __call__(self, num_bytes: Any) -> Any:
        return np.asarray(self.cost(num_bytes)) / 2


def costs_from(cost: Any, num_replicas: int) -> FSDPCosts:
    """Return FSDPCosts as they are, or those that follow from the cost of an all-reduce.

    Raises ValueError for anything else, and for several replicas without a cost of their all-reduce.
    """
    costs = cost
    if not isinstance(cost, FSDPCosts):
        costs = FSDPCosts.of_allreduce(cost)
    if num_replicas > 1 and costs.allreduce is None:
        raise ValueError(f"cost must be FSDPCosts with an allreduce for {num_replicas} replicas, got {cost!r}")
    return costs  # type: ignore[no-any-return]


def seconds_of(name: str, cost: Cost, num_bytes: float) -> float:
    """Return what a cost says about one size; ValueError unless that is one finite time of at least 0."""
    value = cost(num_bytes)
    return number(f"the seconds of {name} for {num_bytes:g} bytes", value, 0)
