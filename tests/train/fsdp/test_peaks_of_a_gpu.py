"""Peaks that an H200 measured under `fully_shard`, against what `observe` says without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankscope.train import fsdp
from tests.extents import first_in_test
from tests.tools.measure_gpu_fsdp import FEATURES, NUM_ROWS, Net

MEASURED = Path(__file__).parents[3] / "notebooks" / "profiles" / "h200_fsdp_peaks.json"
ROWS = json.loads(MEASURED.read_text(encoding="utf-8"))["rows"]
# In bfloat16, a kernel of the GPU's backward pass takes a buffer of 132 MiB for a moment, which no CPU does.
LOW = {None: 0.9998, "bfloat16": 0.94}


def mean_square(module: nn.Module) -> Tensor:
    output: Tensor = module(torch.empty(NUM_ROWS, FEATURES))
    return output.square().mean()


@pytest.mark.slow
@pytest.mark.parametrize("row", first_in_test(2, [row for row in ROWS if row["num_ranks"] == 8]), ids=str)
def test_the_peak_is_that_of_the_gpu(row: dict[str, Any]) -> None:
    with torch.device("meta"):
        module = Net()
    dtype = row["param_dtype"]
    step = fsdp.observe(
        module,
        mean_square,
        num_ranks=row["num_ranks"],
        wrap=["blocks.*"],
        optimizer=torch.optim.AdamW if row["adamw"] else None,
        reshard_after_forward=row["reshard_after_forward"],
        param_dtype=dtype and getattr(torch, dtype),
    )
    assert LOW[dtype] <= step.peak_bytes / row["peak_bytes"] <= 1.0001
