"""Live tensors on real ranks against the formula, byte for byte; state brought together, stored, resumed."""

from __future__ import annotations

import gc
import pickle
import resource
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from rankscope.common.storage import write_atomically
from rankscope.ranks import launch
from rankscope.train import zero
from rankscope.train.zero import WAYS
from rankscope.train.zero.run import LiveMemory, _save, load_training, save_training, storages, zero_redundancy_class

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
    wrong = evolve(live.memory, terms={**live.memory.terms, "gradients": live.memory.terms["gradients"] + 4})
    assert len(differences([evolve(live, memory=wrong)], even)) == 1
    assert len(differences([evolve(live, exchanged={"allreduce": 4})], even)) == 1


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


ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((3, ONE, 2), "make_model must be a function"),
        ((even, [1.0], 2), "batch must be a Tensor, got"),
        ((even, ONE, 1), "num_ranks must be a whole number of at least 2, got 1"),
        ((even, ONE, 2, "ddp"), "ways must be a list, got 'ddp'"),
        ((even, ONE, 2, []), "ways must be at least one, got none"),
        ((even, ONE, 2, ["fsdp1"]), "ways must be one of .*, got 'fsdp1'"),
        ((even, ONE, 2, ["ddp"], "mixed"), "recipe 'mixed' needs fully_shard"),
        ((even, ONE, 2, ["ddp"], "fp8"), "recipe must be one of"),
        ((even, ONE, 2, ["ddp"], "fp32", "adam_8bit"), "optimizer must be one of 'sgd', 'momentum', 'adam', got"),
        ((even, ONE, 2, ["ddp"], "fp32", "adam", 1), "num_steps must be a whole number of at least 2, got 1"),
    ],
)
def test_wrong_input(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        zero.measure(*args)


# ---- saved and resumed


@pytest.mark.parametrize(("before", "after"), first_in_test(1, [(2, 3), (3, 1)]))
def test_training_goes_on_with_another_number_of_ranks(before: int, after: int) -> None:
    assert zero.resume_difference(before, after, timeout_s=TIMEOUT_S) < 1e-12


def _step_after_saving(path: Path, keeps_state: bool) -> float:
    """How far the step after a save moves the weights, with the optimizer's state loaded or left out."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    parallel = DistributedDataParallel(model)
    rule = zero_redundancy_class()(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.1)
    batch = torch.ones(2, 6)
    for step in range(3):
        if step == 2:
            save_training(path, model, rule)
            if keeps_state:
                load_training(path, model, rule)
            else:
                rule = zero_redundancy_class()(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.1)
            before = model.weight.detach().clone()
        rule.zero_grad()
        parallel(batch).square().mean().backward()
        rule.step()
    return float((model.weight - before).abs().sum().detach())


def _both(path: Path) -> tuple[float, float]:
    return _step_after_saving(path, True), _step_after_saving(path, False)


def test_the_state_matters(tmp_path: Path) -> None:
    (with_state, without_state), other = launch(_both, 2, (tmp_path / "a.pt",), timeout_s=TIMEOUT_S)
    assert other == (with_state, without_state)
    assert abs(with_state - without_state) > 1e-4
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


def test_a_file_with_code_in_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil.pt"
    torch.save({"model": TIMEOUT_S, "optimizer": Path("/")}, path)
    with pytest.raises(pickle.UnpicklingError):
        load_training(path, even(), None)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((5, 2), "num_ranks must divide a batch of 48, got 5"),
        ((2, 0), "resumed_ranks must be a whole number from 1 to 16, got 0"),
        ((2, 2, 3), "num_steps must be even, to be saved half way, got 3"),
    ],
)
def test_wrong_input_to_resume(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        zero.resume_difference(*args)


def test_training_that_a_disk_has_no_room_for_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    """torch's writer says "unexpected pos 704 vs 598", which names neither."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = tmp_path / "training.pt"
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match=f"File too large: '{path}'"):
            write_atomically(path, lambda file: _save({"model": torch.ones(100_000)}, file))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
    write_atomically(path, lambda file: _save({"model": torch.ones(3)}, file))
    assert torch.load(path, weights_only=True)["model"].tolist() == [1.0] * 3
