"""What a step costs: buckets, overlap of backward and allreduce, and the other ways to share the work.

What measures and `dissect_data_parallel` need torch, and are brought in when first asked for; so are the demos.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .architectures import ARCHITECTURES, architecture_step
from .buckets import Bucket, BucketError, DDPBuckets, assign_buckets, ddp_buckets, parameter_specs
from .cap_sweep import CapSweep, MeasuredCap, load_sweeps, save_sweeps
from .contention import OverlappedStep, fit_contention
from .cost import CostTable, allreduce_cost
from .data_parallel_model import (
    StepCosts,
    StepSizes,
    StepTraffic,
    chunk_sizes,
    data_parallel_messages,
    data_parallel_traffic,
    ddp_traffic,
    simulate_data_parallel,
    simulate_ddp_in_turn,
)
from .ddp_run import DDPRun, ObservedStep
from .followed import FollowedSteps
from .launches import default_buckets
from .local_step import Contention, LocalStep, ParameterSpec
from .overlap import simulate_step, step_seconds
from .recommend import Recommendation, recommend_bucket_cap
from .zero import ZeroMemory, zero_memory
from .zero_estimators import ESTIMATORS, Estimator
from .zero_partition import partition_imbalance, zero_redundancy_partition
from .zero_traffic import ZeroTraffic, zero_traffic
from .zero_ways import WAYS, predicted_memory, predicted_traffic

if TYPE_CHECKING:
    from .data_parallel import DissectedStep, dissect_data_parallel
    from .measure_followed import follow_steps
    from .measure_steps import measure_ddp, measure_local_step
    from .measure_sweep import measure_allreduce, measure_contention, sweep_caps
    from .measure_zero import LiveMemory, live_memory
    from .measure_zero_resume import resume_difference

__all__ = [
    "ARCHITECTURES",
    "ESTIMATORS",
    "WAYS",
    "Bucket",
    "BucketError",
    "CapSweep",
    "Contention",
    "CostTable",
    "DDPBuckets",
    "DDPRun",
    "DissectedStep",
    "Estimator",
    "FollowedSteps",
    "LiveMemory",
    "LocalStep",
    "MeasuredCap",
    "ObservedStep",
    "OverlappedStep",
    "ParameterSpec",
    "Recommendation",
    "StepCosts",
    "StepSizes",
    "StepTraffic",
    "ZeroMemory",
    "ZeroTraffic",
    "allreduce_cost",
    "architecture_step",
    "assign_buckets",
    "chunk_sizes",
    "data_parallel_messages",
    "data_parallel_traffic",
    "ddp_buckets",
    "ddp_traffic",
    "default_buckets",
    "dissect_data_parallel",
    "fit_contention",
    "follow_steps",
    "live_memory",
    "load_sweeps",
    "measure_allreduce",
    "measure_contention",
    "measure_ddp",
    "measure_local_step",
    "parameter_specs",
    "partition_imbalance",
    "predicted_memory",
    "predicted_traffic",
    "recommend_bucket_cap",
    "resume_difference",
    "save_sweeps",
    "simulate_data_parallel",
    "simulate_ddp_in_turn",
    "simulate_step",
    "step_seconds",
    "sweep_caps",
    "zero_memory",
    "zero_redundancy_partition",
    "zero_traffic",
]

_LATE = {
    "DissectedStep": ".data_parallel",
    "LiveMemory": ".measure_zero",
    "dissect_data_parallel": ".data_parallel",
    "follow_steps": ".measure_followed",
    "live_memory": ".measure_zero",
    "measure_allreduce": ".measure_sweep",
    "measure_contention": ".measure_sweep",
    "measure_ddp": ".measure_steps",
    "measure_local_step": ".measure_steps",
    "resume_difference": ".measure_zero_resume",
    "sweep_caps": ".measure_sweep",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(_LATE[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
