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


class Tied(nn.Module):
    """A matrix used twice, a frozen bias, a buffer, and a parameter shorter than there are ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.middle = nn.Embedding(101, 33), nn.Linear(33, 33)
        self.head = nn.Linear(33, 101, bias=False)
        self.head.weight = self.embed.weight
        self.middle.bias.requires_grad_(False)
        self.shift = nn.Parameter(torch.zeros(2))
        self.register_buffer("table", torch.zeros(10, dtype=torch.int64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.middle(self.embed(tokens)))
        return logits + self.shift.sum()
