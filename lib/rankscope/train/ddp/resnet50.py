"""The step of ResNet-50 on a rank of a given speed, from the multiplications of each of its layers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .bucketing import Gradient
from .local import LocalStep

_FLOAT32_BYTES = 4


class _Layer(NamedTuple):
    """The sizes of a layer's parameters, and the multiplications in its forward pass of one sample."""

    sizes: tuple[int, ...]
    num_macs: int


def resnet50_step(num_samples: int, flops_per_s: float) -> LocalStep:
    """Return the step of a rank with this speed on `num_samples` images of 224 × 224, with float32 gradients.

    A multiplication and its addition are two operations. The backward pass has twice as many as the forward pass, layer
    by layer from the last to the first, and a layer's gradients are ready when it has gone through that layer.
    Operations that only move bytes (norms, activations) take no time, and there is no optimizer.

    >>> step = resnet50_step(num_samples=32, flops_per_s=20e12)
    >>> len(step.gradients), step.num_bytes // 4, round(step.backward_s * 1e3, 1)
    (161, 25557032, 26.2)
    """
    layers = list(_layers())
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


def _layers() -> Iterator[_Layer]:
    """Yield the layers in forward order (He and others, 2016), with strides where torchvision has them."""
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
    num_classes = 1000
    yield _Layer((num_in * num_classes, num_classes), num_in * num_classes)


def _conv_norm(num_in: int, num_out: int, *, kernel: int, out_side: int) -> Iterator[_Layer]:
    """Yield a convolution of `kernel` × `kernel`, whose output is `out_side` × `out_side` pixels, and its norm."""
    num_weights = num_out * num_in * kernel**2
    yield _Layer((num_weights,), num_weights * out_side**2)
    yield _Layer((num_out, num_out), 0)
