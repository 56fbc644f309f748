"""Which rank reads which sample: the samplers of torch and libtorch, our own, what each rank reads, and the audit.

`DistributedSampler` and `audit_loader` need torch, and are imported when first used; everything else is numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..common.extras import naming_extra
from .assignment import Assignment
from .audit import audit
from .balanced import BalancedSampler
from .files import shard_files
from .findings import AuditError
from .keyed_sampler import KeyedSampler
from .kinds import SAMPLERS, EpochRecipe, Sampler, assign
from .libtorch import DistributedRandomSampler, DistributedSequentialSampler
from .weighted import WeightedSampler
from .work import EpochWork, epoch_work

if TYPE_CHECKING:
    from .loader_audit import audit_loader
    from .torch_samplers import DistributedSampler

__all__ = [
    "SAMPLERS",
    "Assignment",
    "AuditError",
    "BalancedSampler",
    "DistributedRandomSampler",
    "DistributedSampler",
    "DistributedSequentialSampler",
    "EpochRecipe",
    "EpochWork",
    "KeyedSampler",
    "Sampler",
    "WeightedSampler",
    "assign",
    "audit",
    "audit_loader",
    "epoch_work",
    "shard_files",
]


@naming_extra()
def __getattr__(name: str) -> Any:
    if name == "DistributedSampler":
        from .torch_samplers import DistributedSampler

        return DistributedSampler
    if name == "audit_loader":
        from .loader_audit import audit_loader

        return audit_loader
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
