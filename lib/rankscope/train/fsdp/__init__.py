"""FSDP2: what `fully_shard` communicates in a step, in which order, its memory over time, and its time.

Nothing of FSDP is modelled here. `observe` takes one step of your module under torch's own `fully_shard`, in this
process and as one of as many ranks as you say, and records what torch does. `run` takes the step on real ranks.

>>> import torch
>>> from rankscope.train import fsdp
>>> module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
>>> step = fsdp.observe(module, lambda model: model(torch.ones(8, 64)).sum(), num_ranks=4, wrap=["*"])
>>> step.collectives[0]
CollectiveCall(kind='allgather', num_bytes=16640)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...common.extras import when_used
from .costs import cost
from .step import CollectiveCall, Step, Work

if TYPE_CHECKING:
    from .measured import run
    from .observed import collectives, observe

__all__ = ["CollectiveCall", "Step", "Work", "collectives", "cost", "observe", "run"]

__getattr__, __dir__ = when_used(__name__, collectives="observed", observe="observed", run="measured")
