"""ZeRO: the memory and the traffic of each rank, predicted, and measured with torch's ZeroRedundancyOptimizer.

>>> from rankscope.train import zero
>>> print(zero.memory(7.5e9, 64, stage=3, largest_layer=1e8, activation_bytes=5e9))
7,500,000,000 parameters, 64 ranks, stage 3: 7.28 GB per rank
  parameters         234 MB
  gradients          234 MB
  optimizer_states   938 MB
  master_copy        469 MB
  largest_layer      400 MB
  activations          5 GB
not counted: buffers of communication and of kernels, unused memory of the allocator
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...common.extras import when_used
from .model import RECIPES, TERMS, WAYS, Recipe, ZeroMemory, memory, partition
from .step_traffic import traffic

if TYPE_CHECKING:
    from .run import measure

__all__ = [
    "RECIPES",
    "TERMS",
    "WAYS",
    "Recipe",
    "ZeroMemory",
    "measure",
    "memory",
    "partition",
    "traffic",
]

__getattr__, __dir__ = when_used(__name__, measure="run")
