"""Assignments: every maker, the loader on top, the stored form, bad input; and shards of a file list."""

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


@pytest.mark.parametrize(
    "assignment",
    [
        assign(100, 8, seed=3, epoch=2),
        assign(3, 8, drop_last=True),
        assign(50, 4).with_loader(3, drop_last=True, num_workers=2),
        Assignment(5, (np.array([4, 0]), np.array([], dtype=int))),
    ],
)
def test_the_stored_form_comes_back_the_same(assignment, tmp_path):
    loaded = Assignment.load(assignment.save(tmp_path / "epoch.npz"))
    assert listed(loaded) == listed(assignment)
    for name in ("size", "sampler", "shuffle", "seed", "epoch", "drop_last", "loader"):
        assert getattr(loaded, name) == getattr(assignment, name)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch.npz"]


def test_a_damaged_file_is_one_clear_error(tmp_path):
    path = assign(10, 2).save(tmp_path / "epoch.npz")
    with np.load(path) as stored:
        columns = dict(stored)
    header, flat = str(columns["header"]), columns["indices"]
    replacements = [
        ('"version": 1', '"version": 2'),
        ("rankscope.assignment", "somebody.else"),
        ('"seed"', '"sead"'),
        ('"size": 10', '"size": -10'),
        ('"epoch": 0', '"epoch": "x"'),
        ('"seed": 0', '"seed": [1]'),
        ('"sampler": "torch"', '"sampler": 5'),
        (header, "{"),
        (header, "[]"),
        (header, "[" * 100_000),
    ]
    for changed in (
        *({"header": np.array(header.replace(*replacement))} for replacement in replacements),
        {"lengths": columns["lengths"][None]},
        {"lengths": columns["lengths"][:0], "indices": flat[:0]},
        {"lengths": np.array([-1, flat.size + 1])},
        {"indices": flat[:-1]},
        {"indices": flat + 0.5},
        {"indices": np.array([{"a": 1}] * flat.size)},
    ):
        np.savez(path, **columns | changed)
        with pytest.raises(
            ValueError, match="epoch.npz: not a readable rankscope.assignment of version 1 or 2"
        ) as error:
            Assignment.load(path)
        assert "\n" not in str(error.value), changed


# ---- bad input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: assign(-1, 2), "size must be a whole number from 0 to 268435456, got -1"),
        (lambda: assign(10, True), "num_replicas .* got True"),
        (lambda: assign(10, 2, sampler="grain"), "sampler must be one of 'torch', .* got 'grain'"),
        (lambda: assign(10, 2, epoch=0.5), "epoch must be a whole number, got 0.5"),
        (lambda: assign(10, 2, epoch=-1, sampler="libtorch_random"), "epoch .* at least 0, got -1"),
        (
            lambda: assign(10, 2, seed=1, sampler="libtorch_random"),
            "seed must be 0 for libtorch_random, got 1: libtorch's .* no seed$",
        ),
        (lambda: assign(10, 2, shuffle=False, sampler="libtorch_random"), "shuffle must be True for libtorch_random"),
        (lambda: assign(10, 2, seed=2**64), "seed must be"),
        (lambda: assign(10, 2, seed=2**64 - 1, epoch=1), r"seed \+ epoch must be"),
        (lambda: assign(10, 2, shuffle="no"), "shuffle must be True or False, got 'no'"),
        (lambda: assign(10, 2, drop_last=None), "drop_last must be True or False, got None"),
        (lambda: assign(10, 2).batches(2), "rank must be a whole number from 0 to 1, got 2"),
        (lambda: assign(10, 2).with_loader(0), "batch_size must be a whole number of at least 1, got 0"),
        (lambda: assign(10, 2).with_loader(2).with_loader(2), "has a loader already"),
        (lambda: assign(5, 2).count_labels("abab"), "labels must have the dataset's length 5, got shape"),
        (lambda: assign(3, 8, sampler="libtorch_random").count_labels([0, 1, 2]), "reads outside the dataset's 3 samp"),
        (lambda: Assignment(3, ([-1, 0],)).count_labels([0, 1, 2]), "rank 0 reads outside the dataset's 3 samples"),
        (lambda: Assignment(3, ()), "at least one rank"),
        (lambda: Assignment(3, None), "ranks must be a list of a rank's indices each, got None"),
        (lambda: Assignment(3, ([0], [0.5])), "rank 1 must read a 1-D array of integers, got float64"),
        (lambda: Assignment(3, (np.array([2**63], np.uint64),)), r"rank 0 must read indices below 2\*\*63, got 922337"),
        (lambda: Assignment(3, ([0],), loader=4), "loader must be a Loader, got 4"),
        (lambda: Assignment.collect(4, size=4), "samplers must be a list of a rank's sampler each, got 4"),
        (lambda: Assignment.collect([[0, 1], None], size=2), "rank 1's sampler must be iterable, got None"),
        (lambda: Assignment.collect([range, range], size=2), "rank 0's sampler must be iterable, got <class 'range'>"),
        (lambda: Assignment.collect([[0, 1], [0.5]], size=2), "rank 1's sampler must yield whole numbers"),
        (lambda: Assignment.collect([[None, 1]], size=2), "rank 0's sampler must yield whole numbers"),
        (
            lambda: Assignment.collect([[0], [0, 2**63]], size=2),
            "rank 1's sampler must yield whole numbers of 64 bits",
        ),
        (lambda: shard_files(["a"], 0, 0), "num_trainers must be a whole number of at least 1, got 0"),
        (lambda: shard_files(["a"], 2, 2), "trainer_id must be a whole number from 0 to 1, got 2"),
        (lambda: shard_files(["a"], 2, 0, None), "seed must be .* got None"),
        (lambda: shard_files(None, 2, 0), "files must be a list of file names, got None"),
        (lambda: shard_files(["a", 1], 2, 0), "files must be names or paths of files, got 1"),
        (lambda: shard_files("a.npz", 2, 0), "files must be a list of file names, got the single name 'a.npz'"),
        (lambda: shard_files(["b", "a", "b"], 2, 0), "files must differ from each other, got 'b' twice"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def _one_rank_reads_all(recipe):
    return [np.arange(recipe.size)] + [np.arange(0)] * (recipe.num_replicas - 1)


@pytest.mark.parametrize(("setting", "value"), [("shuffle", False), ("seed", 3), ("epoch", 2), ("drop_last", True)])
def test_a_setting_that_a_sampler_does_not_have_must_be_at_its_default(monkeypatch, setting, value):
    reason = "rank 0 always reads everything"
    monkeypatch.setitem(SAMPLERS, "mine", Sampler("mine", _one_rank_reads_all, without_effect={setting: reason}))
    assert listed(assign(3, 2, sampler="mine")) == [[0, 1, 2], []]
    with pytest.raises(ValueError, match=f"^{setting} must be .* for mine, got {value}: {reason}$"):
        assign(3, 2, sampler="mine", **{setting: value})


def test_a_sampler_that_never_shuffles_may_be_told_so(monkeypatch):
    kind = Sampler("mine", _one_rank_reads_all, False, {"shuffle": "rank 0 always reads everything"})
    monkeypatch.setitem(SAMPLERS, "mine", kind)
    for shuffle in (True, False):
        assert assign(3, 2, sampler="mine", shuffle=shuffle).shuffle is False


def test_a_sampler_without_a_setting_must_name_one_that_exists():
    with pytest.raises(ValueError, match="without_effect may contain only shuffle, seed, epoch, drop_last, got"):
        Sampler("mine", _one_rank_reads_all, without_effect={"sead": "a slip"})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"title": 3}, "title of Sampler must be a str, got 3"),
        ({"indices": "torch"}, "indices of Sampler must be a function of an EpochRecipe that returns .*, got 'torch'"),
        ({"always_shuffles": "no"}, "always_shuffles of Sampler must be True or False, got 'no'"),
        ({"without_effect": ["seed"]}, r"without_effect must be a mapping, got \['seed'\]"),
    ],
)
def test_a_sampler_names_the_field_that_is_wrong(fields, message):
    with pytest.raises(ValueError, match=message):
        Sampler(**{"title": "mine", "indices": _one_rank_reads_all, **fields})


