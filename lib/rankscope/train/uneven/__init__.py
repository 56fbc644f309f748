"""Ranks that run out of batches at different times: predicted, and run for real."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...common.extras import when_used
from .model import predict, simulate

if TYPE_CHECKING:
    from .run import measure

__all__ = ["measure", "predict", "simulate"]

__getattr__, __dir__ = when_used(__name__, measure="run")
