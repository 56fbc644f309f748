"""Pipeline parallelism: schedules of torch or written by hand, verified, simulated and run on real ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...common.extras import when_used
from .model import bubble_share, messages, simulate, verify
from .schedule import SCHEDULES, PipelineError, PipelineSchedule, build

if TYPE_CHECKING:
    from .run import measure

__all__ = [
    "SCHEDULES",
    "PipelineError",
    "PipelineSchedule",
    "bubble_share",
    "build",
    "measure",
    "messages",
    "simulate",
    "verify",
]

__getattr__, __dir__ = when_used(__name__, measure="run")
