"""Data sets cut into part files: read by the trainer itself or by workers ahead of it, and simulated.

The datasets need torch, and are brought in when first asked for; everything else is numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy import lazy
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

__getattr__, __dir__ = lazy(
    __name__, {"AsyncPartDataset": "datasets", "SyncPartDataset": "datasets", "in_step": "datasets"}
)
