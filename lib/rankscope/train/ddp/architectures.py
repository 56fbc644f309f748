"""Gradients of well-known models, and the multiplications of each layer, from which a training step is modelled."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...common.checks import one_of
from .gradients import Gradient
from .local import LocalStep

_FLOAT32_BYTES = 4


class Layer(NamedTuple):
    """The sizes of a layer's parameters, and the multiplications in its forward pass of one sample; either may be none.

    Its gradients are ready once the backward pass of the layer has ended.
    """

    sizes: tuple[int, ...]
    num_macs: int


def resnet50() -> Iterator[Layer]:
    """Yield ResNet-50 for 224 × 224 images (He and others, 2016), with strides where torchvision has them."""
    yield from _conv_norm(3, 64, kernel=7, out_side=112)
    num_in = 64  # channels that the next block gets
    side = 56  # pixels of the images that it gets: pooling halves the 112 of the first layer
    for width, num_blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(num_blocks):
            yield from _conv_norm(num_in, width, kernel=1, out_side=side)
            if width > 64 and block == 0:  # the second convolution has a stride of 2
                side = side // 2
            yield from _conv_norm(width, width, kernel=3, out_side=side)
            yield from _conv_norm(width, 4 * width, kernel=1, out_side=side)
            if block == 0:  # its input and output differ in shape, so a convolution adapts the skip connection
                yield from _conv_norm(num_in, 4 * width, kernel=1, out_side=side)
            num_in = 4 * width
    yield _linear(num_in, 1000)  # the scores of ImageNet's classes


def gpt2() -> Iterator[Layer]:
    """Yield the smallest GPT-2 (Radford and others, 2019): 12 blocks of width 768; its head is the token embedding."""
    width = 768
    vocabulary = 50257
    num_tokens = 1024  # of a sequence
    norm = Layer((width, width), 0)
    yield Layer((vocabulary * width, num_tokens * width), 0)  # of tokens and of positions
    for _ in range(12):
        yield norm
        yield _linear(width, 3 * width, num_tokens)
        yield Layer((), 2 * width * num_tokens**2)  # products of tokens with each other: scores, and weighted sums
        yield _linear(width, width, num_tokens)
        yield norm
        yield _linear(width, 4 * width, num_tokens)
        yield _linear(4 * width, width, num_tokens)
    yield norm
    yield Layer((), vocabulary * width * num_tokens)  # the head, whose parameters are those of the embedding


ARCHITECTURES = {"ResNet-50": resnet50, "GPT-2": gpt2}  # their layers, in the order of the forward pass


def architecture_step(name: str, num_samples: int, flops_per_s: float) -> LocalStep:
    """Return the step of a rank with this speed, on `num_samples` images or sequences, with float32 gradients.

    A multiplication and its addition are two operations. The backward pass has twice as many as the forward pass, layer
    by layer from the last to the first. Operations that only move bytes (norms, activations) take no time, and there is
    no optimizer. Sequences have 1,024 tokens.

    Raises ValueError for an unknown name.

    >>> step = architecture_step("ResNet-50", num_samples=32, flops_per_s=20e12)
    >>> len(step.gradients), step.num_bytes // 4, round(step.backward_s * 1e3, 1)
    (161, 25557032, 26.2)
    """
    layers = list(ARCHITECTURES[one_of("name", name, tuple(ARCHITECTURES))]())
    forward_s = [2 * layer.num_macs * num_samples / flops_per_s for layer in layers]
    # The backward pass begins with the last layer, so a layer's ends after those of all later layers and its own.
    backward_ends_s = np.cumsum(2 * np.array(forward_s)[::-1])[::-1].tolist()
    gradients = []
    ready_s = []
    for number, (layer, end_s) in enumerate(zip(layers, backward_ends_s, strict=True)):
        for size in layer.sizes:
            gradients.append(Gradient(f"layer {number}", _FLOAT32_BYTES * size))
            ready_s.append(end_s)
    return LocalStep(tuple(gradients), np.array(ready_s), math.fsum(forward_s), backward_ends_s[0])


def _conv_norm(num_in: int, num_out: int, *, kernel: int, out_side: int) -> Iterator[Layer]:
    """Yield a convolution of `kernel` × `kernel`, whose output is `out_side` × `out_side` pixels, and its norm."""
    num_weights = num_out * num_in * kernel**2
    yield Layer((num_weights,), num_weights * out_side**2)
    yield Layer((num_out, num_out), 0)


def _linear(num_in: int, num_out: int, times: int = 1) -> Layer:
    """A linear layer that is applied so many times per sample: once to each of its tokens."""
    return Layer((num_in * num_out, num_out), num_in * num_out * times)
