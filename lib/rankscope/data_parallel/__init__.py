"""DataParallel next to DDP: what a step moves between devices and when, predicted and dissected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..values.lazy import lazy
from .model import StepCosts, StepSizes, simulate, traffic

if TYPE_CHECKING:
    from .run import dissect

__all__ = ["StepCosts", "StepSizes", "dissect", "simulate", "traffic"]

__getattr__, __dir__ = lazy(__name__, {"dissect": "run"})
