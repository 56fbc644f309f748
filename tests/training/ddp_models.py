"""Modules that DDP's buckets are compared on, each with an input: what people train, and what is out of the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {}


def model(make: Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]) -> Any:
    MODELS[make.__name__] = make
    return make


class Calls(nn.Module):
    """A module of named parts whose forward is a function of it and of the inputs."""

    def __init__(self, forward: Callable[..., torch.Tensor], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.call = forward

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.call(self, *inputs)


class Residual(nn.Module):
    def __init__(self, *layers: nn.Module, across: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.across = across or nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layers(x) + self.across(x))


def conv(into: int, out: int, size: int = 3, **style: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(into, out, size, padding=size // 2, bias=False, **style), nn.BatchNorm2d(out))


def basic(into: int, out: int) -> Residual:
    across = None if into == out else conv(into, out, 1)
    return Residual(conv(into, out), nn.ReLU(), conv(out, out), across=across)


def bottleneck(into: int, out: int) -> Residual:
    wide = 4 * out
    layers = conv(into, out, 1), nn.ReLU(), conv(out, out), nn.ReLU(), conv(out, wide, 1)
    return Residual(*layers, across=None if into == wide else conv(into, wide, 1))


def images(*layers: nn.Module, channels: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)
    return nn.Sequential(conv(3, 16), *layers, *head), (torch.randn(2, 3, 4, 4),)


def vectors(module: nn.Module, size: int = 16) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return module, (torch.randn(3, size),)


def tokens(module: nn.Module) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return module, (torch.randint(0, 50, (2, 7)),)


def sequences(module: nn.Module, size: int = 16) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return module, (torch.randn(2, 7, size),)


# ---- plain stacks


@model
def one_linear():
    return vectors(nn.Linear(16, 4))


@model
def one_scalar():
    return vectors(Calls(lambda self, x: x * self.scale, scale=nn.Parameter(torch.tensor(2.0))))


@model
def deep_mlp():
    return vectors(nn.Sequential(*[layer for _ in range(20) for layer in (nn.Linear(16, 16), nn.Tanh())]))


@model
def widening_mlp():
    return vectors(nn.Sequential(*[nn.Linear(16 * 2**n, 32 * 2**n) for n in range(5)]))


@model
def one_huge_parameter():
    small = [nn.Linear(16, 16) for _ in range(3)]
    return vectors(
        nn.Sequential(*small, nn.Linear(16, 480_000, bias=False), nn.AdaptiveAvgPool1d(16), nn.Linear(16, 4))
    )


@model
def prelu_and_norms():
    return vectors(nn.Sequential(nn.Linear(16, 16), nn.PReLU(16), nn.LayerNorm(16), nn.Linear(16, 16), nn.RMSNorm(16)))


@model
def bilinear():
    return vectors(Calls(lambda self, x: self.b(x, self.a(x)), a=nn.Linear(16, 8), b=nn.Bilinear(16, 8, 5)))


# ---- images


@model
def resnet_basic():
    return images(basic(16, 16), basic(16, 32), basic(32, 32), basic(32, 64), basic(64, 64), channels=64)


@model
def resnet_bottleneck():
    return images(bottleneck(16, 8), bottleneck(32, 8), bottleneck(32, 16), bottleneck(64, 16), channels=64)


@model
def resnet_as_large_as_resnet18():  # 48 MiB: more than one bucket of 25 MiB
    return images(*[basic(*pair) for pair in ((16, 64), (64, 128), (128, 256), (256, 512), (512, 512))], channels=512)


@model
def vgg():
    layers = conv(16, 32), nn.ReLU(), nn.MaxPool2d(2), conv(32, 32), nn.Flatten(), nn.Linear(512, 512), nn.ReLU()
    return nn.Sequential(conv(3, 16), *layers, nn.Linear(512, 10)), (torch.randn(2, 3, 8, 8),)


@model
def depthwise():
    blocks = [nn.Sequential(conv(16, 16, groups=16), nn.ReLU6(), conv(16, 16, 1)) for _ in range(4)]
    return images(*blocks, channels=16)


@model
def unet():
    def forward(self, x):
        high = torch.relu(self.down(x))
        low = torch.relu(self.bottom(nn.functional.max_pool2d(high, 2)))
        return self.out(torch.cat([self.up(low), high], dim=1))

    up, down = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(3, 8, 3, padding=1)
    bottom, out = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 1, 1)
    return Calls(forward, up=up, out=out, down=down, bottom=bottom), (torch.randn(2, 3, 8, 8),)


@model
def densenet():
    def forward(self, x):
        for layer in self.layers:
            x = torch.cat([x, torch.relu(layer(x))], dim=1)
        return self.head(x)

    return vectors(
        Calls(forward, layers=nn.ModuleList([nn.Linear(16 + 4 * n, 4) for n in range(6)]), head=nn.Linear(40, 3))
    )


# ---- transformers and recurrent networks


def encoder(layers: int, **style: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0, **style)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


@model
def encoder_1():
    return sequences(encoder(1))


@model
def encoder_6():
    return sequences(encoder(6, norm_first=True, activation="gelu"))


@model
def encoder_without_bias():
    return sequences(encoder(2, bias=False))


@model
def encoder_decoder():
    module = nn.Transformer(16, 4, 2, 2, 32, dropout=0.0, batch_first=True)
    module.encoder.enable_nested_tensor = False
    return module, (torch.randn(2, 7, 16), torch.randn(2, 5, 16))


def gpt(layers: int = 3, width: int = 16, words: int = 50) -> Calls:
    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for block in self.blocks:
            x = block(x, src_mask=mask)
        return self.head(self.norm(x))

    blocks = [
        nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0, norm_first=True)
        for _ in range(layers)
    ]
    parts = {"words": nn.Embedding(words, width), "places": nn.Embedding(16, width), "blocks": nn.ModuleList(blocks)}
    return Calls(forward, **parts, norm=nn.LayerNorm(width), head=nn.Linear(width, words, bias=False))


@model
def gpt_untied():
    return tokens(gpt())


@model
def gpt_tied():
    module = gpt()
    module.head.weight = module.words.weight
    return tokens(module)


@model
def gpt_of_30_mib():
    return tokens(gpt(2, 256, 12_000))


@model
def attention_with_its_own_projections():
    attention = nn.MultiheadAttention(16, 2, kdim=8, vdim=4, batch_first=True, add_bias_kv=True)
    return Calls(lambda self, q, k, v: self.attention(q, k, v)[0], attention=attention), (
        torch.randn(2, 3, 16), torch.randn(2, 5, 8), torch.randn(2, 5, 4))  # fmt: skip


@model
def lstm():
    return sequences(Calls(lambda self, x: self.rnn(x)[0], rnn=nn.LSTM(16, 8, 2, bidirectional=True)))


@model
def gru():
    return sequences(Calls(lambda self, x: self.out(self.rnn(x)[0]), out=nn.Linear(8, 4), rnn=nn.GRU(16, 8)))


@model
def mixture_of_experts():
    def forward(self, x):
        weights = torch.softmax(self.gate(x), dim=-1)
        return sum(weights[:, [n]] * expert(x) for n, expert in enumerate(self.experts))

    return vectors(Calls(forward, experts=nn.ModuleList([nn.Linear(16, 8) for _ in range(5)]), gate=nn.Linear(16, 5)))


# ---- out of the way


def layers_used(places: list[int], num_layers: int = 5) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Layers that are defined from 0 on, and used in the order of `places`."""

    def forward(self, x):
        for place in places:
            x = self.layers[place](x)
        return x

    return vectors(Calls(forward, layers=nn.ModuleList([nn.Linear(16, 16) for _ in range(num_layers)])))


