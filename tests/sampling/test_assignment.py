"""Assignments: every maker, the loader on top; and shards of a file list."""

from __future__ import annotations

import itertools
import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, get_worker_info
from torch.utils.data import DistributedSampler as TorchDistributedSampler

from rankscope.sampling import (
    SAMPLERS,
    Assignment,
    DistributedRandomSampler,
    DistributedSampler,
    DistributedSequentialSampler,
    KeyedSampler,
    Sampler,
    assign,
    shard_files,
)


class WhoReads(Dataset):
    """Each sample says its index and the worker that read it."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        info = get_worker_info()
        return index, -1 if info is None else info.id


def listed(assignment):
    return [indices.tolist() for indices in assignment.ranks]


def read_by_torch(size, num_replicas, rank, epoch, drop_last):
    sampler = TorchDistributedSampler(range(size), num_replicas, rank, drop_last=drop_last)
    sampler.set_epoch(epoch)
    return list(sampler)


def read_by_libtorch(sampler_class, size, num_replicas, rank, epoch, drop_last):
    sampler = sampler_class(size, num_replicas, rank, not drop_last)
    sampler.set_epoch(epoch)
    sampler.reset()
    return sampler.next(size + 1) or []


READ_BY_ONE_RANK = {
    "torch": read_by_torch,
    "libtorch_random": partial(read_by_libtorch, DistributedRandomSampler),
    "libtorch_sequential": partial(read_by_libtorch, DistributedSequentialSampler),
}


@pytest.mark.parametrize("kind", READ_BY_ONE_RANK)  # test_elastic.py compares the others
def test_all_ranks_at_once_read_what_each_sampler_gives_its_rank(kind):
    for size, num_replicas in [(0, 3), (1, 4), (3, 8), (10, 4), (64, 16), (97, 1), (1000, 7)]:
        for epoch, drop_last in itertools.product((0, 1, 2**32 + 1), (False, True)):
            ranks = [READ_BY_ONE_RANK[kind](size, num_replicas, rank, epoch, drop_last) for rank in range(num_replicas)]
            assert listed(assign(size, num_replicas, sampler=kind, epoch=epoch, drop_last=drop_last)) == ranks


@pytest.mark.parametrize(("seed", "epoch"), [(-(2**63), -1), (2**64 - 1, 1), (0, 2**70)])
def test_only_a_shuffle_limits_the_sum_of_seed_and_epoch(seed, epoch):
    recipe = {"shuffle": False, "seed": seed}
    ours = DistributedSampler(range(10), 4, 1, **recipe)
    theirs = TorchDistributedSampler(range(10), 4, 1, **recipe)
    ours.set_epoch(epoch)
    theirs.set_epoch(epoch)
    assert assign(10, 4, epoch=epoch, **recipe).ranks[1].tolist() == list(ours) == list(theirs)
    with pytest.raises(ValueError, match=r"seed \+ epoch must be"):
        assign(10, 4, epoch=epoch, seed=seed)


def test_collect_takes_any_sampler_ragged_too():
    torchs = [TorchDistributedSampler(range(37), 5, rank, seed=3) for rank in range(5)]
    ours = [DistributedSampler(37, 5, rank, seed=3) for rank in range(5)]
    assert listed(Assignment.collect(torchs, 37, epoch=4)) == listed(Assignment.collect(ours, 37, epoch=4))
    assert listed(Assignment.collect(ours, 37, epoch=4)) == listed(assign(37, 5, seed=3, epoch=4))
    ragged = Assignment.collect([[0, 1, 2], [], iter([3])], size=4)
    assert listed(ragged) == [[0, 1, 2], [], [3]]
    assert ragged.num_steps == 3


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("num_workers", [0, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on a machine of two cores
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 warns of it in any process with threads
def test_the_loader_on_top_is_torchs_data_loader(drop_last, num_workers):
    assignment = assign(57, 4, seed=1, epoch=2).with_loader(4, drop_last, num_workers)
    frame = assignment.to_frame()
    for rank in range(4):
        sampler = DistributedSampler(57, 4, rank, seed=1)
        sampler.set_epoch(2)
        loader = DataLoader(WhoReads(57), batch_size=4, sampler=sampler, drop_last=drop_last, num_workers=num_workers)
        batches, workers = [], []
        for index, worker in loader:
            batches.append(index.tolist())
            workers.append(set(worker.tolist()))
        predicted = frame[frame["rank"] == rank].groupby("batch")
        assert [rows["index"].tolist() for _, rows in predicted] == batches
        assert [set(rows["worker"]) for _, rows in predicted] == workers
        assert [batch.tolist() for batch in assignment.batches(rank)] == batches


def test_a_loader_keeps_the_incomplete_last_batch_unless_told_to_drop_it():
    assignment = assign(10, 2)
    assert listed(assignment.with_loader(4)) == listed(assignment)
    assert [indices.size for indices in assignment.with_loader(4, drop_last=True).ranks] == [4, 4]


def test_repeats_are_torchs_padding():
    assignment = assign(10, 4, seed=5)
    steps = [np.flatnonzero(repeated).tolist() for repeated in assignment.repeats()]
    assert steps == [[], [], [2], [2]]  # positions 10 and 11 of the order: step 2 of ranks 2 and 3
    counted_once: list[int] = []
    for indices, repeated in zip(assignment.ranks, assignment.repeats(), strict=True):
        counted_once += indices[~repeated].tolist()
    assert sorted(counted_once) == list(range(10))


def test_labels_are_counted_per_rank():
    counts = assign(5, 2, shuffle=False).count_labels(["b", "a", "b", "a", "a"])
    assert counts.tolist() == [[1, 2], [2, 1]]  # rank 0 reads b, b, a; rank 1 reads a, a, b


def test_the_frame_has_one_row_per_read():
    frame = assign(10, 4, shuffle=False, epoch=3).to_frame()
    assert list(frame.columns) == ["epoch", "rank", "step", "index"]
    assert frame[frame["rank"] == 3]["index"].tolist() == [3, 7, 1]
    assert set(frame["epoch"]) == {3}


def _one_rank_reads_all(recipe):
    return [np.arange(recipe.size)] + [np.arange(0)] * (recipe.num_replicas - 1)


@pytest.mark.parametrize(("setting", "value"), [("shuffle", False), ("seed", 3), ("epoch", 2), ("drop_last", True)])
def test_a_setting_that_a_sampler_does_not_have_must_be_at_its_default(monkeypatch, setting, value):
    reason = "rank 0 always reads everything"
    monkeypatch.setitem(SAMPLERS, "mine", Sampler("mine", _one_rank_reads_all, without_effect={setting: reason}))
    assert listed(assign(3, 2, sampler="mine")) == [[0, 1, 2], []]
    with pytest.raises(ValueError, match=f"{setting} .*{reason}"):
        assign(3, 2, sampler="mine", **{setting: value})


def test_a_sampler_that_never_shuffles_may_be_told_so(monkeypatch):
    kind = Sampler("mine", _one_rank_reads_all, False, {"shuffle": "rank 0 always reads everything"})
    monkeypatch.setitem(SAMPLERS, "mine", kind)
    for shuffle in (True, False):
        assert assign(3, 2, sampler="mine", shuffle=shuffle).shuffle is False


@pytest.mark.parametrize("num_arrays", [0, 1, 3])
def test_a_sampler_must_return_indices_for_each_rank(monkeypatch, num_arrays):
    kind = Sampler("mine", lambda recipe: [np.arange(recipe.size)] * num_arrays)
    monkeypatch.setitem(SAMPLERS, "mine", kind)
    with pytest.raises(ValueError, match=f"2 ranks, got {num_arrays}"):
        assign(3, 2, sampler="mine")


def test_an_assignment_cannot_be_changed():
    assignment = assign(10, 2)
    with pytest.raises(ValueError, match="read-only"):
        assignment.ranks[0][0] = 5
    array = torch.arange(4).numpy()
    Assignment(4, (array,))
    array[0] = 3  # the caller's array can still be written


def test_numpy_integers_lists_and_arrays_are_taken_alike():
    assignment = Assignment(np.int64(3), ([0, 1, 2],), epoch=np.int64(1), seed=np.uint8(2))
    assert (assignment.size, assignment.epoch, assignment.seed) == (3, 1, 2)
    assert listed(Assignment(4, np.arange(4).reshape(2, 2))) == [[0, 1], [2, 3]]
    assert listed(Assignment.collect((iter([i]) for i in range(2)), size=2)) == [[0], [1]]
    mixed = Assignment(4, (np.array([0, 1], dtype=np.uint64), np.array([2, 3])))
    assert np.issubdtype(np.concatenate(mixed.ranks).dtype, np.integer)


# ---- shards of a file list


def test_shards_are_exclusive_complete_and_ragged():
    for num_files, num_trainers in [(0, 3), (2, 5), (10, 1), (1000, 8), (1000, 7)]:
        files = [f"part-{i:05d}" for i in range(num_files)]
        shards = [shard_files(files, num_trainers, trainer, seed=3) for trainer in range(num_trainers)]
        assert sorted(itertools.chain(*shards)) == files
        assert max(map(len, shards)) - min(map(len, shards)) <= 1
        order = shard_files(files, 1, 0, seed=3)
        assert shards == [order[trainer::num_trainers] for trainer in range(num_trainers)]


def test_the_listing_order_does_not_matter_and_the_seed_does():
    files = [Path(f"part-{i:05d}") for i in range(1000)]
    mixed = random.Random(0).sample(files, len(files))
    assert shard_files(mixed, 8, 3) == shard_files(files, 8, 3) != sorted(files)[3::8]
    assert shard_files(files, 8, 3, seed=1) != shard_files(files, 8, 3)
    lost = set(files) - {name for trainer in range(8) for name in shard_files(files, 8, trainer, seed=trainer)}
    assert len(lost) > 200  # what one seed a trainer would cost


def test_collecting_leaves_a_wrapped_sampler_where_it_is():
    resumed = KeyedSampler(10, 1, 0)
    resumed.load_state_dict(resumed.state_after(4))
    Assignment.collect([BatchSampler(resumed, 2, drop_last=False)], 10)
    assert len(list(resumed)) == 6


def test_a_sampler_that_draws_from_torchs_generator_has_another_order_in_each_epoch():
    orders = [Assignment.collect([RandomSampler(range(50))], 50, epoch).ranks[0].tolist() for epoch in range(2)]
    assert orders[0] != orders[1]


def test_a_notebook_shows_a_drawing_unless_it_would_be_too_large():
    assert repr(assign(10, 4, epoch=3)) == "<Assignment: 10 samples, 4 ranks, 3 steps, sampler torch, epoch 3>"
    assert assign(10, 4)._repr_svg_().startswith("<svg")
    assert assign(10**6, 4)._repr_svg_() is None
