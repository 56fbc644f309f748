"""DataParallel next to DDP: the predicted traffic and timeline of a step. Its figure is in the explorers."""

from __future__ import annotations

from .model import StepCosts, StepSizes, simulate, traffic

__all__ = ["StepCosts", "StepSizes", "simulate", "traffic"]


def __dir__() -> list[str]:
    return __all__
