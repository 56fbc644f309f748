"""A training step under DistributedDataParallel: gradient buckets, overlap with backward, and which cap to set.

Functions that train or measure need torch, and are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...common.extras import when_used
from .buckets import assign_buckets, buckets
from .cost import cost
from .job import job
from .observed import DDPRun
from .recommend import recommend
from .step import Contention, LocalStep, simulate
from .sweep import load_sweeps

if TYPE_CHECKING:
    from .followed import follow
    from .run import Where, measure, measure_contention, measure_local_step

__all__ = [
    "Contention",
    "DDPRun",
    "LocalStep",
    "Where",
    "assign_buckets",
    "buckets",
    "cost",
    "follow",
    "job",
    "load_sweeps",
    "measure",
    "measure_contention",
    "measure_local_step",
    "recommend",
    "simulate",
]

__getattr__ = when_used(
    __name__, Where="run", follow="followed", measure="run", measure_contention="run", measure_local_step="run"
)


def __dir__() -> list[str]:
    return __all__
