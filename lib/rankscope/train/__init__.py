"""What DistributedDataParallel and its relatives do to a training step, a subpackage for each.

`ddp` and `zero` keep a replica on every rank, `data_parallel` drives several GPUs from one process, `pipeline_parallel`
splits the layers, `uneven` is about ranks that run out of batches, and `gradients` audits and combines gradients.
"""

from __future__ import annotations

from ..common.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__, {}, submodules=["data_parallel", "ddp", "gradients", "pipeline_parallel", "uneven", "zero"]
)
