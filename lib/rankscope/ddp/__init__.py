"""A training step under DistributedDataParallel: gradient buckets, overlap with backward, and which cap to choose.

What trains or measures needs torch, and is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..values.lazy import lazy
from .buckets import assign_buckets
from .buckets import ddp_buckets as buckets
from .cap_sweep import load_sweeps
from .cost import allreduce_cost as cost
from .ddp_run import DDPRun
from .local_step import Contention, LocalStep
from .overlap import simulate_step as simulate
from .recommend import recommend_bucket_cap as recommend

if TYPE_CHECKING:
    from .measure_followed import follow_steps as follow
    from .measure_steps import measure_ddp as measure
    from .measure_steps import measure_local_step
    from .measure_sweep import measure_allreduce, measure_contention

__all__ = [
    "Contention",
    "DDPRun",
    "LocalStep",
    "assign_buckets",
    "buckets",
    "cost",
    "follow",
    "load_sweeps",
    "measure",
    "measure_allreduce",
    "measure_contention",
    "measure_local_step",
    "recommend",
    "simulate",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "follow": "measure_followed:follow_steps",
        "measure": "measure_steps:measure_ddp",
        "measure_allreduce": "measure_sweep",
        "measure_contention": "measure_sweep",
        "measure_local_step": "measure_steps",
    },
)
