"""Assignments: every maker, rows by name, the loader on top; and shards of a file list."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data import DistributedSampler as TorchDistributedSampler

from rankscope.sampling import (
    Assignment,
    DistributedSampler,
    assign,
    audit,
    shard_files,
)


class WhoReads(Dataset):
    """Each sample says its index and the worker that read it."""

    def __len__(self):
        return 57

    def __getitem__(self, index):
        info = get_worker_info()
        return index, -1 if info is None else info.id


def listed(assignment):
    return [indices.tolist() for indices in assignment.ranks]


def test_collect_takes_any_sampler_ragged_too():
    torchs = [TorchDistributedSampler(range(37), 5, rank, seed=3) for rank in range(5)]
    ours = [DistributedSampler(37, 5, rank, seed=3) for rank in range(5)]
    assert listed(Assignment.collect(torchs, 37, epoch=4)) == listed(Assignment.collect(ours, 37, epoch=4))
    assert listed(Assignment.collect(ours, 37, epoch=4)) == listed(assign(37, 5, seed=3, epoch=4))
    ragged = Assignment.collect([[0, 1, 2], [], iter([3])], size=4)
    assert listed(ragged) == [[0, 1, 2], [], [3]]
    assert ragged.num_steps == 3
    batched = Assignment.collect([[[0], torch.tensor([1, 2])], []], 3)
    assert [[batch.tolist() for batch in batched.batches(rank)] for rank in (0, 1)] == [[[0], [1, 2]], []]


def test_rows_are_counted_by_a_key_over_all_ranks():
    """As in datasets#8568: every rank reads everything after a skip, and nobody reads the first row."""

    def counted(parts):
        ranks = [[{"id": ("train", f"row {number}"), "text": [1, 2]} for number in part] for part in parts]
        return audit(Assignment.collect(ranks, size=16, key=lambda row: row["id"]))

    assert not counted([range(0, 16, 2), range(1, 16, 2)]).findings
    wrong = counted([range(1, 16), range(1, 16)])
    assert (wrong.duplicates, wrong.overlap, wrong.dropped) == (15, 15, 1)


def test_rows_of_a_loader_come_in_batches():
    loaders = [DataLoader([{"id": number} for number in range(rank, 16, 2)], batch_size=3) for rank in range(2)]
    collected = Assignment.collect(loaders, size=16, key=lambda batch: batch["id"])
    assert [len(batch) for batch in collected.batches(1)] == [3, 3, 2]
    assert not audit(collected).findings


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("num_workers", [0, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on a machine of two cores
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 warns of it in any process with threads
def test_the_loader_on_top_is_torchs_data_loader(drop_last, num_workers):
    assignment = assign(57, 4, seed=1, epoch=2).with_loader(4, drop_last, num_workers)
    for rank in range(4):
        sampler = DistributedSampler(57, 4, rank, seed=1)
        sampler.set_epoch(2)
        loader = DataLoader(WhoReads(), batch_size=4, sampler=sampler, drop_last=drop_last, num_workers=num_workers)
        batches = [(index.tolist(), set(worker.tolist())) for index, worker in loader]
        assert [batch for batch, _ in batches] == [batch.tolist() for batch in assignment.batches(rank)]
        worker_of_batch = [{number % num_workers if num_workers else -1} for number in range(len(batches))]
        assert [workers for _, workers in batches] == worker_of_batch


def test_a_sampler_that_never_shuffles_may_be_told_so():
    for shuffle in (True, False):
        assert assign(3, 2, sampler="libtorch_sequential", shuffle=shuffle).shuffle is False


def test_an_assignment_cannot_be_changed():
    assignment = assign(10, 2)
    with pytest.raises(ValueError, match="read-only"):
        assignment.ranks[0][0] = 5
    with pytest.raises(AttributeError):
        assignment.size = 3
    array = torch.arange(4).numpy()
    Assignment(4, (array,))
    array[0] = 3  # the caller's array can still be written
    mixed = Assignment(4, (np.array([0, 1], dtype=np.uint64), [2, 3]))
    assert np.issubdtype(np.concatenate(mixed.ranks).dtype, np.integer)


# ---- shards of a file list


def test_the_listing_order_does_not_matter_and_the_seed_does():
    files = [Path(f"part-{i:05d}") for i in range(1000)]
    mixed = random.Random(0).sample(files, len(files))
    assert shard_files(mixed, 8, 3) == shard_files(files, 8, 3) != sorted(files)[3::8]
    assert shard_files(files, 8, 3, seed=1) != shard_files(files, 8, 3)


def test_a_notebook_shows_a_drawing_whatever_the_size():
    assert repr(assign(10, 4, epoch=3)) == "<Assignment: 10 samples, 4 ranks, 3 steps, sampler torch, epoch 3>"
    assert assign(10, 4)._repr_svg_().startswith("<svg")
    assert len(assign(10**6, 4)._repr_svg_()) < 80_000
