"""How a batch arrives: stages, queues and workers, predicted and executed on one timeline.

What needs torch, the recording of a DataLoader and the datasets of part files, is brought in when first asked for;
everything else is numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .advice import Advice, advise
from .dataloader_twin import simulate_dataloader
from .processes import StageError, WorkerDied
from .queue_fill import queue_fill
from .run import run
from .service import Exponential, Lognormal, Measured, Uniform
from .simulate import simulate
from .stages import Pipeline, Stage

if TYPE_CHECKING:
    from .dataloader import RecordedLoader, measure_pinning, record_dataloader

__all__ = [
    "Advice",
    "Exponential",
    "Lognormal",
    "Measured",
    "Pipeline",
    "RecordedLoader",
    "Stage",
    "StageError",
    "Uniform",
    "WorkerDied",
    "advise",
    "measure_pinning",
    "queue_fill",
    "record_dataloader",
    "run",
    "simulate",
    "simulate_dataloader",
]

_LATE = {
    "RecordedLoader": ".dataloader",
    "measure_pinning": ".dataloader",
    "record_dataloader": ".dataloader",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(_LATE[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
