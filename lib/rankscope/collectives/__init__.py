"""Collectives as schedules of messages, which are verified, drawn, simulated and executed.

`run_local` and `execute` load torch when first asked for; everything else is numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..common.extras import naming_extra
from .algorithms import ALGORITHMS, Algorithm, build
from .best import best
from .cost import closed_form, lower_bounds
from .schedule import Schedule, ScheduleError, Step
from .simulate import simulate
from .verify import verify
from .wire.twin import simulate_executor

if TYPE_CHECKING:
    from .local import run_local
    from .wire.run import execute

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
    "simulate_executor",
    "verify",
]


@naming_extra()
def __getattr__(name: str) -> Any:
    if name == "run_local":
        from .local import run_local

        return run_local
    if name == "execute":
        from .wire.run import execute

        return execute
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
