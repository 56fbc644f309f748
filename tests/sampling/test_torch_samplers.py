"""Our DistributedSampler against torch's own, index by index, and where ours refuses what torch lets through."""

from __future__ import annotations

import copy
import itertools
import pickle
import random

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data import DistributedSampler as TorchDistributedSampler

from rankscope.sampling import Assignment, DistributedSampler, assign, audit_loader, permutation

from ..extents import SAMPLE_OR_EVERYTHING


@SAMPLE_OR_EVERYTHING
def test_same_order_as_torch(everything):
    draw = random.Random(0)
    seeds = [2**32 - 1, 2**32, 2**32 + 7, 2**63, 2**64 - 60, -(2**63)]
    for number in range(5000 if everything else 1500):
        num_replicas, epoch = draw.randint(1, 40), draw.randint(0, 50)
        size = draw.randint(0, 5) if number % 2 else draw.randint(0, 300)
        seed = draw.choice(seeds) if number % 3 else draw.randint(-5, 50)
        recipe = {
            "num_replicas": num_replicas,
            "shuffle": draw.random() < 0.7,
            "seed": seed,
            "drop_last": draw.random() < 0.5,
        }
        rank = draw.randrange(num_replicas)
        ours = DistributedSampler(size, rank=rank, **recipe)
        theirs = TorchDistributedSampler(range(size), rank=rank, **recipe)
        ours.set_epoch(epoch)
        theirs.set_epoch(epoch)
        expected = list(theirs)
        assert list(ours) == expected, (size, rank, recipe, epoch)
        assert len(ours) == len(theirs) == len(expected)
        assert assign(size, epoch=epoch, **recipe).ranks[rank].tolist() == expected, (size, rank, recipe, epoch)


@SAMPLE_OR_EVERYTHING
@pytest.mark.parametrize(
    "size", [65_535, 65_536, 65_537, 70_001, pytest.param(300_007, marks=pytest.mark.oracle), 1_000_003]
)
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


def test_a_length_is_a_number_of_64_bits():
    for dataset in (5, np.int64(5), np.array(5), torch.tensor(5), np.arange(5), torch.arange(5), "words"):
        assert list(DistributedSampler(dataset, 2, 0, shuffle=False)) == [0, 2, 4]
    assert len(DistributedSampler(2**63 - 1, 2**40, 0, shuffle=False)) == 2**23
    assert list(itertools.islice(DistributedSampler(10**15, 8, 7, shuffle=False), 3)) == [7, 15, 23]


def test_the_comparison_sees_another_order():
    theirs = TorchDistributedSampler(range(70_001), 7, 3)
    theirs.set_epoch(1)
    assert list(DistributedSampler(70_001, 7, 3)) != list(theirs)


def test_tangled_swaps_are_done_in_order():
    """Blocks far too large for their array, so that nearly every step shares a position with another."""
    draw = np.random.default_rng(0)
    for _ in range(300):
        size = int(draw.integers(50, 400))
        count = int(np.sqrt(size))
        first = int(draw.integers(0, size - count))
        low, high = (first, size) if draw.integers(2) else (max(first - 20, 0), min(first + 20, size))
        partner = draw.integers(low, high, count)
        expected = list(range(size))
        for step, other in enumerate(partner.tolist(), first):
            expected[step], expected[other] = expected[other], expected[step]
        items = np.arange(size)
        permutation._swap(items, first, partner)
        assert items.tolist() == expected


def test_beyond_torchs_32_bit_limit_torch_itself_is_asked(monkeypatch):
    monkeypatch.setattr(permutation, "TORCH_32BIT_LIMIT", 1000)
    theirs = torch.randperm(1000, generator=torch.Generator().manual_seed(5))
    lengths = []
    randperm = torch.randperm
    monkeypatch.setattr(
        torch, "randperm", lambda length, **options: lengths.append(length) or randperm(length, **options)
    )
    assert permutation.torch_order(1000, 5).tolist() == theirs.tolist()
    assert sorted(permutation.torch_order(999, 5).tolist()) == list(range(999))
    assert lengths == [1000]
    monkeypatch.setattr(torch, "randperm", randperm)
    expected = list(TorchDistributedSampler(range(1501), 4, 2))
    assert list(DistributedSampler(1501, 4, 2)) == expected


def test_an_iterator_goes_on_as_it_began():
    whole_epoch = assign(300_000, 4, seed=1, epoch=2).ranks[1].tolist()
    sampler = DistributedSampler(300_000, 4, 1, seed=1)
    sampler.set_epoch(2)
    state = sampler.state_after(60_000)
    from_the_start = iter(sampler)
    sampler.resume(state)
    resumed = iter(sampler)
    sampler.set_epoch(3)
    assert list(from_the_start) == whole_epoch
    assert list(resumed) == whole_epoch[60_000:]


def test_the_first_index_comes_before_the_epoch_is_shuffled(monkeypatch):
    first_steps = []
    swap = permutation._swap

    def noted_swap(items, first, partner):
        first_steps.append(first)
        swap(items, first, partner)

    monkeypatch.setattr(permutation, "_swap", noted_swap)
    next(iter(DistributedSampler(10**6, 8, 0)))
    assert len(first_steps) == 1


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


