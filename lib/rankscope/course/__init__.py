"""Demonstrations that only the notebooks use: unusual uses of DDP and Join on real ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy import lazy

if TYPE_CHECKING:
    from .ddp_gradients import bucket_view_memory, no_sync, static_graph, unused_parameters
    from .states import states_after_join

__all__ = ["bucket_view_memory", "no_sync", "states_after_join", "static_graph", "unused_parameters"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "bucket_view_memory": "ddp_gradients",
        "no_sync": "ddp_gradients",
        "states_after_join": "states",
        "static_graph": "ddp_gradients",
        "unused_parameters": "ddp_gradients",
    },
    submodules=["exercises"],
)
