"""Pipeline parallelism: schedules of torch or written by hand, verified, simulated and run on real ranks."""

from __future__ import annotations

from .model import bubble_share, messages, simulate, verify
from .run import MESSAGE_BYTES, measure
from .schedule import SCHEDULES, Pass, PipelineError, PipelineSchedule, build

__all__ = [
    "MESSAGE_BYTES",
    "SCHEDULES",
    "Pass",
    "PipelineError",
    "PipelineSchedule",
    "bubble_share",
    "build",
    "measure",
    "messages",
    "simulate",
    "verify",
]
