"""The entries of `train` in the common tables; see `rankscope.common.extensions`."""

from __future__ import annotations

from ..common.extensions import Extension

EXTENSION = Extension(
    explorers=("rankscope.train.explorers",),
    figures={
        "bucket_caps": "rankscope.train.figures.lines",
        "buckets": "rankscope.train.figures.ddp",
        "fsdp_step": "rankscope.train.figures.fsdp",
        "zero_memory": "rankscope.train.figures.lines",
    },
    fixtures=("rankscope.train.fixtures",),
)
