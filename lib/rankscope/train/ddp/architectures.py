"""Tensors of well-known models, and the multiplications of each layer, from which a training step is modelled."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from ...common.checks import one_of
from .buckets import ParameterSpec
from .step import LocalStep

Shape = tuple[int, ...]
_FLOAT32_BYTES = 4


class Layer(NamedTuple):
    """A layer's parameters by name, and the multiplications in its forward pass of one sample; either may be none.

    Its gradients are ready once the backward pass of the layer has ended.
    """

    name: str
    shapes: Mapping[str, Shape]
    num_macs: int


def small_cnn() -> Iterator[Layer]:
    """Yield two convolutions and two linear layers for 28 × 28 images: PyTorch's MNIST example."""
    yield _conv("conv1", 1, 32, kernel=3, out_side=26, bias=True)
    yield _conv("conv2", 32, 64, kernel=3, out_side=24, bias=True)
    yield _linear("fc1", 64 * 12 * 12, 128)  # after pooling by 2 of the 24 × 24 pixels
    yield _linear("fc2", 128, 10)


def resnet50() -> Iterator[Layer]:
    """Yield ResNet-50 for 224 × 224 images (He and others, 2016), with strides where torchvision has them."""
    yield from _conv_norm("conv1", 3, 64, kernel=7, out_side=112)
    num_in = 64  # channels that the next block gets
    side = 56  # pixels of the images that it gets: pooling halves the 112 of conv1
    stages = [(64, 3), (128, 4), (256, 6), (512, 3)]  # the width and the number of blocks of each
    for stage, (width, num_blocks) in enumerate(stages, 1):
        for block in range(num_blocks):
            name = f"layer{stage}.{block}"
            yield from _conv_norm(f"{name}.conv1", num_in, width, kernel=1, out_side=side)
            if stage > 1 and block == 0:  # the second convolution has a stride of 2
                side = side // 2
            yield from _conv_norm(f"{name}.conv2", width, width, kernel=3, out_side=side)
            yield from _conv_norm(f"{name}.conv3", width, 4 * width, kernel=1, out_side=side)
            if block == 0:  # its input and output differ in shape, so a convolution adapts the skip connection
                yield from _conv_norm(f"{name}.downsample", num_in, 4 * width, kernel=1, out_side=side)
            num_in = 4 * width
    yield _linear("fc", num_in, 1000)  # the scores of ImageNet's classes


def gpt2(num_tokens: int = 1024) -> Iterator[Layer]:
    """Yield the smallest GPT-2 (Radford and others, 2019): 12 blocks of width 768; its head is the token embedding.

    `num_tokens` is the length of a sequence.
    """
    width = 768
    vocabulary = 50257
    most_positions = 1024
    yield Layer("embedding", {"wte": (vocabulary, width), "wpe": (most_positions, width)}, 0)
    for block in range(12):
        yield Layer(f"h.{block}.ln_1", _norm(width), 0)
        yield _linear(f"h.{block}.attn.c_attn", width, 3 * width, times=num_tokens)
        yield _attention(f"h.{block}.attn", width, num_tokens)
        yield _linear(f"h.{block}.attn.c_proj", width, width, times=num_tokens)
        yield Layer(f"h.{block}.ln_2", _norm(width), 0)
        yield _linear(f"h.{block}.mlp.c_fc", width, 4 * width, times=num_tokens)
        yield _linear(f"h.{block}.mlp.c_proj", 4 * width, width, times=num_tokens)
    yield Layer("ln_f", _norm(width), 0)
    yield Layer("head", {}, vocabulary * width * num_tokens)  # its parameters are those of the embedding