@model
def used_in_another_order():
    return layers_used([2, 0, 4, 1, 3])


@model
def used_backwards():
    return layers_used([4, 3, 2, 1, 0])


@model
def one_layer_used_thrice():
    return vectors(
        Calls(lambda self, x: self.b(self.a(self.b(self.a(self.a(x))))), a=nn.Linear(16, 16), b=nn.Linear(16, 16))
    )


@model
def parameters_in_lists():
    def forward(self, x):
        return sum((x * p.sum() for p in self.many), start=x) * self.named["a"].sum()

    many = nn.ParameterList([torch.randn(n) for n in (3, 1000, 0, 5, 300, 0)])
    return vectors(Calls(forward, named=nn.ParameterDict({"a": nn.Parameter(torch.ones(50))}), many=many))


@model
def empty_parameters_alone():
    parts = {f"p{n}": nn.Parameter(torch.empty(0)) for n in range(3)}
    return vectors(Calls(lambda self, x: x.sum() + self.p0.sum() + self.p1.sum() + self.p2.sum(), **parts))


@model
def frozen_backbone():
    backbone = nn.Sequential(*[nn.Linear(16, 16) for _ in range(3)]).requires_grad_(False)
    return vectors(nn.Sequential(backbone, nn.Linear(16, 16), nn.Linear(16, 4)))


