"""How a batch arrives: stages, queues and workers, predicted and executed on one timeline."""

from __future__ import annotations

from .processes import StageError, WorkerDied
from .queue_fill import queue_fill
from .run import run
from .service import Exponential, Lognormal, Measured, Uniform
from .simulate import simulate
from .stages import Pipeline, Stage

__all__ = [
    "Exponential",
    "Lognormal",
    "Measured",
    "Pipeline",
    "Stage",
    "StageError",
    "Uniform",
    "WorkerDied",
    "queue_fill",
    "run",
    "simulate",
]
