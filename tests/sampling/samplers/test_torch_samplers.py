"""Our DistributedSampler against torch's own, index by index."""

from __future__ import annotations

import random

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import DistributedSampler as TorchDistributedSampler

from rankscope.sampling import DistributedSampler, assign
from rankscope.sampling.samplers import permutation
from tests.extents import SAMPLE_OR_EVERYTHING


@SAMPLE_OR_EVERYTHING
def test_same_order_as_torch(everything):
    draw = random.Random(0)
    seeds = [2**32 - 1, 2**32, 2**32 + 7, 2**63, 2**64 - 60, -(2**63)]
    for number in range(6000 if everything else 1500):
        num_ranks, epoch = draw.randint(1, 40), draw.randint(0, 50)
        size = draw.randint(0, 5) if number % 2 else draw.randint(0, 300)
        recipe = {
            "shuffle": draw.random() < 0.7,
            "seed": draw.choice(seeds) if number % 3 else draw.randint(-5, 50),
            "drop_last": draw.random() < 0.5,
        }
        rank = draw.randrange(num_ranks)
        ours = DistributedSampler(size, num_ranks, rank, **recipe)
        theirs = TorchDistributedSampler(range(size), num_ranks, rank, **recipe)
        ours.set_epoch(epoch)
        theirs.set_epoch(epoch)
        expected = list(theirs)
        assert list(ours) == expected, (size, rank, recipe, epoch)
        assert len(ours) == len(theirs) == len(expected)
        assigned = assign(size, num_ranks, epoch=epoch, **recipe).ranks
        assert assigned[rank].tolist() == expected, (size, rank, recipe, epoch)


@SAMPLE_OR_EVERYTHING
@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 70_001, 1_000_003])
def test_same_order_where_it_is_made_in_blocks(size, everything):
    cases = [(0, 1, 0, False), (6, 7, 3, False), (63, 64, 11, True)]
    if everything:
        cases = [(*case[:3], drop_last) for case in cases for drop_last in (False, True)]
    for rank, num_replicas, epoch, drop_last in cases:
        ours = DistributedSampler(size, num_replicas, rank, seed=9, drop_last=drop_last)
        theirs = TorchDistributedSampler(range(size), num_replicas, rank, seed=9, drop_last=drop_last)
        ours.set_epoch(epoch)
        theirs.set_epoch(epoch)
        assert list(ours) == list(theirs)


def test_the_comparison_sees_another_order():
    theirs = TorchDistributedSampler(range(70_001), 7, 3)
    theirs.set_epoch(1)
    assert list(DistributedSampler(70_001, 7, 3)) != list(theirs)


def test_beyond_torchs_32_bit_limit_torch_itself_is_asked(monkeypatch):
    monkeypatch.setattr(permutation, "TORCH_32BIT_LIMIT", 1000)
    asked = []
    randperm = torch.randperm
    monkeypatch.setattr(
        torch, "randperm", lambda length, **options: asked.append(length) or randperm(length, **options)
    )
    assert sorted(DistributedSampler(999, 1, 0)) == list(range(999))
    assert asked == []
    ours = [list(DistributedSampler(1501, 4, rank)) for rank in (0, 2)]
    assert set(asked) == {1501}
    monkeypatch.setattr(torch, "randperm", randperm)
    assert ours == [list(TorchDistributedSampler(range(1501), 4, rank)) for rank in (0, 2)]


def test_the_first_index_comes_before_the_epoch_is_shuffled():
    assert next(permutation.torch_order_blocks(10**6, 0, 10**6)).size == 1000


def test_a_drop_in_for_a_real_data_loader():
    dataset = TensorDataset(torch.arange(103))
    orders = []
    for kind in (DistributedSampler, TorchDistributedSampler):
        sampler = kind(dataset, num_replicas=4, rank=2, seed=1)
        sampler.set_epoch(2)
        orders.append([batch.tolist() for (batch,) in DataLoader(dataset, batch_size=8, sampler=sampler)])
        assert isinstance(sampler, TorchDistributedSampler)
        assert all(type(index) is int for index in sampler)
    assert orders[0] == orders[1]


@pytest.mark.parametrize("arguments", [(4, 4), (4, -1), (None, 0), (2, None)])
def test_the_same_error_as_torch(arguments):
    with pytest.raises(Exception) as theirs:  # noqa: PT011 - whatever torch raises
        TorchDistributedSampler(range(10), *arguments)
    with pytest.raises(type(theirs.value)) as ours:
        DistributedSampler(10, *arguments)
    assert str(ours.value) == str(theirs.value)
