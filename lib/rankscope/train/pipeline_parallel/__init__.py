"""Pipeline parallelism: schedules written down, verified, simulated and run on real ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...common.extras import when_used
from .model import simulate, simulated_bubble, traffic
from .schedule import PipelineError, PipelineSchedule, bubble_share, build, verify

if TYPE_CHECKING:
    from .run import make_model, measure

__all__ = [
    "PipelineError",
    "PipelineSchedule",
    "bubble_share",
    "build",
    "make_model",
    "measure",
    "simulate",
    "simulated_bubble",
    "traffic",
    "verify",
]

__getattr__ = when_used(__name__, make_model="run", measure="run")


def __dir__() -> list[str]:
    return __all__
