"""DataParallel: the predicted traffic and timeline of a step."""

from __future__ import annotations

from .model import StepCosts, StepSizes, simulate, traffic

__all__ = ["StepCosts", "StepSizes", "simulate", "traffic"]


def __dir__() -> list[str]:
    return __all__
