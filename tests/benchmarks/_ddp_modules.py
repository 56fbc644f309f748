"""The modules whose steps are predicted and measured: an MLP, a conv net, a transformer; 45 to 104 MiB of gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rankscope.train.ddp.observed import Loss

WIDTH, DEPTH = 2048, 6
VOCABULARY, MODEL, LAYERS = 8192, 512, 6


def mlp() -> nn.Module:
    return nn.Sequential(*(layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))


class Block(nn.Module):
    """Two convolutions and a way round them, as in He et al., "Deep residual learning" (2016), figure 2."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        same = channels == out and stride == 1
        self.around = nn.Identity() if same else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.body(images) + self.around(images))


def conv() -> nn.Module:
    """ResNet-18's widths, on small images."""
    blocks = [Block(64, 64, 1), Block(64, 64, 1)]
    for width in (64, 128, 256):
        blocks += [Block(width, 2 * width, 2), Block(2 * width, 2 * width, 1)]
    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)
    return nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1), *blocks, *ends)


def transformer() -> nn.Module:
    """Words in, words out."""
    layer = nn.TransformerEncoderLayer(MODEL, 8, 4 * MODEL, dropout=0.0, batch_first=True)
    layers = nn.TransformerEncoder(layer, LAYERS)
    return nn.Sequential(nn.Embedding(VOCABULARY, MODEL), layers, nn.Linear(MODEL, VOCABULARY))


def loss_of(batch: Tensor) -> Loss:
    def mean_square(module: nn.Module) -> Tensor:
        out: Tensor = module(batch)
        return out.square().mean()

    return mean_square


MODULES: dict[str, tuple[Callable[[], nn.Module], Loss]] = {
    "MLP": (mlp, loss_of(torch.ones(64, WIDTH))),
    "conv net": (conv, loss_of(torch.ones(4, 3, 32, 32))),
    "transformer": (transformer, loss_of(torch.arange(128).reshape(4, 32) * 7)),
}
# to which contention is fitted
_LAYERS = [layer for _ in range(10) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
CALIBRATION = nn.Sequential(*_LAYERS), loss_of(torch.ones(128, 1024))
