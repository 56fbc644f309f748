"""The explorers of `train`, for the battery in `tests/explorers/test_every_explorer.py`."""

from __future__ import annotations

from tests.explorers.cases import Case

CASES = {
    "ddp": Case("ddp", start={"cap": "8 MiB"}),
    "ddp on a model of NCCL": Case("ddp", start={"cap": "8 MiB", "network": "nccl:a100"}),
    "fsdp": Case("fsdp", start={"num_blocks": 2}),
    "zero": Case("zero", start={"stage": 3}),
    "pipeline_parallel": Case("pipeline_parallel", start={"schedule": "Interleaved1F1B", "message_ms": 4}),
}
