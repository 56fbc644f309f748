"""Ranks that run out of batches at different times: predicted, run for real, and compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...common.lazy import lazy
from .model import files_epoch, predict, simulate

if TYPE_CHECKING:
    from .run import compare, measure

__all__ = ["compare", "files_epoch", "measure", "predict", "simulate"]

__getattr__, __dir__ = lazy(__name__, {"compare": "run", "measure": "run"})
