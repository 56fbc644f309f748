"""The script of notebook 20, as a reader starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "notebooks" / "scripts" / "slow_job.py"


@pytest.mark.slow
def test_under_torchrun_it_names_the_slow_rank_as_it_runs_and_afterwards() -> None:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=3",
        str(SCRIPT),
        "forward",
    ]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    first, *_ = lines = run.stdout.splitlines()
    assert first.startswith("steps 1 to 8: rank 2 is late, because of its forward: ")
    assert any("its forward takes" in line for line in lines)
