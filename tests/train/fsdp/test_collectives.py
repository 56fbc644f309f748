"""The predicted collectives: worked out by hand for small modules, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankscope.train import fsdp
from rankscope.train.fsdp.calls import sharded_parameters

from ...small import Tied
from .models import Detached, Passing, Residual, Shared, Siamese, Tokens, Unused


class Rows(nn.Sequential):
    """Layers of 3 columns, each called with the sum of what the one before it returns."""

    def forward(self, batch: Tensor) -> Tensor:
        for layer in self:
            batch = layer(batch).sum(-1, keepdim=True).expand(-1, 3)
        return batch


def rows(*sizes: int) -> nn.Sequential:
    """Layers without bias of 3 columns, so that n rows on two ranks take 12 · (n rounded up to even) bytes."""
    return Rows(*(nn.Linear(3, size, bias=False) for size in sizes))


def collectives(module: nn.Module, **options: Any) -> list[fsdp.CollectiveCall]:
    """The collectives of a step on a batch that the module takes."""
    matrices = [parameter for parameter in module.parameters() if parameter.ndim == 2]
    inputs = torch.ones(2, matrices[0].shape[-1])
    if isinstance(module, Tied | Tokens):
        inputs = torch.zeros(3, dtype=torch.int64)
    return fsdp.collectives(module, lambda model, rank, number: model(inputs).sum(), **options)


def gathers(calls: list[fsdp.CollectiveCall]) -> list[int]:
    return [call.num_bytes for call in calls if call.kind == "allgather"]


def reduces(calls: list[fsdp.CollectiveCall]) -> list[int]:
    return [call.num_bytes for call in calls if call.kind == "reduce_scatter"]


def test_dimension_0_is_padded_and_each_group_has_one_buffer() -> None:
    calls = collectives(rows(3, 5), num_ranks=2, reshard_after_forward=False)
    assert calls == [("allgather", 12 * (4 + 6)), ("reduce_scatter", 12 * (4 + 6))]
    calls = collectives(rows(3, 5), num_ranks=4, reshard_after_forward=False)
    assert calls == [("allgather", 12 * (4 + 8)), ("reduce_scatter", 12 * (4 + 8))]


def test_the_roots_default_is_to_keep_its_parameters() -> None:
    module = rows(2, 4, 6)
    every = collectives(module, num_ranks=2, wrap=["0", "1"])
    assert gathers(every) == [72, 24, 48, 72, 48, 24]
    default = collectives(module, num_ranks=2, wrap=["0", "1"], reshard_after_forward=None)
    assert gathers(default) == [72, 24, 48, 48, 24]
    never = collectives(module, num_ranks=2, wrap=["0", "1"], reshard_after_forward=False)
    assert gathers(never) == [72, 24, 48]
    # the first layer's input needs no gradient, so autograd does not end there, and the root's callback reduces it
    assert reduces(every) == reduces(default) == reduces(never) == [48, 72, 24]


def test_prefetching_changes_the_order_alone() -> None:
    module = rows(2, 4, 6, 8)
    wrap = ["0", "1", "2"]
    orders = []
    for prefetch in range(3):
        calls = collectives(module, num_ranks=2, wrap=wrap, prefetch=prefetch, reshard_after_forward=None)
        orders.append(gathers(calls)[:4])
        assert sorted(calls) == sorted(collectives(module, num_ranks=2, wrap=wrap, reshard_after_forward=None))
    assert orders == [[96, 24, 48, 72], [96, 24, 48, 72], [96, 24, 48, 72]]
    backward = [collectives(module, num_ranks=2, wrap=wrap, prefetch=depth)[4:] for depth in range(3)]
    kinds = [[call.kind for call in calls][:5] for calls in backward]
    assert kinds[0] == ["allgather", "allgather", "allgather", "reduce_scatter", "allgather"]
    assert kinds[2] == ["allgather", "allgather", "allgather", "allgather", "reduce_scatter"]


def test_mixed_precision_changes_bytes() -> None:
    module = rows(4)
    half = collectives(module, num_ranks=2, reshard_after_forward=None, param_dtype="bfloat16")
    assert half == [("allgather", 24), ("reduce_scatter", 24)]
    full = collectives(
        module, num_ranks=2, reshard_after_forward=None, param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    assert full == [("allgather", 24), ("reduce_scatter", 48)]
    module.register_parameter("codes", nn.Parameter(torch.zeros(8, dtype=torch.int8), requires_grad=False))
    codes = collectives(module, num_ranks=2, reshard_after_forward=None, param_dtype="bfloat16")
    assert codes == [("allgather", 24 + 8), ("reduce_scatter", 24)]


def test_frozen_parameters_are_gathered_and_not_reduced() -> None:
    module = rows(2, 4, 6)
    module[1].requires_grad_(False)
    calls = collectives(module, num_ranks=2, wrap=["0", "1"], reshard_after_forward=None)
    assert gathers(calls) == [72, 24, 48, 48, 24]
    assert reduces(calls) == [72, 24]
    # a frozen first layer is not needed in backward, but the layer after it gathers it ahead all the same
    first = rows(2, 4, 6)
    first[0].requires_grad_(False)
    calls = collectives(first, num_ranks=2, wrap=["0", "1"], reshard_after_forward=None)
    assert gathers(calls) == [72, 24, 48, 48, 24]
    assert reduces(calls) == [72, 48]


def test_hsdp_reduces_each_shard_over_the_replicas() -> None:
    calls = collectives(rows(4), num_ranks=4, num_replicas=2, reshard_after_forward=None)
    assert calls == [("allgather", 48), ("reduce_scatter", 48), ("allreduce", 24)]


def test_parameters_shared_within_a_group_count_once() -> None:
    module = Tied()
    (gather, *_) = collectives(module, num_ranks=2, wrap=["middle"], reshard_after_forward=None)
    assert gather == ("allgather", 4 * (102 * 33 + 2))


def test_a_star_stands_for_one_part_of_a_name() -> None:
    module = Tokens([Residual(12), Passing(Residual(12))], 12)
    by_star = collectives(module, num_ranks=2, wrap=["blocks.*"])
    assert by_star == collectives(module, num_ranks=2, wrap=["blocks.0", "blocks.1"])


def kinds_of(module: nn.Module, wrap: list[str]) -> list[str]:
    return [call.kind for call in collectives(module, num_ranks=2, wrap=wrap)]


def test_a_branch_that_leads_to_no_loss_is_gathered_and_not_reduced() -> None:
    for module, without_gradient in ((Unused(4), ["unused", "gate"]), (Detached(4), ["target", "teacher"])):
        for name in without_gradient:  # the only reduce-scatter is the root's
            kinds = kinds_of(module, [name])
            assert kinds.count("reduce_scatter") == 1
            assert kinds.count("allgather") >= 3


def test_a_module_that_is_called_twice_is_gathered_for_each_call() -> None:
    module = Siamese(nn.Linear(4, 4), 4)
    calls = collectives(module, num_ranks=2, wrap=["encoder"])
    # root and encoder twice in forward; in backward each once, as the encoder's inputs need no gradient, so that it
    # keeps its parameters until the end
    assert gathers(calls) == [80, 80, 80, 80, 80]
    assert reduces(calls) == [80, 80]


def test_a_module_with_two_names_is_one_module() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    module.append(module[0])
    weight, bias = sharded_parameters(module)
    assert (weight.names, bias.names) == (("0.weight", "2.weight"), ("0.bias", "2.bias"))
    assert kinds_of(module, ["0"]) == kinds_of(Passing(module), ["inner.0"])


@pytest.mark.parametrize("wrap", [["first"], ["second"], ["first", "second"]])
def test_a_module_inside_two_groups_is_refused_unless_it_is_its_own(wrap: list[str]) -> None:
    """torch refuses it with an error about overlapping meshes, because its parameters would be sharded twice."""
    with pytest.raises(ValueError, match=r"first.0.weight.*second.0.weight"):
        collectives(Shared(4), num_ranks=2, wrap=wrap)
    assert collectives(Shared(4), num_ranks=2, wrap=[*wrap, "first.0"])


def test_a_module_on_the_meta_device_shows_its_activations() -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss(model: nn.Module, rank: int, number: int) -> Tensor:
        device = next(model.parameters()).device
        return model(torch.ones(4, 8, device=device)).sum()

    steps = [fsdp.observed_step(made, loss) for made in (module, copy.deepcopy(module).to("meta"))]
    kept_bytes = [sum(event.activation_bytes for event in step.events if event.kind == "forward") for step in steps]
    assert kept_bytes[0] == kept_bytes[1] > 0


def test_layers_by_hand_are_as_the_module() -> None:
    layers = []
    for place, size in enumerate((2, 4, 6)):
        weight = fsdp.ShardedParameter(f"{place}.weight", (size, 3))
        layers.append(fsdp.ShardedLayer(str(place), [weight]))
    predicted = fsdp.predict(fsdp.ModuleStep.of_layers(layers), lambda num_bytes: 0.0, num_ranks=2, wrap=["0", "1"])
    assert list(predicted.collectives) == collectives(rows(2, 4, 6), num_ranks=2, wrap=["0", "1"])


class Blocks(nn.Module):
    """Two blocks of two layers each, between layers of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Sequential(*linears(2)) for _ in range(2)))
        self.first, self.last = linears(2)

    def forward(self, batch: Tensor) -> Tensor:
        output: Tensor = self.last(self.blocks(self.first(batch)))
        return output


def linears(number: int) -> list[nn.Linear]:
    return [nn.Linear(3, 3, bias=False) for _ in range(number)]


@pytest.mark.parametrize("wrap", [["blocks.*"], ["blocks", "last"], ["blocks.0.1", "first"]])
def test_nested_layers_by_hand_are_as_the_module(wrap: list[str]) -> None:
    names = ["first", "blocks.0.0", "blocks.0.1", "blocks.1.0", "blocks.1.1", "last"]
    layers = [fsdp.ShardedLayer(name, [fsdp.ShardedParameter(f"{name}.weight", (3, 3))]) for name in names]
    step = fsdp.ModuleStep.of_layers(layers)
    predicted = fsdp.predict(step, lambda num_bytes: 0.0, num_ranks=2, wrap=wrap)
    assert list(predicted.collectives) == collectives(Blocks(), num_ranks=2, wrap=wrap)
