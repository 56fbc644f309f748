"""A training step under DistributedDataParallel: gradient buckets, overlap with backward, and which cap to set.

Functions that train or measure need torch, and are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...common.extras import naming_extra
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


@naming_extra()
def __getattr__(name: str) -> Any:
    if name == "follow":
        from .followed import follow

        return follow
    if name in ("Where", "measure", "measure_contention", "measure_local_step"):
        from . import run

        return getattr(run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
