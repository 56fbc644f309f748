"""ZeRO and FSDP: the memory and the traffic of each rank, predicted and measured.

>>> from rankscope.train import zero
>>> print(zero.memory(7.5e9, 64, stage=3))
7.5 billion parameters, 64 ranks, stage 3, mixed, adam: 1.88 GB per rank
  parameters         234 MB
  gradients          234 MB
  optimizer_states   938 MB
  master_copy        469 MB
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...common.extras import when_used
from .model import WAYS, memory, partition, traffic

if TYPE_CHECKING:
    from .run import measure

__all__ = ["WAYS", "measure", "memory", "partition", "traffic"]

__getattr__ = when_used(__name__, measure="run")


def __dir__() -> list[str]:
    return __all__
