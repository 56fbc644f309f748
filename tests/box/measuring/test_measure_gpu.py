"""The script that measures all that one GPU can tell, on a GPU that was made up; and what it needs to run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from rankscope.box import Profile, Protocol
from rankscope.cli.tables import groups
from tests.tools import measure_gpu

from .gpu_made import put_into_ranks

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
QUICK = Protocol(iterations=4)


def test_virtual_ranks_with_a_wrong_sum_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.collectives.run_local", lambda schedule, tensors: tensors)
    with pytest.raises(RuntimeError, match="allreduce by ring of 2 virtual ranks gave a wrong result"):
        measure_gpu.virtual_points("cpu", [4096], 3)


@pytest.fixture
def dry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The script as it would run, on a made GPU and small; where it writes."""
    small: dict[str, Any] = {
        "DEVICE": "cpu",
        "NCCL": {"backend": "gloo", "num_ranks": 2},
        "PROTOCOL": replace(QUICK, sizes=[2**12], algorithms=["native"]),
        "VIRTUAL_SIZES": [2**12],
        "STEPS": 2,
    }
    for name, value in small.items():
        monkeypatch.setattr(measure_gpu, name, value)
    monkeypatch.setattr(measure_gpu.steps_table, "__defaults__", (4, 8))
    put_into_ranks(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("sys.argv", ["measure_gpu.py", "-o", str(tmp_path / "gpu.json")])
    return tmp_path / "gpu.json"


@pytest.mark.oracle
def test_the_script_prints_every_table_and_writes_every_point(
    dry: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert measure_gpu.main() == 0
    said = capsys.readouterr()
    assert "failed" not in said.err
    profile = Profile.load(dry)
    assert f"{len(profile.points)} points in gpu.json, " in said.out
    for word in ("h2d pinned", "8 ranks, in process"):
        assert word in said.out
    assert said.out.count(", traced in steps_") == 2
    assert {path.name for path in dry.parent.glob("steps_*")} == {
        "steps_as_they_come.json.gz",
        "steps_prefetched.json.gz",
    }
    assert "allreduce by ring, 8 ranks, in process (cpu)\n  4 KiB " in said.out
    others = [point for point in profile.points if "executor" in point.options]
    assert [point.options["num_ranks"] for point in others] == [2, 2, 4, 4, 8, 8]
    assert groups(Profile(profile.provenance, {}, tuple(others))) == {}  # none of the profile's own collectives
    assert len(profile.select("transfer")) == 6

    def broken(*_: Any) -> None:
        raise AttributeError("module 'torch' has no attribute 'gone'")

    monkeypatch.setattr(measure_gpu, "virtual_points", broken)
    monkeypatch.setattr(measure_gpu, "steps_table", broken)
    monkeypatch.setattr(measure_gpu, "ENOUGH_S", 1e9)
    assert measure_gpu.main() == 0
    said = capsys.readouterr()
    assert "virtual ranks: failed: AttributeError: module 'torch' has no attribute 'gone'" in said.err
    assert f"{len(profile.points) - len(others)} points in gpu.json, " in said.out


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.tools import measure_gpu

measure_gpu.STEPS = 2
points = measure_gpu.virtual_points("cpu", [4096], 3)
lines = list(measure_gpu.steps_table("cpu", Path(sys.argv[2]), 4, 8))
print(len(points), len(lines))
"""


@pytest.mark.oracle
def test_the_script_needs_nothing_that_a_bare_machine_lacks(tmp_path: Path) -> None:
    lacking = ("pytest", "hypothesis", "ipywidgets", "IPython", "sklearn", "nbformat")
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules |= dict.fromkeys({lacking})\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", SCRIPT, str(ROOT), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "6 2\n"), done.stderr