def test_world_size_and_rank_come_from_the_process_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        sampler = DistributedSampler(10)
        assert (sampler.num_replicas, sampler.rank) == (1, 0)
    finally:
        dist.destroy_process_group()


class Endless(Dataset):
    """A dataset without a length."""

    def __getitem__(self, index):
        return index


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_replicas": 4, "rank": 4},
        {"num_replicas": 4, "rank": -1},
        {"num_replicas": None, "rank": 0},
        {"num_replicas": 2, "rank": None},
        {"dataset": Endless(), "num_replicas": 2, "rank": 0},
    ],
)
def test_the_same_error_as_torch(arguments):
    with pytest.raises(Exception) as theirs:  # noqa: PT011 - whatever torch raises
        TorchDistributedSampler(**{"dataset": range(10)} | arguments)
    with pytest.raises(type(theirs.value)) as ours:
        DistributedSampler(**{"dataset": 10} | arguments)
    assert str(ours.value) == str(theirs.value) or "has no length: pass" in str(ours.value)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_an_epoch_goes_on_over_any_numbers_of_ranks(data):
    """Stopped and resumed at random steps on random world sizes: all that is read is the order, then its beginning."""
    size, shuffle, drop_last = data.draw(st.integers(0, 200)), data.draw(st.booleans()), data.draw(st.booleans())
    epoch = data.draw(st.integers(0, 5))
    order = list(TorchDistributedSampler(range(size), 1, 0, shuffle, seed=epoch))
    state, read = None, []
    for last in (False, False, False, True):
        num_replicas = data.draw(st.integers(1, 12))
        samplers = [DistributedSampler(size, num_replicas, r, shuffle, 0, drop_last) for r in range(num_replicas)]
        for sampler in samplers:
            sampler.set_epoch(epoch)
            if state is not None:
                sampler.resume(state)
            sampler.set_epoch(epoch)  # what a training loop does at the head of each epoch: no effect on a resumed one
        ranks = [list(sampler) for sampler in samplers]
        assert {len(indices) for indices in ranks} == {len(samplers[0])}
        trained = len(samplers[0]) if last else data.draw(st.integers(0, len(samplers[0])))
        read += [ranks[r][step] for step in range(trained) for r in range(num_replicas)]
        states = [sampler.state_after(trained) for sampler in samplers]
        state = states[0]
        assert states == [state] * num_replicas
    assert read == [order[place % size] for place in range(len(read))]
    left = size - len(read)
    assert 0 <= left < num_replicas if drop_last else -12 < left <= 0


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_resumed_state_is_used_once(shuffle):
    sampler = DistributedSampler(11, 2, 1, shuffle)
    epoch = list(sampler)
    sampler.resume(sampler.state_after(2))
    iter(sampler)  # one that is never used, as DataLoader makes where it has no batches
    assert [list(sampler), list(sampler), list(sampler)] == [epoch[2:], epoch, epoch]
    assert (len(sampler), sampler.state_after(1)["consumed"]) == (6, 2)
    sampler.resume(sampler.state_after(4))
    assert (next(iter(sampler)), len(sampler), sampler.state_after(1)["consumed"]) == (epoch[4], 2, 10)
    sampler.set_epoch(0)
    assert list(sampler) == epoch


def test_an_audit_leaves_a_resumed_sampler_where_it_is():
    sampler = DistributedSampler(11, 2, 1)
    epoch = list(sampler)
    sampler.resume(sampler.state_after(2))
    audit_loader(DataLoader(range(11), sampler=sampler))
    Assignment.collect([sampler], 11)
    assert [list(sampler), list(sampler)] == [epoch[2:], epoch]


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_data_loader_without_set_epoch_reads_whole_epochs_after_a_resumed_one(batch_size, num_workers):
    sampler = DistributedSampler(20, 2, 0, shuffle=False)
    sampler.resume(sampler.state_after(6))
    loader = DataLoader(range(20), batch_size, sampler=sampler, num_workers=num_workers)
    read = [torch.cat([torch.as_tensor(batch).reshape(-1) for batch in loader]).tolist() for _ in range(3)]
    assert read == [[12, 14, 16, 18], [*range(0, 20, 2)], [*range(0, 20, 2)]]


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_iterator_can_be_pickled_and_copied_as_torchs_can(shuffle):
    for size, taken in [(0, 0), (2, 1), (11, 0), (11, 3), (70_001, 0), (70_001, 17_000), (70_001, 23_334)]:
        ours = iter(DistributedSampler(range(size), 3, 2, shuffle))
        theirs = iter(TorchDistributedSampler(range(size), 3, 2, shuffle))
        for iterator in (ours, theirs):
            assert len(list(itertools.islice(iterator, taken))) == taken
        copies = [pickle.loads(pickle.dumps(ours)), copy.copy(ours), copy.deepcopy(ours)]
        copies.append(pickle.loads(pickle.dumps(copies[0])))
        assert [list(iterator) for iterator in (*copies, ours)] == [list(theirs)] * 5
