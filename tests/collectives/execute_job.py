"""What ranks of the tests of `execute` do. It imports no pytest, so that processes can import it fast."""

from __future__ import annotations

import importlib

import torch
import torch.distributed as dist
from torch import Tensor

from rankscope.collectives import build, execute, process_group, run_local

from .cases import NAMES


def numbers(num_ranks: int, shape: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    """Real numbers, whose sums depend on the order in which they are added."""
    return list(torch.randn(num_ranks, *shape, generator=torch.Generator().manual_seed(seed)))


def check_with_the_default_group() -> None:
    """Raise AssertionError unless this process, one of four ranks, gets the results of `run_local`.

    It runs an algorithm of each collective, and one on each half of the ranks: one message at a time, and then as
    batches, as on NCCL.
    """
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 2]), dist.new_group([3, 1])]
    for is_in_batches in (False, True):
        if is_in_batches:
            module = importlib.import_module("rankscope.collectives.execute")
            process_group.takes_batches = module.takes_batches = lambda backend: True  # type: ignore[attr-defined]
        for collective, name in dict(NAMES).items():
            schedule = build(collective, name, 4)
            tensors = numbers(4, (1000,), seed=1)
            expected = run_local(schedule, tensors)[rank]
            result = execute(schedule, tensors[rank].clone())
            assert (result is None) == (expected is None), schedule
            assert result is None or torch.equal(result, expected), schedule
        total = execute(build("allreduce", "ring", 2), torch.tensor([rank, 1]), pairs[rank % 2])
        assert total is not None
        assert total.tolist() == [[2, 2], [4, 2]][rank % 2]
