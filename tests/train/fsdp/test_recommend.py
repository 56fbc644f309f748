"""The recommended wrapping: the fastest that fits, the least memory among equals, and a word when nothing fits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from rankscope.train import ddp, fsdp, zero

from ...small import Tied


def module(depth: int = 8) -> nn.Module:
    return nn.Sequential(*(nn.Linear(1000, 1000, bias=False) for _ in range(depth)))


def slow(num_bytes: Any) -> Any:
    return num_bytes / 1e9


def loss(model: nn.Module, rank: int, number: int) -> torch.Tensor:
    output: torch.Tensor = model(torch.zeros(400, dtype=torch.int64))
    return output.float().square().mean()


def step_of(net: nn.Module, backward_s: float = 0.05) -> fsdp.ModuleStep:
    """The step of a Sequential of layers, each of which takes a share in proportion to its parameters."""
    layers = []
    for name, layer in net.named_children():
        parameters = []
        for attribute, tensor in layer.named_parameters():
            itemsize = tensor.element_size()
            parameters.append(fsdp.ShardedParameter(f"{name}.{attribute}", tuple(tensor.shape), itemsize))
        layers.append(fsdp.ShardedLayer(name, parameters))
    return fsdp.ModuleStep.of_layers(layers).scaled(backward_s / 2, backward_s)


def advice(**options: Any) -> Any:
    options = {"num_ranks": 8, "memory_bytes": 40e6, "cost": slow, **options}
    net = options.pop("module", module())
    if "loss" not in options:
        options["step"] = options.get("step") or step_of(net, options.pop("backward_s", 0.05))
    return fsdp.recommend(net, **options)


def test_the_chosen_one_fits_and_none_that_fits_is_faster() -> None:
    for limit in (30e6, 40e6, 60e6, 100e6, 1e9):
        found = advice(memory_bytes=limit)
        chosen = found.chosen
        if chosen is None:
            assert all(candidate.peak_bytes > limit for candidate in found.candidates if candidate.in_torch)
            continue
        assert chosen.peak_bytes <= limit
        fastest_s = min(candidate.step_s for candidate in found.fitting if candidate.in_torch)
        assert fastest_s <= chosen.step_s <= 1.01 * fastest_s
        assert all(
            candidate.peak_bytes >= chosen.peak_bytes
            for candidate in found.fitting
            if candidate.in_torch and candidate.step_s <= fastest_s
        )


def test_every_candidate_is_what_predict_says() -> None:
    net = module()
    step = step_of(net)
    found = fsdp.recommend(net, num_ranks=8, memory_bytes=1e9, cost=slow, step=step)
    sharded = [candidate for candidate in found.candidates if candidate.wrap is not None]
    assert len(sharded) == 2 * 2 + 2 * 2 + 2
    for candidate in sharded:
        predicted = fsdp.predict(
            step,
            slow,
            num_ranks=8,
            wrap=candidate.wrap or (),
            reshard_after_forward=candidate.reshard_after_forward,
            prefetch=candidate.prefetch,
        )
        assert candidate.step_s == pytest.approx(predicted.step_s)
        assert candidate.peak_bytes == predicted.memory.peak_bytes


def test_ddp_and_zero_are_those_of_their_packages() -> None:
    found = advice(module=module(4), backward_s=0.04)
    by_name = {candidate.name: candidate for candidate in found.candidates}
    local = ddp.LocalStep.modelled([parameter.nbytes for parameter in module(4).parameters()], 0.04)
    assert by_name["DDP"].step_s == pytest.approx(ddp.simulate(local, slow).end_s)
    assert by_name["DDP"].peak_bytes == zero.memory(module(4), 8, "ddp").total_bytes
    assert by_name["ZeRO, stage 2"].peak_bytes == zero.memory(module(4), 8, 2, "fp32").total_bytes
    assert by_name["ZeroRedundancyOptimizer"].step_s > by_name["DDP"].step_s


def test_ddp_updates_all_parameters_on_each_rank() -> None:
    net = module(4)
    step = step_of(net)
    without = {one.name: one.step_s for one in advice(module=net, step=step).candidates}
    updating = step.scaled(0.025, 0.05, optimizer_s=0.001)  # of the shard of one of 8 ranks
    with_update = {one.name: one.step_s for one in advice(module=net, step=updating).candidates}
    for name, step_s in without.items():
        update_s = 0.008 if name == "DDP" else 0.001
        assert with_update[name] == pytest.approx(step_s + update_s), name


def test_an_optimizer_measured_on_other_ranks_updates_the_shards_that_are_predicted() -> None:
    net = module(4)
    step = step_of(net)
    on_two = replace(step, optimizer_s=0.004, optimizer_shards=2)  # 0.008 for all parameters
    on_eight = replace(step, optimizer_s=0.001)
    found, expected = [advice(module=net, step=one) for one in (on_two, on_eight)]
    for measured, known in zip(found.candidates, expected.candidates, strict=True):
        assert measured.name == known.name
        assert measured.step_s == pytest.approx(known.step_s), known.name
    # with two replicas there are 4 shards, each with a quarter of the parameters
    hsdp = fsdp.predict(on_two, fsdp.FSDPCosts(slow, slow, slow), num_ranks=8, num_replicas=2)
    assert hsdp.timeline.select(kind="optimizer").busy_s == pytest.approx(0.002)


def test_a_module_in_bfloat16_has_its_own_width_in_all_ways() -> None:
    net = module(4).to(torch.bfloat16)
    by_name = {candidate.name: candidate for candidate in advice(module=net).candidates}
    assert by_name["DDP"].peak_bytes == zero.memory(net, 8, "ddp", "bf16").total_bytes
    assert by_name["ZeRO, stage 2"].peak_bytes == zero.memory(net, 8, 2, "bf16").total_bytes


def test_wrappings_of_ones_own() -> None:
    found = advice(wraps={"pairs": ["0", "2", "4", "6"]})
    names = {candidate.name for candidate in found.candidates}
    assert {"pairs, reshard", "pairs, keep", "DDP"} <= names


def test_activations_are_in_the_memory_with_a_loss() -> None:
    def loss(model: nn.Module, rank: int, number: int) -> torch.Tensor:
        output: torch.Tensor = model(torch.ones(500, 1000))
        return output.mean()

    without = {candidate.name: candidate.peak_bytes for candidate in advice().candidates}
    with_them = {candidate.name: candidate.peak_bytes for candidate in advice(loss=loss).candidates}
    assert all(with_them[name] > without[name] for name in without)
    assert with_them["DDP"] - without["DDP"] >= 8 * 500 * 1000 * 4


def test_a_module_with_shared_parameters_can_be_wrapped() -> None:
    assert advice(module=Tied(), memory_bytes=1e9, loss=loss).chosen is not None


class Body(nn.Module):
    """The usual form of a language model's body: an embedding, blocks in a list, and a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, width)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(4)])
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        output: torch.Tensor = self.norm(hidden)
        return output


