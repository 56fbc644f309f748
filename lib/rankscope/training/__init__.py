"""What a step costs: buckets, overlap of backward and allreduce, and the other ways to share the work."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .zero import ZeroMemory, zero_memory
from .zero_estimators import ESTIMATORS, Estimator
from .zero_partition import partition_imbalance, zero_redundancy_partition
from .zero_traffic import ZeroTraffic, zero_traffic
from .zero_ways import WAYS, predicted_memory, predicted_traffic

if TYPE_CHECKING:
    from .measure_zero import LiveMemory, live_memory
    from .measure_zero_resume import resume_difference

__all__ = [
    "ESTIMATORS",
    "WAYS",
    "Estimator",
    "LiveMemory",
    "ZeroMemory",
    "ZeroTraffic",
    "live_memory",
    "partition_imbalance",
    "predicted_memory",
    "predicted_traffic",
    "resume_difference",
    "zero_memory",
    "zero_redundancy_partition",
    "zero_traffic",
]

_LATE = {  # they need torch
    "LiveMemory": "measure_zero",
    "live_memory": "measure_zero",
    "resume_difference": "measure_zero_resume",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LATE[name]}", __name__), name)
