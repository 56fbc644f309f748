"""The explorers of `train`, for the battery in `tests/explorers/test_every_explorer.py`."""

from __future__ import annotations

from torch import nn

from ..explorers.cases import Case

MODULE = nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 10))
CASES = {
    "ddp": Case("ddp", start={"cap": "8 MiB"}),
    "ddp by hand": Case("ddp", start={"cap": "8 MiB", "network": "latency and bandwidth"}),
    "fsdp": Case("fsdp", start={"num_blocks": 2}),
    "zero": Case("zero", start={"stage": 3}),
    "zero of a module": Case("zero", (MODULE,), {"stage": 3, "model": "1.5 B"}),
    "uneven": Case("uneven", start={"handling": "join"}),
    "pipeline_parallel": Case("pipeline_parallel", start={"schedule": "Interleaved1F1B", "message_ms": 4}),
    "data_parallel": Case("data_parallel"),
}
