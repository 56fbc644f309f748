"""The modelled models have the tensors and the multiplications that are published of them, or that torch counts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from rankscope.train.ddp.architectures import ARCHITECTURES, Layer, architecture_step, gpt2, resnet50, small_cnn


@pytest.mark.parametrize(
    ("name", "tensors", "parameters"),
    [
        ("small CNN", 8, 1_199_882),
        ("ResNet-50", 161, 25_557_032),  # torchvision's
        ("GPT-2", 148, 124_439_808),  # transformers' GPT2Model
        ("LLaMA-7B", 291, 6_738_415_616),  # the paper's 6.7 B
    ],
)
def test_tensors_and_parameters_are_those_that_are_published(name: str, tensors: int, parameters: int) -> None:
    step = architecture_step(name, 1, 1e12)
    assert (len(step.parameters), step.num_bytes) == (tensors, 4 * parameters)
    assert len({spec.name for spec in step.parameters}) == tensors


def test_a_resnet_multiplies_as_often_as_torchvision_says() -> None:
    assert sum(layer.num_macs for layer in resnet50()) == pytest.approx(4.089e9, rel=1e-3)


def times_a_weight_is_used(layer: Layer) -> float:
    """Multiplications for each element of its weight: the positions of a convolution, the tokens of a linear layer."""
    return layer.num_macs / math.prod(layer.shapes["weight"])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_only_products_of_matrices_take_time(name: str) -> None:
    """Norms and embeddings multiply no matrices; each weight of a convolution is used at each position, and so on."""
    layers = list(ARCHITECTURES[name]())
    vectors = [layer for layer in layers if layer.shapes and all(len(shape) == 1 for shape in layer.shapes.values())]
    embeddings = [layer for layer in layers if layer.name == "embedding"]
    assert {layer.num_macs for layer in [*vectors, *embeddings]} <= {0}
    matrices = [layer for layer in layers if layer.shapes and layer not in [*vectors, *embeddings]]
    uses = {times_a_weight_is_used(layer) for layer in matrices}
    positions = {"small CNN": {26**2, 24**2, 1}, "ResNet-50": {112**2, 56**2, 28**2, 14**2, 7**2, 1}}
    assert uses == positions.get(name, {1024} if name == "GPT-2" else {2048})
    for layer in layers:  # of the others: attention, and the head that shares the embedding
        if not layer.shapes:
            tokens = 1024 if name == "GPT-2" else 2048
            width = 768 if name == "GPT-2" else 4096
            assert layer.num_macs in (2 * width * tokens**2, 50257 * width * tokens)


def test_strides_of_a_resnet_are_where_torchvision_has_them() -> None:
    """The second convolution of a stage halves the picture, and so the first one still sees the large picture."""
    sides = {
        layer.name: math.isqrt(int(times_a_weight_is_used(layer)))
        for layer in resnet50()
        if "conv" in layer.name and "bn" not in layer.name
    }
    assert [sides[f"layer1.0.conv{number}"] for number in (1, 2, 3)] == [56, 56, 56]
    assert [sides[f"layer2.0.conv{number}"] for number in (1, 2, 3)] == [56, 28, 28]
    assert [sides[f"layer4.1.conv{number}"] for number in (1, 2, 3)] == [7, 7, 7]


def test_a_model_has_the_samples_and_the_speed_that_are_named() -> None:
    step = architecture_step("small CNN", num_samples=3, flops_per_s=1e6)
    macs = 288 * 26**2 + 18432 * 24**2 + 9216 * 128 + 1280
    assert step.forward_s == pytest.approx(2 * macs * 3 / 1e6)
    assert step.backward_s == pytest.approx(4 * macs * 3 / 1e6)
    assert step.ready_s.tolist()[-2:] == pytest.approx([4 * 1280 * 3 / 1e6] * 2)
    assert step.optimizer_s == step.unpack_s == 0


def test_the_small_cnn_is_what_torch_makes_of_it() -> None:
    layers = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))
    shapes = [shape for layer in small_cnn() for shape in layer.shapes.values()]
    assert shapes == [tuple(parameter.shape) for parameter in model.parameters()]
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 1, 28, 28))
    assert 2 * sum(layer.num_macs for layer in small_cnn()) == counter.get_total_flops()


def test_a_block_of_gpt2_multiplies_as_often_as_torch_counts() -> None:
    width, num_tokens = 768, 64
    block = nn.TransformerEncoderLayer(width, 12, 4 * width, batch_first=True)
    with FlopCounterMode(display=False) as counter:
        block(torch.zeros(1, num_tokens, width))
    own = [layer for layer in gpt2(num_tokens) if layer.name.startswith("h.0.")]
    assert 2 * sum(layer.num_macs for layer in own) == counter.get_total_flops()
    assert sum(math.prod(s) for layer in own for s in layer.shapes.values()) == sum(
        p.numel() for p in block.parameters()
    )


def test_a_tied_embedding_is_ready_last_though_the_head_comes_first() -> None:
    step = architecture_step("GPT-2", 1, 1e12)
    names = [spec.name for spec in step.parameters]
    assert step.ready_s[names.index("embedding.wte")] == step.backward_s
    head_s = 4 * 50257 * 768 * 1024 / 1e12
    assert step.ready_s[names.index("ln_f.bias")] == pytest.approx(head_s)
