"""The published peak of a run on GPUs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint

from rankscope.train import fsdp

TOKENS = 2048  # of a sample


class Block(nn.Module):
    """A layer of Llama, without positions."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, values: Tensor) -> Any:
        return checkpoint(self.computed, values, use_reentrant=False)

    def computed(self, values: Tensor) -> Tensor:
        heads = self.qkv(self.norms[0](values)).unflatten(-1, (3, -1, 128)).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(*heads.unbind(), is_causal=True)
        values = values + self.out(attended.transpose(1, 2).flatten(2))
        normed = self.norms[1](values)
        outputs: Tensor = values + self.down(silu(self.gate(normed)) * self.up(normed))
        return outputs


class Llama(nn.Module):
    def __init__(self, num_layers: int, width: int, num_words: int, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(num_words, width)
        self.blocks = nn.ModuleList([Block(width, hidden) for _ in range(num_layers)])
        self.head = nn.Linear(width, num_words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        values: Tensor = self.embed(tokens)
        for block in self.blocks:
            values = block(values)
        logits: Tensor = self.head(values)
        return logits


def loss_of_samples(num_samples: int) -> Any:
    def loss(model: nn.Module) -> Tensor:
        tokens = torch.zeros(num_samples, TOKENS, dtype=torch.int64)
        return cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())

    return loss


@pytest.mark.oracle
def test_llama_7b_has_the_published_peak() -> None:
    """pytorch/torchtitan, pull request 135: 8 H100, 8 samples, recomputing: 23.92 % of 95.04 GiB."""
    with torch.device("meta"):
        model = Llama(32, 4096, 32_000, hidden=11008)
    step = fsdp.observe(
        model,
        loss_of_samples(8),
        num_ranks=8,
        wrap=["blocks.*"],
        optimizer=torch.optim.Adam,
        reshard_after_forward=None,
        param_dtype=torch.bfloat16,
        reduce_dtype=torch.float32,
    )
    assert 0.85 < step.peak_bytes / (0.2392 * 95.04 * 2**30) <= 1
