"""How a batch arrives, and what would make it arrive sooner: simulated, run, recorded and advised on one timeline.

Stages and queues (`simulate`, `run`), torch's DataLoader (`simulate_dataloader`, `record_dataloader`, `advise`), part
files (`SyncPartDataset`, `AsyncPartDataset`, `simulate_parts`), and copies to the GPU (`prefetched`,
`simulate_transfer`). What needs torch is imported when it is first used; everything else is numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.extras import when_used
from .dataloader.advice import advise
from .dataloader.model import simulate_dataloader
from .parts.files import PartError, write_parts
from .parts.model import idle_share, simulate_parts
from .service import Lognormal
from .stages.model import simulate
from .stages.run import StageError, run
from .stages.stages import Pipeline, Stage
from .transfers.model import simulate_transfer

if TYPE_CHECKING:
    from .dataloader.measured import record_dataloader
    from .parts.datasets import AsyncPartDataset, SyncPartDataset, in_step
    from .transfers.run import prefetched

__all__ = [
    "AsyncPartDataset",
    "Lognormal",
    "PartError",
    "Pipeline",
    "Stage",
    "StageError",
    "SyncPartDataset",
    "advise",
    "idle_share",
    "in_step",
    "prefetched",
    "record_dataloader",
    "run",
    "simulate",
    "simulate_dataloader",
    "simulate_parts",
    "simulate_transfer",
    "write_parts",
]

__getattr__, __dir__ = when_used(
    __name__,
    AsyncPartDataset="parts.datasets",
    SyncPartDataset="parts.datasets",
    in_step="parts.datasets",
    prefetched="transfers.run",
    record_dataloader="dataloader.measured",
)
