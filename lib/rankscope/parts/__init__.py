"""Data sets cut into part files: read by the trainer itself or by workers ahead of it, and simulated.

The datasets need torch, and are brought in when first asked for; everything else is numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..common.extras import naming_extra
from .files import DelayedLoad, PartError, write_parts
from .simulate import idle_share, simulate

if TYPE_CHECKING:
    from .datasets import AsyncPartDataset, SyncPartDataset, in_step

__all__ = [
    "AsyncPartDataset",
    "DelayedLoad",
    "PartError",
    "SyncPartDataset",
    "idle_share",
    "in_step",
    "simulate",
    "write_parts",
]


@naming_extra()
def __getattr__(name: str) -> Any:
    if name in ("AsyncPartDataset", "SyncPartDataset", "in_step"):
        from . import datasets

        return getattr(datasets, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
