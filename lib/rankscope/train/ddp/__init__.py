"""A training step under DistributedDataParallel: gradient buckets, overlap with backward, and which cap to set.

Functions that train or measure need torch, and are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...common.extras import when_used
from .bucketing import DDPBuckets, Gradient, assign
from .local import Contention, LocalStep, cost
from .model import simulate
from .recommend import recommend
from .resnet50 import resnet50_step

if TYPE_CHECKING:
    from .measured import MeasuredSteps, measure, measure_local_step
    from .observed import buckets

__all__ = [
    "Contention",
    "DDPBuckets",
    "Gradient",
    "LocalStep",
    "MeasuredSteps",
    "assign",
    "buckets",
    "cost",
    "measure",
    "measure_local_step",
    "recommend",
    "resnet50_step",
    "simulate",
]

__getattr__, __dir__ = when_used(
    __name__,
    MeasuredSteps="measured",
    buckets="observed",
    measure="measured",
    measure_local_step="measured",
)
