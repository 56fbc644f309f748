"""`collectives`: which collectives a module under `fully_shard` performs, predicted without ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from .calls import observed_step
from .replay import CollectiveCall, Replay, ShardSettings, collective_calls, matching


def collectives(
    module: nn.Module,
    loss: Callable[..., Any],
    *,
    num_ranks: int,
    wrap: Iterable[str] = (),
    **settings: Any,
) -> list[CollectiveCall]:
    """Return the collectives of one forward and backward, in the order in which each rank issues them.

    ``loss(module, rank, number)`` is that of `run`. The module runs once in this process, so the order is exact
    whatever its code does, also if it depends on data or repeats a forward in backward (activation checkpointing).
    `wrap` are the names of the submodules to which `fully_shard` is applied, before the module itself; "*" stands for
    one part of a name, as in "layers.*". `settings` are those of `ShardSettings`: ``reshard_after_forward``,
    ``prefetch``, ``num_replicas``, ``param_dtype`` and ``reduce_dtype``.

    A group gathers all its parameters in one buffer, in which dimension 0 of each is padded to a multiple of the ranks
    (``foreach_all_gather`` in _fsdp_collectives.py). A reduce-scatter has the gradients that are there when autograd is
    done with the group, padded likewise (``foreach_reduce``). So frozen parameters are gathered and not reduced.

    Raises ValueError if the module has no parameters, if a name in `wrap` matches no submodule, if there is only one
    rank, or if the replicas do not divide the ranks.

    >>> import torch
    >>> module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    >>> def loss(module, rank, number):
    ...     return module(torch.ones(5, 4)).sum()
    >>> for call in collectives(module, loss, num_ranks=2, wrap=["0"]):
    ...     print(call.kind, call.num_bytes)
    allgather 32
    allgather 80
    allgather 32
    allgather 80
    reduce_scatter 32
    reduce_scatter 80
    """
    checked = ShardSettings.of(num_ranks, settings)
    step = observed_step(module, loss, wrap)
    return list(collective_calls(Replay(step, matching(step, wrap), checked).run(), checked))
