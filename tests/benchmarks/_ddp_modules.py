"""The modules whose steps are predicted and measured: an MLP, a conv net, a transformer; 45 to 104 MiB of gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rankscope.train.ddp.run import Loss

WIDTH, DEPTH = 2048, 6
VOCABULARY, MODEL, LAYERS = 8192, 512, 6


def mlp() -> nn.Module:
    return nn.Sequential(*(layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))


def mlp_loss(module: nn.Module, rank: int, number: int) -> Tensor:
    return mean_square(module(torch.ones(64, WIDTH)))


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
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
    widths += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
    blocks = [Block(*one) for one in widths]
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)
    )


def conv_loss(module: nn.Module, rank: int, number: int) -> Tensor:
    return mean_square(module(torch.ones(4, 3, 32, 32)))


class Transformer(nn.Module):
    """Words in, words out."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(MODEL, 8, 4 * MODEL, dropout=0.0, batch_first=True)
        self.words = nn.Embedding(VOCABULARY, MODEL)
        self.layers = nn.TransformerEncoder(layer, LAYERS)
        self.head = nn.Linear(MODEL, VOCABULARY)

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = self.head(self.layers(self.words(words)))
        return out


def transformer_loss(module: nn.Module, rank: int, number: int) -> Tensor:
    return mean_square(module(torch.arange(128).reshape(4, 32) * 7))


def mean_square(out: Tensor) -> Tensor:
    return out.square().mean()


MODULES: dict[str, tuple[Callable[[], nn.Module], Loss]] = {
    "MLP": (mlp, mlp_loss),
    "conv net": (conv, conv_loss),
    "transformer": (Transformer, transformer_loss),
}