class WithHead(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.model = Body(width)
        self.head = nn.Linear(width, 100)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.model(tokens))
        return logits


def test_blocks_are_found_inside_a_body() -> None:
    by_name = {candidate.name: candidate for candidate in advice(module=WithHead(), loss=loss).candidates}
    blocks = tuple([f"model.layers.{number}.0" for number in range(4)])
    assert by_name["each layer, reshard"].wrap == ("model.embedding", *blocks, "model.norm", "head")


def test_casting_parameters_saves_memory_of_fsdp_alone() -> None:
    net = WithHead()
    plain = {candidate.name: candidate for candidate in advice(module=net, loss=loss).candidates}
    cast = {candidate.name: candidate for candidate in advice(module=net, loss=loss, param_dtype="bfloat16").candidates}
    for name in ("each layer, reshard", "the module alone, keep"):
        assert cast[name].peak_bytes < plain[name].peak_bytes
    assert cast["DDP"].peak_bytes >= plain["DDP"].peak_bytes  # activations in float32, and the loss twice as large


def test_what_torch_does_not_offer_is_never_chosen() -> None:
    for limit in (30e6, 40e6, 60e6, 100e6, 1e9):
        for backward_s in (0.0, 0.05, 1.0):
            chosen = advice(memory_bytes=limit, backward_s=backward_s).chosen
            assert chosen is None or chosen.in_torch
    assert [candidate.name for candidate in advice().candidates if not candidate.in_torch] == ["ZeRO, stage 2"]
