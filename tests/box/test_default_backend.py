"""Which backend measures a box where none is named: NCCL where each rank has a GPU of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rankscope.box import measure
from rankscope.box.measuring import run
from rankscope.box.measuring.rank import survey
from rankscope.cli import main


@pytest.mark.parametrize(
    ("num_gpus", "asked", "launcher", "backend"),
    [
        (0, {}, {}, "gloo"),
        (1, {}, {}, "gloo"),
        (2, {}, {}, "nccl"),
        (8, {}, {}, "nccl"),
        (8, {"num_ranks": 2}, {}, "nccl"),
        (8, {"num_ranks": 9}, {}, "gloo"),  # NCCL has no two ranks on a GPU
        (8, {}, {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, "nccl"),
        (4, {}, {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, "gloo"),
    ],
)
def test_nccl_is_taken_where_each_rank_has_a_gpu_of_its_own(
    num_gpus: int, asked: dict[str, Any], launcher: dict[str, str], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    for name, value in ({"RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"} | launcher if launcher else {}).items():
        monkeypatch.setenv(name, value)
    assert run.default_backend(**asked) == backend
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert run.default_backend(**asked) == "gloo"


def test_a_box_with_gpus_is_measured_with_nccl_and_a_rank_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def launched(fn: Any, num_ranks: int, args: Any, backend: str, limit_s: float) -> None:
        asked.append((num_ranks, fn, backend))
        raise ValueError("no GPU is here")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(run, "launch", launched)
    with pytest.raises(ValueError, match="no GPU is here"):
        measure(tmp_path / "box.json")
    assert main(["profile", "-o", str(tmp_path / "box.json"), "--num-ranks", "2"]) == 2
    assert asked == [(8, survey, "nccl"), (2, survey, "nccl")]


@pytest.mark.parametrize(("size", "rank"), [("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"), ("PMI_SIZE", "PMI_RANK")])
def test_under_mpirun_with_an_address_the_ranks_are_its_processes(
    size: str, rank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {size: "8", rank: "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert run.num_ranks_of(None, "gloo") == 8
    assert run.writes()
    monkeypatch.setenv(rank, "3")
    assert not run.writes()
