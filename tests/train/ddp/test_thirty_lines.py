"""The script that notebook 07 and the README show: DDP by hand, compared with torch's own, started by torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.ranks import RankError, launch

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[3] / "notebooks" / "scripts" / "ddp_in_30_lines.py"
TEXT = SCRIPT.read_text(encoding="utf-8")


@pytest.mark.oracle
def test_under_torchrun_its_gradients_are_those_of_ddp() -> None:
    """`make test` runs notebook 07, which starts it in the same way and prints the same lines."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(SCRIPT)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    same = "the gradients are those of torch's DDP"
    assert sorted(run.stdout.splitlines()) == [f"rank {rank}: {same}" for rank in range(2)]


# `launch` sets up the process group and ends it.
IN_A_RANK = TEXT.replace('dist.init_process_group("gloo")', "").replace("dist.destroy_process_group()", "")


def test_under_launch_it_raises_nothing() -> None:
    launch(exec, 3, (IN_A_RANK, {}))


@pytest.mark.parametrize(
    ("line", "broken"),
    [
        (" / dist.get_world_size()", ""),  # the sum in the place of the mean
        ("parameter.grad.copy_(mean.view_as(parameter))", "pass"),  # never copied back
        ("dist.broadcast(tensor, src=0)", "pass"),  # ranks start with weights of their own
    ],
    ids=["sum", "no copy", "no broadcast"],
)
def test_it_notices_a_wrong_gradient(line: str, broken: str) -> None:
    assert IN_A_RANK.count(line) == 1
    with pytest.raises(RankError, match="Tensor-likes are not close"):
        launch(exec, 3, (IN_A_RANK.replace(line, broken), {}))
