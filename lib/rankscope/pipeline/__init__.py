"""How a batch arrives, and what would make it arrive sooner: simulated, run, recorded and advised on one timeline.

Stages and queues (`simulate`, `run`), torch's DataLoader (`simulate_dataloader`, `record_dataloader`, `advise`), part
files (`SyncPartDataset`, `AsyncPartDataset`, `simulate_parts`), and copies to the GPU (`prefetched`,
`simulate_transfer`). What needs torch is imported when it is first used; everything else is numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.extras import when_used
from .advice import advise
from .epoch import simulate_dataloader
from .part_files import PartError, write_parts
from .part_model import idle_share, simulate_parts
from .run import StageError, run
from .service import Lognormal
from .simulate import simulate
from .stages import Pipeline, Stage
from .transfer_model import overlap_share, simulate_transfer

if TYPE_CHECKING:
    from .dataloader import record_dataloader
    from .part_datasets import AsyncPartDataset, SyncPartDataset, in_step
    from .prefetch import prefetched

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
    "overlap_share",
    "prefetched",
    "record_dataloader",
    "run",
    "simulate",
    "simulate_dataloader",
    "simulate_parts",
    "simulate_transfer",
    "write_parts",
]

__getattr__ = when_used(
    __name__,
    AsyncPartDataset="part_datasets",
    SyncPartDataset="part_datasets",
    in_step="part_datasets",
    prefetched="prefetch",
    record_dataloader="dataloader",
)


def __dir__() -> list[str]:
    return __all__
