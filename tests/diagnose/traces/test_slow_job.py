"""The script of notebook 11 and the recording of the guide, as a reader starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.diagnose import diagnose, read_traces

ROOT = Path(__file__).parents[3]
_BEFORE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
loader = torch.utils.data.DataLoader(torch.ones(19, 8))
train = lambda batch: model(batch).sum().backward()
"""


@pytest.mark.slow
def test_what_the_guide_records_can_be_diagnosed(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "slow_or_stuck.md").read_text(encoding="utf-8")
    code = guide.split("```")[1].removeprefix("python")
    assert "at least 19 steps" in guide
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _BEFORE + code]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr
    (trace,) = read_traces(tmp_path / "traces")
    assert trace.rank == 0
    assert len(trace.timeline.select(kind="step")) == 12
    assert len(diagnose([trace]).steps) == 11
