"""How a batch arrives, and what would make it arrive sooner: simulated, run, recorded and advised on one timeline.

Stages and queues (`simulate`, `run`), torch's DataLoader (`simulate_dataloader`, `record_dataloader`, `advise`), part
files (`SyncPartDataset`, `AsyncPartDataset`, `simulate_parts`), and copies to the GPU (`prefetched`,
`simulate_transfer`). What needs torch is imported when it is first used; everything else is numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..common.extras import naming_extra
from .advice import advise
from .closest import closest
from .cores import Cores
from .loader_model import Handover, simulate_dataloader
from .part_files import DelayedLoad, PartError, write_parts
from .part_model import idle_share, simulate_parts
from .run import StageError, run
from .service import Lognormal
from .simulate import simulate
from .stages import Pipeline, Stage
from .stored_images import StoredImages
from .transfer_model import overlap_share, simulate_transfer

if TYPE_CHECKING:
    from .dataloader import record_dataloader
    from .part_datasets import AsyncPartDataset, SyncPartDataset, in_step
    from .prefetch import prefetched

__all__ = [
    "AsyncPartDataset",
    "Cores",
    "DelayedLoad",
    "Handover",
    "Lognormal",
    "PartError",
    "Pipeline",
    "Stage",
    "StageError",
    "StoredImages",
    "SyncPartDataset",
    "advise",
    "closest",
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
_WITH_TORCH = {
    "AsyncPartDataset": "part_datasets",
    "SyncPartDataset": "part_datasets",
    "in_step": "part_datasets",
    "prefetched": "prefetch",
    "record_dataloader": "dataloader",
}


@naming_extra()
def __getattr__(name: str) -> Any:
    if name in _WITH_TORCH:
        return getattr(import_module(f".{_WITH_TORCH[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
