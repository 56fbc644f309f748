"""Pipeline parallelism: schedules written down, verified, simulated and run on real ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..values.lazy import lazy
from .model import simulate, simulated_bubble, traffic
from .schedule import (
    PIPELINES,
    PipelineError,
    PipelineSchedule,
    bubble_share,
    gpipe,
    interleaved_1f1b,
    one_f_one_b,
    verify,
)

if TYPE_CHECKING:
    from .run import make_model, measure

__all__ = [
    "PIPELINES",
    "PipelineError",
    "PipelineSchedule",
    "bubble_share",
    "gpipe",
    "interleaved_1f1b",
    "make_model",
    "measure",
    "one_f_one_b",
    "simulate",
    "simulated_bubble",
    "traffic",
    "verify",
]

__getattr__, __dir__ = lazy(__name__, {"make_model": "run", "measure": "run"})
