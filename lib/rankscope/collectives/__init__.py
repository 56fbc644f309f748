"""How gradients meet: every collective as a schedule that is verified, drawn, costed and simulated.

`run_local`, `execute` and `Executor` need torch, and are brought in when first asked for; everything else is numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..values.lazy import lazy
from .best import Best, best, winners
from .cost import closed_form, lower_bounds
from .registry import ALGORITHMS, build
from .schedule import Phase, Schedule, ScheduleError, Step
from .simulate import simulate
from .traffic import Traffic, traffic
from .verify import Verified, verify
from .wire_twin import simulate_executor

if TYPE_CHECKING:
    from .local import run_local
    from .wire import Executor, execute

__all__ = [
    "ALGORITHMS",
    "Best",
    "Executor",
    "Phase",
    "Schedule",
    "ScheduleError",
    "Step",
    "Traffic",
    "Verified",
    "best",
    "build",
    "closed_form",
    "execute",
    "lower_bounds",
    "run_local",
    "simulate",
    "simulate_executor",
    "traffic",
    "verify",
    "winners",
]

__getattr__, __dir__ = lazy(__name__, {"run_local": "local", "execute": "wire", "Executor": "wire"})
