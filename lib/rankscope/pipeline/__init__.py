"""How a batch arrives: stages, queues and workers, predicted and executed on one timeline.

What needs torch is imported when it is first used; everything else is numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..values.lazy import lazy
from .advice import advise
from .dataloader_twin import simulate_dataloader
from .part_files import DelayedLoad, load_part, write_parts
from .part_loaders import LoaderDied
from .parts_twin import idle_share, simulate_parts
from .processes import StageError
from .queue_fill import queue_fill
from .run import run
from .service import Exponential, Lognormal, Measured, Uniform
from .simulate import simulate
from .stages import Pipeline, Stage
from .stored_images import StoredImages
from .tries import closest

if TYPE_CHECKING:
    from .dataloader import record_dataloader
    from .parts import AsyncPartDataset, SyncPartDataset, in_step

__all__ = [
    "AsyncPartDataset",
    "DelayedLoad",
    "Exponential",
    "LoaderDied",
    "Lognormal",
    "Measured",
    "Pipeline",
    "Stage",
    "StageError",
    "StoredImages",
    "SyncPartDataset",
    "Uniform",
    "advise",
    "closest",
    "idle_share",
    "in_step",
    "load_part",
    "queue_fill",
    "record_dataloader",
    "run",
    "simulate",
    "simulate_dataloader",
    "simulate_parts",
    "write_parts",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "AsyncPartDataset": "parts",
        "SyncPartDataset": "parts",
        "in_step": "parts",
        "record_dataloader": "dataloader",
    },
)