@model
def every_other_frozen():
    module = nn.Sequential(*[nn.Linear(16, 16) for _ in range(6)])
    for layer in module[::2]:
        layer.bias.requires_grad_(False)
    return vectors(module)


def cast(dtypes: list[torch.dtype]) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    def forward(self, x):
        for layer in self.layers:
            x = layer(x.to(layer.weight.dtype))
        return x

    return vectors(Calls(forward, layers=nn.ModuleList([nn.Linear(16, 16, dtype=dtype) for dtype in dtypes])))


@model
def bfloat16_with_float32_norms():
    return cast([torch.bfloat16, torch.float32] * 4)


@model
def three_dtypes():
    return cast([torch.float64, torch.bfloat16, torch.float32, torch.float32, torch.float64, torch.bfloat16])


@model
def half_then_double():
    return cast([torch.float16] * 3 + [torch.float64] * 3)


@model
def complex_parameters():
    def forward(self, x):
        spectrum = torch.fft.rfft(self.a(x)) * self.filter
        return self.b(torch.fft.irfft(spectrum))

    filters = nn.Parameter(torch.randn(9, dtype=torch.complex64))
    return vectors(Calls(forward, a=nn.Linear(16, 16), filter=filters, b=nn.Linear(16, 4)))


def bag(sparse: bool = True) -> nn.EmbeddingBag:
    return nn.EmbeddingBag(50, 8, mode="sum", sparse=sparse)


@model
def sparse_embedding():
    parts = {"words": nn.Embedding(50, 16, sparse=True), "a": nn.Linear(16, 16), "b": nn.Linear(16, 4)}
    return tokens(Calls(lambda self, ids: self.b(self.a(self.words(ids))), **parts))


@model
def sparse_and_dense_bags():
    def forward(self, ids):
        return self.top(torch.cat([one(ids) for one in self.bags] + [self.bottom(ids.float())], dim=1))

    bags = nn.ModuleList([bag(), bag(sparse=False), bag(), bag()])
    return tokens(Calls(forward, bottom=nn.Linear(7, 8), bags=bags, top=nn.Linear(40, 4)))


@model
def sparse_embedding_tied_to_a_layer_before_it():
    """The first module that holds the weight is a layer: DDP expects a dense gradient, and gets one."""
    words, layer = nn.Embedding(16, 16, sparse=True), nn.Linear(16, 16, bias=False)
    layer.weight = words.weight
    module = Calls(lambda self, ids: self.layer(self.words(ids % 16)), layer=layer, words=words)
    return tokens(module)


@model
def checkpointed():
    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(lambda y, layer=layer: torch.tanh(layer(y)), x, use_reentrant=False)
        return x

    return vectors(Calls(forward, layers=nn.ModuleList([nn.Linear(16, 16) for _ in range(5)])))


# ---- parameters that get no gradient: DDP must be told


UNUSED = {
    "first_unused": lambda: layers_used([1, 2, 3, 4, 5], 6),
    "last_unused": lambda: layers_used([0, 1, 2, 3], 6),
    "some_unused_others_out_of_order": lambda: layers_used([4, 1, 3], 6),
    "head_not_called": lambda: vectors(
        Calls(lambda self, x: self.a(x), a=nn.Linear(16, 16), aux=nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 2)))
    ),
}
