"""Which rank reads which sample: the samplers of torch and libtorch, our own, what each rank reads, and the audit.

`DistributedSampler` and `audit_loader` need torch, and are imported when first used; everything else is numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.extras import when_used
from .assignment import Assignment
from .audits.audit import audit
from .audits.findings import AuditError
from .kinds import SAMPLERS, EpochRecipe, Sampler, assign
from .samplers.balanced import BalancedSampler
from .samplers.files import shard_files
from .samplers.keyed_sampler import KeyedSampler
from .samplers.libtorch import DistributedRandomSampler, DistributedSequentialSampler
from .samplers.weighted import WeightedSampler
from .work.model import EpochWork, epoch_work

if TYPE_CHECKING:
    from .audits.loader_audit import audit_loader
    from .samplers.torch_samplers import DistributedSampler

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

__getattr__, __dir__ = when_used(
    __name__, DistributedSampler="samplers.torch_samplers", audit_loader="audits.loader_audit"
)
