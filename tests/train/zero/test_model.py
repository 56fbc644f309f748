"""ZeRO's bytes per rank: the paper's figures, real modules, who holds what against torch's own code, wrong input."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from rankscope.cluster import Cluster, Link
from rankscope.collectives import build, simulate
from rankscope.train import zero
from rankscope.train.zero.model import OPTIMIZERS, RECIPES, TERMS, layers, sizes_of
from rankscope.train.zero.run import zero_redundancy_class

from ...small import Tied

# ---- the paper


@pytest.mark.parametrize(
    ("stage", "gigabytes", "per_parameter"),
    [(0, "120", "2 + 2 + 12"), (1, "31.4", "2 + 2 + 12/64"), (2, "16.6", "2 + 14/64"), (3, "1.88", "16/64")],
)
def test_the_papers_four_figures(stage: int, gigabytes: str, per_parameter: str) -> None:
    memory = zero.memory(7_500_000_000, 64, stage)
    assert f"{memory.total_bytes / 1e9:.3g}" == gigabytes  # the paper rounds the last to 1.9
    expected = sum((Fraction(term) for term in per_parameter.split(" + ")), Fraction(0)) * 7_500_000_000
    assert memory.total_bytes == expected


def test_terms_of_every_recipe_and_optimizer() -> None:
    """By the definitions, worked out here a second time for one number of parameters that all ranks share evenly."""
    total, ranks = 4096 * 64, 8
    states = {"sgd": (0, 0), "momentum": (1, 0), "adam": (2, 0), "adam_8bit": (2, 1)}
    widths = {"fp32": (4, 4, 0, 4), "mixed": (2, 2, 4, 4), "bf16": (2, 2, 0, 2)}
    assert set(states) == set(OPTIMIZERS)
    assert set(widths) == set(RECIPES)
    for (name, (count, in_8_bits)), (recipe, (wide, grad, master, wide_state)), stage in product(
        states.items(), widths.items(), range(4)
    ):
        terms = zero.memory(total, ranks, stage, recipe, name).terms
        state = total * (1 + 4 / 2048 if in_8_bits else wide_state) * count
        assert terms["optimizer_states"] == state / (ranks if stage >= 1 else 1)
        assert terms["master_copy"] == total * master / (ranks if stage >= 1 else 1)
        assert terms["gradients"] == total * grad / (ranks if stage >= 2 else 1)
        assert terms["parameters"] == total * wide / (ranks if stage >= 3 else 1)


def test_inputs_are_terms_of_their_own() -> None:
    plain = zero.memory(1000, 4, 3)
    memory = zero.memory(1000, 4, 3, largest_layer=300, buffer_bytes=77, activation_bytes=5000)
    assert memory.total_bytes - plain.total_bytes == 300 * (2 + 2) + 77 + 5000
    assert (memory.terms["largest_layer"], memory.terms["buffers"], memory.terms["activations"]) == (1200, 77, 5000)
    assert zero.memory(1000, 4, 2, largest_layer=300).terms["largest_layer"] == 600  # parameters are whole anyway
    assert zero.memory(1000, 4, 1, largest_layer=300).terms["largest_layer"] == 0
    assert zero.memory(1000, 4, 1, buckets=True).terms["buckets"] == 2000
    assert zero.memory(1e3, 4, 3, largest_layer=3e2, activation_bytes=5e3, buffer_bytes=77) == memory


def test_one_rank_holds_everything_in_every_stage() -> None:
    assert len({zero.memory(12_345, 1, stage).total_bytes for stage in range(4)}) == 1


# ---- modules


def test_a_modules_sizes_count_shared_once_and_frozen_without_gradient() -> None:
    module = Tied()
    sizes = sizes_of(module)
    trained = 101 * 33 + 33 * 33 + 2
    assert sum(p.size for p in sizes.parameters) == trained + 33
    memory = zero.memory(module, 1, 0, "fp32")
    assert memory.num_parameters == trained + 33
    num_tensors = 3  # trained ones
    assert dict(memory.terms) == dict.fromkeys(TERMS, 0) | {
        "parameters": 4 * (trained + 33),
        "gradients": 4 * trained,
        "optimizer_states": 8 * trained + 4 * num_tensors,
        "buffers": 80,
    }
    assert [name for name, _ in layers(module)] == ["middle"]  # embed and head share: the root's


def test_what_is_no_float_keeps_its_width() -> None:
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False).to(torch.bfloat16))
    module.register_parameter("codes", nn.Parameter(torch.zeros(10, dtype=torch.int8), requires_grad=False))
    assert zero.memory(module, 1, 0, "fp32", "sgd").terms["parameters"] == 32 * 4 + 10


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


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 7, 16])
def test_rows_are_torchs_chunks(num_ranks: int) -> None:
    """Dimension 0 as ``torch.chunk`` cuts it, the storage as long as the first chunk, on every rank."""
    for shape in ((1,), (5,), (7, 3), (16, 2, 2), (3, 4)):
        module = nn.Module()
        module.weight = nn.Parameter(torch.zeros(shape))
        chunks = [chunk.numel() for chunk in torch.chunk(module.weight, num_ranks)]
        held = chunks + [0] * (num_ranks - len(chunks))
        for rank in range(num_ranks):
            memory = zero.memory(module, num_ranks, "fully_shard", "fp32", "momentum", rank=rank)
            assert memory.terms["parameters"] == memory.terms["gradients"] == 4 * chunks[0]
            assert memory.terms["optimizer_states"] == 4 * held[rank]
            assert memory.terms["largest_layer"] == 2 * 4 * chunks[0] * num_ranks


# ---- whole tensors


def torchs_partition(sizes: list[int], num_ranks: int) -> tuple[tuple[int, ...], ...]:
    """The partition of tensors of these sizes by ZeroRedundancyOptimizer itself, without any ranks."""
    parameters = [nn.Parameter(torch.empty(size, device="meta")) for size in sizes]
    place = {id(p): number for number, p in enumerate(parameters)}
    rule: Any = object.__new__(zero_redundancy_class())
    rule.__dict__.update(world_size=num_ranks, param_groups=[{"params": parameters}], _partition_parameters_cache=[])
    assigned = rule._partition_parameters()
    return tuple(tuple(place[id(p)] for group in groups for p in group["params"]) for groups in assigned)


def test_whole_tensors_are_dealt_out_as_torch_does() -> None:
    draw = random.Random(0)
    for _ in range(300):
        num_ranks = draw.randint(1, 9)
        sizes = [draw.choice([0, 1, 2, 3, 100, 1000, draw.randint(0, 5000)]) for _ in range(draw.randint(1, 40))]
        assert zero.partition(sizes, num_ranks) == torchs_partition(sizes, num_ranks), (sizes, num_ranks)
    assert torchs_partition([5, 30, 20, 10], 2) != ((0, 1), (2, 3))  # the oracle sees another order


def test_the_fullest_rank_is_the_one_of_most_bytes() -> None:
    def total_bytes(module: nn.Module, rank: int | None, num_ranks: int) -> float:
        return zero.memory(module, num_ranks, "zero_redundancy_optimizer", rank=rank).total_bytes

    single = torch.float32
    for lists in ([(100, single), (90, torch.complex64)], [(4, single), (2, single), (2, single)]):
        module = nn.ParameterList([nn.Parameter(torch.zeros(size, dtype=dtype)) for size, dtype in lists])
        assert total_bytes(module, None, 2) == max(total_bytes(module, rank, 2) for rank in range(2))


def test_three_equal_tensors_on_four_ranks_are_a_third_over() -> None:
    module = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(3)))
    way = "zero_redundancy_optimizer"
    fullest = zero.memory(module, 4, way, "fp32", "momentum").terms["optimizer_states"]
    even = zero.memory(module, 4, 1, "fp32", "momentum").terms["optimizer_states"]
    assert fullest / even == pytest.approx(4 / 3)


# ---- traffic


@pytest.mark.parametrize(("stage", "times"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_stages_send_two_or_three_times_the_parameters(stage: int, times: int) -> None:
    traffic = zero.traffic(7_500_000_000, 64, stage)
    assert traffic.sent_bytes == pytest.approx(times * 2 * 7.5e9 * 63 / 64)
    assert zero.traffic(7_500_000_000, 1, stage).sent_bytes == 0


def test_the_seconds_are_those_of_simulated_rings() -> None:
    link = Link(5e-6, 1e9)
    cluster = Cluster.uniform(4, link)
    parts = [("allgather", 2_000_000), ("allgather", 2_000_000), ("reduce_scatter", 2_000_000)]
    simulated_s = sum(simulate(build(name, "ring", 4), size, cluster).makespan_s for name, size in parts)
    assert zero.traffic(1_000_000, 4, 3).seconds(link) == pytest.approx(simulated_s)


def test_every_layer_is_a_call_and_pays_its_latency() -> None:
    module = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    traffic = zero.traffic(module, 4, "fully_shard")
    assert [exchange.num_calls for exchange in traffic.exchanges] == [2, 2, 2]
    slow, free = Link(1.0, 1e18), Link(0.0, 1e18)
    assert traffic.seconds(slow) - traffic.seconds(free) == pytest.approx(6 * 3)


# ---- wrong input, and words


SCALED = nn.Linear(2, 2)
SCALED.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))


def test_ddp_takes_a_parameter_without_a_dimension() -> None:
    assert zero.memory(SCALED, 2, "ddp").terms["parameters"] == 4 * 7
