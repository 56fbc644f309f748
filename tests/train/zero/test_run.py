"""Live tensors on real ranks against the formula, byte for byte."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import product

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from rankscope.ranks import launch
from rankscope.train import zero
from rankscope.train.zero import WAYS
from rankscope.train.zero.run import LiveMemory, storages

from ...extents import first_in_test
from ...small import Tied

pytestmark = pytest.mark.slow

TIMEOUT_S = 240.0
FSDP_ON_GLOO = hasattr(FSDPModule, "set_force_sum_reduction_for_comms")  # from torch 2.8 on it need not average
WAYS_HERE = [name for name, way in WAYS.items() if way.partition != "rows" or FSDP_ON_GLOO]


def uneven() -> nn.Module:
    """Rows that neither two nor four ranks share evenly, and a buffer."""
    return nn.Sequential(
        nn.Linear(30, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Linear(50, 70), nn.ReLU(), nn.Linear(70, 7)
    )


def even() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.Linear(128, 64))


BATCHES = {uneven: torch.randn(4, 30), even: torch.randn(4, 64), Tied: torch.arange(6)}


def differences(live: list[LiveMemory], make: Callable[[], nn.Module]) -> list[str]:
    """Every term and every collective of a rank that is not as predicted."""
    faults = []
    for rank in live:
        args = (make(), rank.memory.num_ranks, rank.way, rank.memory.recipe)
        expected = zero.memory(*args, rank.memory.optimizer, rank=rank.rank)
        if expected != rank.memory:
            faults.append(f"{rank.way}, rank {rank.rank}: {expected.terms} predicted, {rank.memory.terms} found")
        if zero.traffic(*args).by_collective() != dict(rank.exchanged):
            faults.append(f"{rank.way}, rank {rank.rank}: {dict(rank.exchanged)} exchanged")
    return faults


@pytest.mark.parametrize(("make", "num_ranks"), first_in_test(2, [(uneven, 4), (Tied, 2), (uneven, 2), (Tied, 4)]))
def test_live_tensors_are_as_predicted(make: Callable[[], nn.Module], num_ranks: int) -> None:
    """Five ways each: twenty settings, and nine more below."""
    live = zero.measure(make, BATCHES[make], num_ranks, WAYS_HERE, timeout_s=TIMEOUT_S)
    assert [(rank_memory.way, rank_memory.rank) for rank_memory in live] == list(product(WAYS_HERE, range(num_ranks)))
    assert differences(live, make) == []
    assert all(rank_memory.memory.total_bytes > 0 for rank_memory in live)


@pytest.mark.parametrize(
    ("make", "recipe", "optimizer", "ways"),
    [
        (even, "bf16", "momentum", list(WAYS)),
        (even, "mixed", "adam", ["fully_shard_keep", "fully_shard"]),
        (uneven, "fp32", "sgd", ["zero_redundancy_optimizer", "fully_shard"]),
    ],
)
def test_live_tensors_in_other_recipes_and_optimizers(
    make: Callable[[], nn.Module], recipe: str, optimizer: str, ways: list[str]
) -> None:
    ways = [way for way in ways if way in WAYS_HERE] or pytest.skip("fully_shard needs torch 2.8 on Gloo")
    live = zero.measure(make, BATCHES[make], 2, ways, recipe, optimizer, timeout_s=TIMEOUT_S)
    assert differences(live, make) == []
    for rank_memory in live:  # if ranks share rows evenly, the paper's own formula has the same total
        if make is even and rank_memory.way == "fully_shard" and recipe == "bf16":
            paper = zero.memory(make(), 2, 3, recipe, optimizer)
            assert rank_memory.memory.total_bytes == paper.total_bytes


def test_a_wrong_finding_is_told() -> None:
    right = zero.memory(even(), 2, "ddp"), zero.traffic(even(), 2, "ddp").by_collective()
    live = LiveMemory("ddp", 0, *right)
    assert differences([live], even) == []
    wrong = replace(live.memory, terms={**live.memory.terms, "gradients": live.memory.terms["gradients"] + 4})
    assert len(differences([replace(live, memory=wrong)], even)) == 1
    assert len(differences([replace(live, exchanged={"allreduce": 4})], even)) == 1


def test_storages_count_once_and_views_count_whole() -> None:
    base = torch.zeros(10, 10)
    other = torch.zeros(3, dtype=torch.int8)
    assert sorted(storages([base, base[0], base.T, other, torch.zeros(0)]).values()) == [3, 400]


def _all_tensors() -> tuple[int, int]:
    """Bytes of every tensor that the garbage collector knows of beyond those at the start, and of DDP's terms."""
    torch.manual_seed(0)
    gc.collect()
    before = storages(tensor for tensor in gc.get_objects() if isinstance(tensor, torch.Tensor))
    model = DistributedDataParallel(even(), gradient_as_bucket_view=True)
    rule = torch.optim.Adam(model.parameters())
    for _ in range(3):
        rule.zero_grad()
        model(torch.ones(4, 64)).square().mean().backward()
        rule.step()
    gc.collect()
    after = storages(tensor for tensor in gc.get_objects() if isinstance(tensor, torch.Tensor))
    return sum(num for address, num in after.items() if address not in before), sum(before.values())


def test_nothing_else_is_alive() -> None:
    """A second method, which does not ask the model or the optimizer for their tensors."""
    expected = zero.memory(even(), 2, "ddp_bucket_view").total_bytes
    for num_bytes, _ in launch(_all_tensors, 2, timeout_s=TIMEOUT_S):
        assert num_bytes == pytest.approx(expected, rel=0.01)
