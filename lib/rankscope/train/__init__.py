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

PRELOAD += [f"{__name__}.{name}.run" for name in ("pipeline_parallel", "uneven", "zero")]
PRELOAD += [f"{__name__}.ddp.measured", f"{__name__}.fsdp.measured", f"{__name__}.gradients"]


@naming_extra()
def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
