"""Modules that DDP's buckets are compared on, each with an input: what people train, and what is unusual."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

Case = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Calls(nn.Module):
    """A module of named parts whose forward is a function of it and of the inputs."""

    def __init__(self, forward: Callable[..., torch.Tensor], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.call = forward

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.call(self, *inputs)


def vectors(module: nn.Module) -> Case:
    return module, (torch.randn(3, 16),)


def tokens(module: nn.Module) -> Case:
    return module, (torch.randint(0, 50, (2, 7)),)


def linears(*dtypes: torch.dtype | None) -> list[nn.Linear]:
    return [nn.Linear(16, 16, dtype=dtype) for dtype in dtypes]


# ---- what people train


def gpt(layers: int, width: int, words: int, tied: bool = False) -> Case:
    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for block in self.blocks:
            x = block(x, src_mask=mask)
        return self.head(self.norm(x))

    style = {"batch_first": True, "dropout": 0.0, "norm_first": True}
    blocks = nn.ModuleList([nn.TransformerEncoderLayer(width, 4, 4 * width, **style) for _ in range(layers)])
    parts = {"words": nn.Embedding(words, width), "places": nn.Embedding(16, width), "blocks": blocks}
    module = Calls(forward, **parts, norm=nn.LayerNorm(width), head=nn.Linear(width, words, bias=False))
    if tied:
        module.head.weight = module.words.weight
    return tokens(module)


# ---- unusual ones


def layers_used(places: list[int], num_layers: int = 5) -> Case:
    """Layers that are defined from 0 up, and used in the order of `places`."""

    def forward(self, x):
        for place in places:
            x = self.layers[place](x)
        return x

    return vectors(Calls(forward, layers=nn.ModuleList(linears(*[None] * num_layers))))


def one_layer_used_thrice() -> Case:
    first, second = linears(None, None)
    return vectors(Calls(lambda self, x: self.b(self.a(self.b(self.a(self.a(x))))), a=first, b=second))


def cast(*dtypes: torch.dtype) -> Case:
    def forward(self, x):
        for layer in self.layers:
            x = layer(x.to(layer.weight.dtype))
        return x

    return vectors(Calls(forward, layers=nn.ModuleList(linears(*dtypes))))


def three_dtypes() -> Case:
    return cast(torch.float64, torch.bfloat16, torch.float32, torch.float32, torch.float64, torch.bfloat16)


def sparse_and_dense_bags() -> Case:
    def forward(self, ids):
        return self.top(torch.cat([bag(ids) for bag in self.bags] + [self.bottom(ids.float())], dim=1))

    bags = [nn.EmbeddingBag(50, 8, mode="sum", sparse=sparse) for sparse in (True, False, True, True)]
    return tokens(Calls(forward, bottom=nn.Linear(7, 8), bags=nn.ModuleList(bags), top=nn.Linear(40, 4)))


def sparse_embedding_tied_to_a_layer_before_it() -> Case:
    """The first module that holds the weight is a layer: DDP expects a dense gradient, and gets one."""
    words, layer = nn.Embedding(16, 16, sparse=True), nn.Linear(16, 16, bias=False)
    layer.weight = words.weight
    return tokens(Calls(lambda self, ids: self.layer(self.words(ids % 16)), layer=layer, words=words))


def checkpointed() -> Case:
    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(lambda y, layer=layer: torch.tanh(layer(y)), x, use_reentrant=False)
        return x

    return vectors(Calls(forward, layers=nn.ModuleList(linears(*[None] * 5))))


MODELS: dict[str, Callable[[], Case]] = {
    "deep_mlp": lambda: vectors(nn.Sequential(*linears(*[None] * 20))),
    "gpt_tied": lambda: gpt(3, 16, 50, tied=True),
    "gpt_of_30_mib": lambda: gpt(2, 256, 12_000),  # more than one bucket of 25 MiB
    "used_in_another_order": lambda: layers_used([2, 0, 4, 1, 3]),
    "one_layer_used_thrice": one_layer_used_thrice,
    "three_dtypes": three_dtypes,
    "sparse_and_dense_bags": sparse_and_dense_bags,
    "sparse_embedding_tied_to_a_layer_before_it": sparse_embedding_tied_to_a_layer_before_it,
    "checkpointed": checkpointed,
}

# parameters that get no gradient: DDP must be told
UNUSED: dict[str, Callable[[], Case]] = {
    "first_unused": lambda: layers_used([1, 2, 3, 4, 5], 6),
    "some_unused_others_out_of_order": lambda: layers_used([4, 1, 3], 6),
}
