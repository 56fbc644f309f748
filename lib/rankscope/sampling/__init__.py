"""Which rank reads which sample: the samplers of torch and libtorch, our own, what each rank reads, and the audit.

`DistributedSampler` and `audit_loader` need torch, and are imported when first used; everything else is numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.extras import when_used
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

__getattr__ = when_used(__name__, DistributedSampler="torch_samplers", audit_loader="loader_audit")


def __dir__() -> list[str]:
    return __all__