@pytest.mark.parametrize("num_arrays", [0, 1, 3])
def test_a_sampler_must_return_indices_for_each_rank(monkeypatch, num_arrays):
    kind = Sampler("mine", lambda recipe: [np.arange(recipe.size)] * num_arrays)
    monkeypatch.setitem(SAMPLERS, "mine", kind)
    with pytest.raises(
        ValueError, match=f"'mine' must return an array of indices for each of 2 ranks, got {num_arrays}"
    ):
        assign(3, 2, sampler="mine")


@pytest.mark.parametrize("lengths", [["a", "b"], [1.0, float("nan")], [1, None]])
def test_packed_documents_need_lengths_that_are_numbers(lengths):
    with pytest.raises(ValueError, match="lengths must be a 1-D array of whole numbers, one for each sample, got"):
        assign(2, 1, sampler="packed", lengths=lengths)


def test_packs_are_by_default_as_long_as_the_longest_document():
    epoch = assign(3, 1, sampler="packed", lengths=[3, 1, 2], shuffle=False)
    assert epoch.padded_to == 3
    assert [batch.tolist() for batch in epoch.batches(0)] == [[0], [1, 2]]
    assert assign(2, 1, sampler="packed", lengths=[0, 0]).padded_to == 1


def test_as_many_ranks_as_an_assignment_may_have(monkeypatch):
    monkeypatch.setattr("rankscope.sampling.assignment.MOST_RANKS", 3)
    assert Assignment(1, [[0]] * 3).num_ranks == 3
    with pytest.raises(ValueError, match="an assignment must have at most 3 ranks, got more"):
        Assignment(1, [[0]] * 4)
    highest = 2**63 - 1
    assert Assignment(1, [np.array([highest], dtype=np.uint64)]).ranks[0].tolist() == [highest]
    with pytest.raises(ValueError, match="rank 0 must read indices below 2..63, got 9223372036854775808"):
        Assignment(1, [np.array([highest + 1], dtype=np.uint64)])


def test_an_assignment_cannot_be_changed():
    assignment = assign(10, 2)
    with pytest.raises(ValueError, match="read-only"):
        assignment.ranks[0][0] = 5
    array = torch.arange(4).numpy()
    Assignment(4, (array,))
    array[0] = 3  # the caller's array can still be written


def test_numpy_integers_lists_and_arrays_are_taken_alike(tmp_path):
    assignment = Assignment(np.int64(3), ([0, 1, 2],), epoch=np.int64(1), seed=np.uint8(2)).with_loader(np.int64(2))
    loaded = Assignment.load(assignment.save(tmp_path / "a.npz"))
    assert (loaded.size, loaded.epoch, loaded.seed, loaded.loader) == (3, 1, 2, assignment.loader)
    assert listed(Assignment(4, np.arange(4).reshape(2, 2))) == [[0, 1], [2, 3]]
    assert listed(Assignment.collect((iter([i]) for i in range(2)), size=2)) == [[0], [1]]
    mixed = Assignment(4, (np.array([0, 1], dtype=np.uint64), np.array([2, 3])))
    assert mixed.to_frame()["index"].tolist() == [0, 1, 2, 3]
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
