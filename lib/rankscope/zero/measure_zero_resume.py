"""A ZeroRedundancyOptimizer's state brought together, stored in one file, and resumed on another number of ranks."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..ranks import launch
from ..values.checks import whole
from ..values.storage import write_atomically
from .measure_zero import zero_redundancy_class

if TYPE_CHECKING:
    from torch.distributed.optim import ZeroRedundancyOptimizer

_BATCH, _MOST_RANKS = 48, 16  # a batch that 1, 2, 3, 4, 6, … ranks share evenly


def save_training(path: str | os.PathLike[str], model: nn.Module, optimizer: ZeroRedundancyOptimizer) -> None:
    """Collect the optimizer's state on rank 0, which writes it and the model's to `path`, whole or not at all.

    Every rank calls it, and goes on when the file is there. It is ``torch.save``'s format: one file, which can take the
    old one's place in one step, and which ``weights_only`` loads without running what a pickle says.
    (torch.distributed.checkpoint writes a folder of files, one of which it unpickles.)
    """
    optimizer.consolidate_state_dict(to=0)
    if dist.get_rank() == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        write_atomically(path, lambda file: torch.save(state, file))
    dist.barrier()


def load_training(path: str | os.PathLike[str], model: nn.Module, optimizer: ZeroRedundancyOptimizer) -> None:
    """Take on what `save_training` has stored: each rank keeps its share of the state, for whatever number of ranks."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def resume_difference(num_ranks: int, resumed_ranks: int, num_steps: int = 4, timeout_s: float = 120.0) -> float:
    """Train a small model on `num_ranks`; save it half way, go on with `resumed_ranks`; return the largest difference.

    It is that of any parameter after `num_steps` from a run that nothing interrupted, in float64: 0.0 where the ranks
    are as many, and rounding where gradients are added up in other groups. The batch is always the same, of 48 samples,
    each rank taking its stride of it.

    ValueError where the ranks do not share the batch evenly, and for an odd number of steps.

    >>> resume_difference(2, 2)
    0.0
    """
    for name, value in (("num_ranks", num_ranks), ("resumed_ranks", resumed_ranks)):
        if _BATCH % whole(name, value, 1, _MOST_RANKS):
            raise ValueError(f"{name} must divide a batch of {_BATCH}, got {value}")
    if whole("num_steps", num_steps, 2) % 2:
        raise ValueError(f"num_steps must be even, to be saved half way, got {num_steps}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "training.pt"
        straight = launch(_train, num_ranks, (num_steps,), timeout_s=timeout_s)[0]
        launch(_train, num_ranks, (num_steps // 2, None, path), timeout_s=timeout_s)
        resumed = launch(_train, resumed_ranks, (num_steps // 2, path), timeout_s=timeout_s)
    return max(float((one - straight).abs().max()) for one in resumed)


def _train(num_steps: int, start: Path | None = None, end: Path | None = None) -> Tensor:
    """Train from `start`, or from the beginning, save to `end`, and return all parameters in one tensor."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    samples, targets = torch.randn(_BATCH, 8, dtype=torch.float64), torch.randn(_BATCH, 3, dtype=torch.float64)
    parallel = DistributedDataParallel(model)
    optimizer = zero_redundancy_class()(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    if start is not None:
        load_training(start, model, optimizer)
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(parallel(samples[rank::num_ranks]), targets[rank::num_ranks])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    if end is not None:
        save_training(end, model, optimizer)
    return torch.cat([p.detach().flatten() for p in model.parameters()])
