"""DistributedDataParallel and its relatives: their effects on a training step, a package for each.

`ddp` and `zero` keep a replica on every rank, `fsdp` shards it, `data_parallel` drives several GPUs from one process,
`pipeline_parallel` splits the layers, `uneven` is about ranks that run out of batches, and `gradients` audits and
combines gradients. Each is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..common.extras import naming_extra
from ..ranks.server import PRELOAD

__all__ = ["data_parallel", "ddp", "fsdp", "gradients", "pipeline_parallel", "uneven", "zero"]

_IN_RANKS = ("pipeline_parallel.run", "uneven.run", "zero.run", "ddp.measured", "fsdp.measured", "gradients.audit")
PRELOAD += [f"{__name__}.{name}" for name in _IN_RANKS]


@naming_extra()
def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
