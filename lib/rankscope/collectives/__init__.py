"""Collectives as schedules of messages, which are verified, drawn, simulated and executed.

`run_local` and `execute` load torch when they need it; everything else is numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.extras import when_used
from . import builders as builders
from .algorithms import ALGORITHMS, Algorithm, build
from .best import best
from .cost import closed_form, lower_bounds
from .execute import execute
from .schedule import Schedule
from .simulate import simulate
from .steps import ScheduleError, Step
from .verify import verify

if TYPE_CHECKING:
    from .local import run_local

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Schedule",
    "ScheduleError",
    "Step",
    "best",
    "build",
    "closed_form",
    "execute",
    "lower_bounds",
    "run_local",
    "simulate",
    "verify",
]

__getattr__ = when_used(__name__, run_local="local")


def __dir__() -> list[str]:
    return __all__
