"""Which backend and how many ranks measure a box where none are named."""

from __future__ import annotations

import pytest
import torch

from rankscope.box.measuring import run

OF_TORCHRUN = {"RANK": "0", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
OF_MPIRUN = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("num_gpus", "asked", "launcher", "backend", "num_ranks"),
    [
        (0, None, {}, "gloo", 4),
        (1, None, {}, "gloo", 4),
        (8, None, {}, "nccl", 8),
        (8, 2, {}, "nccl", 2),
        (8, 9, {}, "gloo", 9),  # NCCL has no two ranks on a GPU
        (8, None, OF_TORCHRUN, "nccl", None),
        (4, None, OF_TORCHRUN, "gloo", None),
        (0, None, OF_MPIRUN, "gloo", None),
    ],
)
def test_nccl_measures_where_each_rank_has_a_gpu_of_its_own(
    num_gpus: int,
    asked: int | None,
    launcher: dict[str, str],
    backend: str,
    num_ranks: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    assert run.backend_and_ranks(None, asked) == (backend, num_ranks)
    assert run.writes() is (launcher is not OF_MPIRUN)
    if not num_gpus:
        with pytest.raises(ValueError, match="needs a GPU"):
            run.backend_and_ranks("nccl", asked)
