"""The ways in which torch trains with what ZeRO describes, each with the stage that it comes to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..values.checks import one_of
from .zero import ZeroMemory, zero_memory
from .zero_module import sizes_of
from .zero_traffic import Exchange, ZeroTraffic, zero_traffic


@dataclass(frozen=True)
class Way:
    """What `zero_memory` is to be asked about a way: the stage, who holds what, whether gradients are there twice."""

    stage: int
    partition: str
    buckets: bool
    what: str


# The ways of torch that `live_memory` measures and `predicted_memory` predicts.
WAYS = {
    "ddp": Way(0, "even", True, "DistributedDataParallel as it comes"),
    "ddp_bucket_view": Way(0, "even", False, "DistributedDataParallel(gradient_as_bucket_view=True)"),
    "zero_redundancy_optimizer": Way(1, "tensors", False, "the same, with ZeroRedundancyOptimizer"),
    "fully_shard_keep": Way(2, "rows", False, "fully_shard(reshard_after_forward=False), from forward to backward"),
    "fully_shard": Way(3, "rows", False, "fully_shard(reshard_after_forward=True)"),
}


def predicted_memory(
    module: Any, num_ranks: int, way: str, recipe: str = "fp32", optimizer: str = "adam", rank: int | None = None
) -> ZeroMemory:
    """Return what `live_memory` is to find on a rank, the fullest where it is None; ValueError as `zero_memory`.

    "ddp" and "ddp_bucket_view" are stage 0 and "zero_redundancy_optimizer" is stage 1. "fully_shard" is stage 3.
    "fully_shard_keep" is stage 2 while a step computes, and as stage 3 from one step to the next: torch has no way that
    keeps whole parameters and shares of the gradients all the time.

    >>> import torch.nn as nn
    >>> module = nn.Linear(256, 3, bias=False)  # three rows on two ranks: two, and one that is padded
    >>> [predicted_memory(module, 2, "fully_shard", rank=rank).terms["parameters"] for rank in (0, 1)]
    [2048, 2048]
    """
    how = WAYS[one_of("way", way, tuple(WAYS))]
    _check_recipe(how, recipe)
    asked: dict[str, Any] = {"partition": how.partition, "buckets": how.buckets, "rank": rank}
    return zero_memory(module, num_ranks, how.stage, recipe, optimizer, **asked)


def predicted_traffic(module: Any, num_ranks: int, way: str, recipe: str = "fp32") -> ZeroTraffic:
    """Return the collectives of one step, as `live_memory` is to count them; ValueError as `predicted_memory`.

    DistributedDataParallel also broadcasts rank 0's buffers in every step.
    """
    how = WAYS[one_of("way", way, tuple(WAYS))]
    _check_recipe(how, recipe)
    traffic = zero_traffic(module, num_ranks, how.stage, recipe, partition=how.partition)
    buffer_bytes = 0 if how.partition == "rows" else sizes_of(module).buffer_bytes
    buffers = (Exchange("broadcast", "buffers", buffer_bytes),) if buffer_bytes else ()
    return replace(traffic, exchanges=(*buffers, *traffic.exchanges))


def _check_recipe(way: Way, recipe: str) -> None:
    if recipe == "mixed" and way.partition != "rows":
        raise ValueError("recipe 'mixed' needs fully_shard: DistributedDataParallel keeps no master copy")
