"""ZeRO's bytes per rank: the paper's and published figures, torch's own optimizers, and live tensors on real ranks."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from rankscope.cluster import Cluster, Link
from rankscope.collectives import build, simulate
from rankscope.train import zero
from rankscope.train.zero import TERMS, WAYS, Recipe
from rankscope.train.zero.model import OPTIMIZERS
from rankscope.train.zero.run import LiveMemory, zero_redundancy_class
from tests.extents import first_in_test
from tests.small import Tied

# ---- published figures


def test_the_papers_four_figures() -> None:
    totals = [zero.memory(7_500_000_000, 64, stage).total_bytes for stage in range(4)]
    assert [f"{total / 1e9:.3g}" for total in totals] == ["120", "31.4", "16.6", "1.88"]  # the paper rounds to 1.9


def test_a_recipe_of_ones_own_widths_is_as_measured() -> None:
    """nanotron's issue 261: 1.04e9 parameters in bfloat16, gradients in float32, 19,909 MiB on 1 and 6,517 on 24 ranks.

    Its optimizer has a float32 copy of the parameters, and bfloat16 gradients of those.
    """
    recipe = Recipe(parameter=2, gradient=4, master=4 + 2, state=4)
    mib = [zero.memory(1.04e9, num_ranks, 1, recipe).total_bytes / 2**20 for num_ranks in (1, 24)]
    assert mib == pytest.approx([19909, 6517], rel=0.005)


def test_parts_of_a_byte_are_rounded_up() -> None:
    four_bits = Recipe(parameter=0.5, gradient=2, master=0, state=0)
    terms = zero.memory(1001, 2, 3, four_bits, largest_layer=3).terms
    assert (terms["parameters"], terms["gradients"], terms["largest_layer"]) == (251, 1001, 8)


def test_terms_of_every_recipe_and_optimizer() -> None:
    """By the definitions, worked out here a second time for one number of parameters that all ranks share evenly."""
    total, ranks = 4096 * 64, 8
    states = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
    widths = {"fp32": (4, 4, 0, 4), "mixed": (2, 2, 4, 4), "bf16": (2, 2, 0, 2)}
    assert set(states) == set(OPTIMIZERS)
    assert set(widths) == set(zero.RECIPES)
    for (name, count), (recipe, (wide, grad, master, wide_state)), stage in product(
        states.items(), widths.items(), range(4)
    ):
        terms = zero.memory(total, ranks, stage, recipe, name, largest_layer=64, activation_bytes=5e3).terms
        state = total * wide_state * count
        assert list(terms) == list(TERMS)
        assert terms["optimizer_states"] == state / (ranks if stage >= 1 else 1)
        assert terms["master_copy"] == total * master / (ranks if stage >= 1 else 1)
        assert terms["gradients"] == total * grad / (ranks if stage >= 2 else 1)
        assert terms["parameters"] == total * wide / (ranks if stage >= 3 else 1)
        assert terms["largest_layer"] == 64 * (grad * (stage >= 2) + wide * (stage == 3))
        assert terms["activations"] == 5000


# ---- modules


def test_a_modules_sizes_count_shared_once_and_frozen_without_gradient() -> None:
    trained = 101 * 33 + 33 * 33 + 2
    memory = zero.memory(Tied(), 1, 0, "fp32")
    assert memory.num_parameters == trained + 33
    num_tensors = 3  # trained ones
    assert dict(memory.terms) == dict.fromkeys(TERMS, 0) | {
        "parameters": 4 * (trained + 33),
        "gradients": 4 * trained,
        "optimizer_states": 8 * trained + 4 * num_tensors,
        "buffers": 80,
    }


def test_what_is_no_float_keeps_its_width() -> None:
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False).to(torch.bfloat16))
    module.register_parameter("codes", nn.Parameter(torch.zeros(10, dtype=torch.int8), requires_grad=False))
    assert zero.memory(module, 1, 0, "fp32", "sgd").terms["parameters"] == 32 * 4 + 10


def test_a_way_keeps_the_widths_of_the_modules_tensors() -> None:
    half = nn.Linear(64, 32).to(torch.bfloat16)
    assert zero.memory(half, 2, "ddp") == zero.memory(half, 2, "ddp", "bf16")
    assert zero.traffic(half, 2, "ddp") == zero.traffic(half, 2, "ddp", "bf16")
    assert zero.memory(half, 2, 0) == zero.memory(half, 2, 0, "mixed")


def test_the_states_are_those_of_torchs_optimizers() -> None:
    for dtype, recipe in ((torch.float32, "fp32"), (torch.bfloat16, "bf16")):
        module = Tied().to(dtype)
        trained = [p for p in module.parameters() if p.requires_grad]
        kinds = {
            "sgd": torch.optim.SGD(trained, lr=0.1),
            "momentum": torch.optim.SGD(trained, lr=0.1, momentum=0.9),
            "adam": torch.optim.Adam(trained),
        }
        for name, rule in kinds.items():
            for parameter in trained:
                parameter.grad = torch.ones_like(parameter)
            rule.step()
            states = [s for state in rule.state.values() for s in state.values() if isinstance(s, torch.Tensor)]
            expected = sum(s.numel() * s.element_size() for s in states)
            assert zero.memory(module, 1, 0, recipe, name).terms["optimizer_states"] == expected


def torchs_partition(sizes: list[int], num_ranks: int) -> list[list[int]]:
    """The partition of tensors of these sizes by ZeroRedundancyOptimizer itself, without any ranks."""
    parameters = [nn.Parameter(torch.empty(size, device="meta")) for size in sizes]
    place = {id(p): number for number, p in enumerate(parameters)}
    rule: Any = object.__new__(zero_redundancy_class())
    rule.__dict__.update(world_size=num_ranks, param_groups=[{"params": parameters}], _partition_parameters_cache=[])
    return [[place[id(p)] for group in groups for p in group["params"]] for groups in rule._partition_parameters()]


def test_whole_tensors_are_dealt_out_as_torch_does() -> None:
    draw = random.Random(0)
    for _ in range(100):
        num_ranks = draw.randint(1, 9)
        sizes = [draw.choice([0, 1, 2, 3, 100, 1000, draw.randint(0, 5000)]) for _ in range(draw.randint(1, 40))]
        assert zero.partition(sizes, num_ranks) == torchs_partition(sizes, num_ranks), (sizes, num_ranks)
    assert torchs_partition([5, 30, 20, 10], 2) != [[0, 1], [2, 3]]  # the oracle sees another order


# ---- traffic


def test_stages_send_two_or_three_times_the_parameters() -> None:
    for stage, times in enumerate((2, 2, 2, 3)):
        traffic = zero.traffic(7_500_000_000, 64, stage)
        assert traffic.sent_bytes == pytest.approx(times * 2 * 7.5e9 * 63 / 64)
        assert zero.traffic(7_500_000_000, 1, stage).sent_bytes == 0


def test_the_seconds_are_those_of_simulated_rings() -> None:
    link = Link(5e-6, 1e9)
    cluster = Cluster.uniform(4, link)
    parts = [("allgather", 2_000_000), ("allgather", 2_000_000), ("reduce_scatter", 2_000_000)]
    simulated_s = sum(simulate(build(name, "ring", 4), size, cluster).makespan_s for name, size in parts)
    assert zero.traffic(1_000_000, 4, 3).seconds(link) == pytest.approx(simulated_s)


# ---- real ranks


def uneven() -> nn.Module:
    """Tensors that neither two nor three ranks share evenly, and a buffer."""
    return nn.Sequential(
        nn.Linear(30, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Linear(50, 70), nn.ReLU(), nn.Linear(70, 7)
    )


def half() -> nn.Module:
    return nn.Linear(30, 50).to(torch.bfloat16)


def differences(live: list[LiveMemory], module: nn.Module) -> list[str]:
    """Every term and every collective of a rank that is not as predicted."""
    faults = []
    for rank in live:
        expected = zero.memory(module, rank.memory.num_ranks, rank.way, rank=rank.rank)
        if expected != rank.memory:
            faults.append(f"{rank.way}, rank {rank.rank}: {expected.terms} predicted, {rank.memory.terms} found")
        exchanged: dict[str, int] = {}
        for exchange in zero.traffic(module, rank.memory.num_ranks, rank.way).exchanges:
            exchanged[exchange.collective] = exchanged.get(exchange.collective, 0) + exchange.num_bytes
        if exchanged != dict(rank.exchanged):
            faults.append(f"{rank.way}, rank {rank.rank}: {dict(rank.exchanged)} exchanged")
    return faults


# what is trained, on how many ranks, and in which ways
CASES = [
    (uneven, torch.randn(4, 30), 3, "zero_redundancy_optimizer"),
    (Tied, torch.arange(6), 2, "ddp"),
    *[(Tied, torch.arange(6), 3, way) for way in WAYS],
    *[(make, torch.randn(4, 30), 2, way) for make in (uneven, half) for way in WAYS],
]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "batch", "num_ranks", "way"), first_in_test(2, CASES))
def test_live_tensors_and_collectives_are_as_predicted(make: Any, batch: Any, num_ranks: int, way: str) -> None:
    batch = batch.to(next(make().parameters()).dtype) if batch.is_floating_point() else batch
    live = zero.measure(make, batch, num_ranks, way, timeout_s=240)
    assert [(rank.way, rank.rank) for rank in live] == [(way, rank) for rank in range(num_ranks)]
    assert differences(live, make()) == []
    wrong = replace(live[0].memory, terms={**live[0].memory.terms, "gradients": 4})
    assert len(differences([replace(live[0], memory=wrong, exchanged={"allreduce": 4})], make())) == 2
