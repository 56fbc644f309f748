"""`cost`: the seconds of each work of a step on given hardware."""

from __future__ import annotations

from ...common.checks import function, number
from ...networks import Cost as AllreduceCost
from .step import Cost, Work


def cost(
    shards: AllreduceCost,
    *,
    flops_per_s: float,
    bytes_per_s: float,
    replicas: AllreduceCost | None = None,
) -> Cost:
    """Return a function that gives the seconds of each `Work`, for `Step.timeline`.

    `shards` is the cost of an allreduce over the ranks that share the parameters, such as `ddp.cost` makes; an
    all-gather or a reduce-scatter takes half of it, as in a ring. `replicas` is that of an allreduce over the replicas
    of HSDP. Computing takes as long as its matrix products at `flops_per_s`, or as its bytes at `bytes_per_s` of the
    device's memory, whichever is longer (the roofline model of Williams and others, 2009).

    Raises ValueError if a cost is no function, or a rate is not above 0.

    >>> on_a_gpu = cost(lambda num_bytes: num_bytes / 50e9, flops_per_s=400e12, bytes_per_s=3e12)
    >>> on_a_gpu(Work("allgather", "allgather", "", frozenset(), 0, 10**9))
    0.01
    """
    function("shards", shards, "of bytes, such as ddp.cost makes")
    over_replicas = function("replicas", replicas or shards, "of bytes, such as ddp.cost makes")
    number("flops_per_s", flops_per_s, above=0)
    number("bytes_per_s", bytes_per_s, above=0)

    def seconds(work: Work) -> float:
        if work.kind in ("allgather", "reduce_scatter"):
            return float(shards(work.num_bytes)) / 2
        if work.kind == "allreduce":
            return float(over_replicas(work.num_bytes))
        return max(work.flops / flops_per_s, work.num_bytes / bytes_per_s)

    return seconds
