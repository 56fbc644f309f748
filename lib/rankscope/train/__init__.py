"""DistributedDataParallel and its relatives: their effects on a training step, a package for each.

`ddp` and `zero` keep a replica on every rank, `fsdp` shards it, `data_parallel` drives several GPUs from one process,
`pipeline_parallel` splits the layers, `uneven` is about ranks that run out of batches, and `gradients` audits and
combines gradients. Each is imported when it is first used.
"""

from __future__ import annotations

from ..common.lazy import lazy
from ..ranks.server import PRELOAD

__all__ = ["data_parallel", "ddp", "fsdp", "gradients", "pipeline_parallel", "uneven", "zero"]

PRELOAD += [f"{__name__}.{name}.run" for name in ("ddp", "pipeline_parallel", "uneven", "zero")]
PRELOAD += [f"{__name__}.fsdp.running", f"{__name__}.gradients"]

__getattr__, __dir__ = lazy(__name__, {}, submodules=__all__)
