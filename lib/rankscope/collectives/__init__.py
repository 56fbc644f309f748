"""Collectives as schedules of messages, which are verified, drawn, simulated and executed.

`run_local` and `execute` load torch when they need it; everything else is numpy.
"""

from __future__ import annotations

from . import builders as builders
from .algorithms import ALGORITHMS, Algorithm, build, closed_form
from .best import best
from .cost import lower_bounds
from .execute import execute
from .local import run_local
from .schedule import Schedule
from .simulate import simulate
from .steps import ScheduleError, Step
from .verify import verify

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


def __dir__() -> list[str]:
    return __all__
