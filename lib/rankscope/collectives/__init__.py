"""How gradients meet: every collective as a schedule that is verified, drawn, costed and simulated."""

from __future__ import annotations

from .registry import ALGORITHMS
from .schedule import Phase, Schedule, ScheduleError, Step
from .verify import Verified, verify

__all__ = ["ALGORITHMS", "Phase", "Schedule", "ScheduleError", "Step", "Verified", "verify"]
