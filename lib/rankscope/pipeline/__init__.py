"""How a batch arrives: stages, queues and workers, predicted and executed on one timeline.

What needs torch, the recording of a DataLoader and the datasets of part files, is brought in when first asked for;
everything else is numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..values.lazy import lazy
from .advice import Advice, advise
from .batch_loop import simulate_loop
from .dataloader_twin import simulate_dataloader
from .part_files import DelayedLoad, load_part, write_parts
from .part_loaders import LoaderDied
from .part_manager import PartError
from .parts_twin import idle_share, simulate_parts
from .processes import StageError, WorkerDied
from .queue_fill import queue_fill
from .run import run
from .service import Exponential, Lognormal, Measured, Uniform
from .simulate import simulate
from .stages import Pipeline, Stage
from .step_agreement import Agreement, RecordedSteps, agree
from .stored_images import StoredImages
from .transfer_model import overlap_share, preprocess_on_gpu, preprocess_on_workers
from .tries import closest

if TYPE_CHECKING:
    from .dataloader import RecordedLoader, measure_pinning, record_dataloader
    from .parts import AsyncPartDataset, SyncPartDataset, in_step
    from .preprocess import preprocessed, random_crops
    from .step import record_steps
    from .transfer import Prefetched, prefetched

__all__ = [
    "Advice",
    "Agreement",
    "AsyncPartDataset",
    "DelayedLoad",
    "Exponential",
    "LoaderDied",
    "Lognormal",
    "Measured",
    "PartError",
    "Pipeline",
    "Prefetched",
    "RecordedLoader",
    "RecordedSteps",
    "Stage",
    "StageError",
    "StoredImages",
    "SyncPartDataset",
    "Uniform",
    "WorkerDied",
    "advise",
    "agree",
    "closest",
    "idle_share",
    "in_step",
    "load_part",
    "measure_pinning",
    "overlap_share",
    "prefetched",
    "preprocess_on_gpu",
    "preprocess_on_workers",
    "preprocessed",
    "queue_fill",
    "random_crops",
    "record_dataloader",
    "record_steps",
    "run",
    "simulate",
    "simulate_dataloader",
    "simulate_loop",
    "simulate_parts",
    "write_parts",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "AsyncPartDataset": "parts",
        "Prefetched": "transfer",
        "RecordedLoader": "dataloader",
        "SyncPartDataset": "parts",
        "in_step": "parts",
        "measure_pinning": "dataloader",
        "prefetched": "transfer",
        "preprocessed": "preprocess",
        "random_crops": "preprocess",
        "record_dataloader": "dataloader",
        "record_steps": "step",
    },
)
