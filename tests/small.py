"""A small model, batches for it and its loss, the same at each call."""

from __future__ import annotations

import torch
from torch import nn

CROSS = nn.functional.cross_entropy


def mlp(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).to(dtype)


def batch(size: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(size, 6, dtype=dtype, generator=generator), torch.randint(0, 4, (size,), generator=generator)
