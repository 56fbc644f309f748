"""DataParallel next to DDP: what a step sends between devices, and when. Predicted, with a figure in the explorers."""

from __future__ import annotations

from .model import StepCosts, StepSizes, simulate, traffic

__all__ = ["StepCosts", "StepSizes", "simulate", "traffic"]