def llama_7b(num_tokens: int = 2048) -> Iterator[Layer]:
    """Yield LLaMA-7B (Touvron and others, 2023): 32 blocks of width 4096, gated layers of width 11008, no biases.

    `num_tokens` is the length of a sequence.
    """
    width = 4096
    gated_width = 11008
    vocabulary = 32000
    yield Layer("embedding", {"weight": (vocabulary, width)}, 0)
    for block in range(32):
        for name in ("q_proj", "k_proj", "v_proj"):
            yield _linear(f"{block}.{name}", width, width, bias=False, times=num_tokens)
        yield _attention(f"{block}.attention", width, num_tokens)
        yield _linear(f"{block}.o_proj", width, width, bias=False, times=num_tokens)
        for name in ("gate_proj", "up_proj"):
            yield _linear(f"{block}.{name}", width, gated_width, bias=False, times=num_tokens)
        yield _linear(f"{block}.down_proj", gated_width, width, bias=False, times=num_tokens)
        for name in ("input_norm", "post_norm"):  # transformers' LlamaDecoderLayer defines them last
            yield Layer(f"{block}.{name}", {"weight": (width,)}, 0)
    yield Layer("norm", {"weight": (width,)}, 0)
    yield _linear("head", width, vocabulary, bias=False, times=num_tokens)


# The layers of each model that `architecture_step` knows, in the order in which a module defines them. That is the
# order of the forward pass, except for LLaMA's norms, which take no time here.
ARCHITECTURES: Mapping[str, Callable[[], Iterator[Layer]]] = {
    "small CNN": small_cnn,
    "ResNet-50": resnet50,
    "GPT-2": gpt2,
    "LLaMA-7B": llama_7b,
}


def architecture_step(name: str, num_samples: int, flops_per_s: float) -> LocalStep:
    """Return the step of a rank with this speed, on `num_samples` images or sequences, with float32 gradients.

    A multiplication and its addition are two operations. The backward pass has twice as many as the forward pass, layer
    by layer from the last to the first. Operations that only move bytes (norms, activations) take no time, and there is
    no optimizer.

    Raises ValueError for an unknown name.

    >>> step = architecture_step("ResNet-50", num_samples=32, flops_per_s=20e12)
    >>> len(step.parameters), step.num_bytes // 4, round(step.backward_s * 1e3, 1)
    (161, 25557032, 26.2)
    """
    layers_of_model = ARCHITECTURES[one_of("name", name, tuple(ARCHITECTURES))]
    layers = list(layers_of_model())
    forward_s = [2 * layer.num_macs * num_samples / flops_per_s for layer in layers]
    # The backward pass begins with the last layer, so a layer's ends after those of all later layers and its own.
    backward_s = 2 * np.array(forward_s)
    backward_ends_s = np.cumsum(backward_s[::-1])[::-1]
    specs = []
    ready_s = []
    for layer, end_s in zip(layers, backward_ends_s.tolist(), strict=True):
        for tensor, shape in layer.shapes.items():
            specs.append(ParameterSpec(f"{layer.name}.{tensor}", _FLOAT32_BYTES * math.prod(shape)))
            ready_s.append(end_s)
    return LocalStep(tuple(specs), np.array(ready_s), sum(forward_s), float(backward_ends_s[0]))


def _conv(name: str, num_in: int, num_out: int, *, kernel: int, out_side: int, bias: bool = False) -> Layer:
    """A convolution with kernels of `kernel` × `kernel`, whose output is `out_side` × `out_side` pixels."""
    shapes: dict[str, Shape] = {"weight": (num_out, num_in, kernel, kernel)}
    if bias:
        shapes["bias"] = (num_out,)
    return Layer(name, shapes, num_out * num_in * kernel**2 * out_side**2)


def _conv_norm(name: str, num_in: int, num_out: int, *, kernel: int, out_side: int) -> Iterator[Layer]:
    yield _conv(name, num_in, num_out, kernel=kernel, out_side=out_side)
    yield Layer(f"{name}.bn", _norm(num_out), 0)


def _linear(name: str, num_in: int, num_out: int, bias: bool = True, times: int = 1) -> Layer:
    """A linear layer that is applied so many times per sample: once to each of its tokens."""
    shapes: dict[str, Shape] = {"weight": (num_out, num_in)}
    if bias:
        shapes["bias"] = (num_out,)
    return Layer(name, shapes, num_in * num_out * times)


def _norm(width: int) -> dict[str, Shape]:
    return {"weight": (width,), "bias": (width,)}


def _attention(name: str, width: int, num_tokens: int) -> Layer:
    """Products of every token with every other, twice: for the scores, and for the sum weighted by them."""
    return Layer(name, {}, 2 * width * num_tokens**2)
