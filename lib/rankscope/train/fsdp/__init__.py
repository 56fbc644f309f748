"""FSDP: what `fully_shard` communicates, when, and the memory that it needs: predicted, and run on real ranks.

>>> import torch
>>> from rankscope.train import fsdp
>>> module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
>>> def loss(module, rank, number):
...     return module(torch.ones(8, 64)).sum()
>>> fsdp.collectives(module, loss, num_ranks=4, wrap=["*"])[0]
CollectiveCall(kind='allgather', num_bytes=16640)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...common.extras import when_used
from .costs import FSDPCosts
from .memory import LiveBytes, PredictedMemory
from .observed import FSDPRun
from .replay import CollectiveCall
from .step import ModuleStep, ShardedLayer, ShardedParameter
from .timing import PredictedStep, predict

if TYPE_CHECKING:
    from .calls import observed_step
    from .measured import measure_costs, measure_step
    from .predicted import collectives
    from .recommending import recommend
    from .running import run

__all__ = [
    "CollectiveCall",
    "FSDPCosts",
    "FSDPRun",
    "LiveBytes",
    "ModuleStep",
    "PredictedMemory",
    "PredictedStep",
    "ShardedLayer",
    "ShardedParameter",
    "collectives",
    "measure_costs",
    "measure_step",
    "observed_step",
    "predict",
    "recommend",
    "run",
]

__getattr__ = when_used(
    __name__,
    collectives="predicted",
    measure_costs="measured",
    measure_step="measured",
    observed_step="calls",
    recommend="recommending",
    run="running",
)


def __dir__() -> list[str]:
    return __all__
