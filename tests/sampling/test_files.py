"""Shards of a file list: exclusive, complete, ragged, the same whatever order a folder lists in."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from rankscope.sampling import shard_files


@pytest.mark.parametrize(("num_files", "num_trainers"), [(0, 3), (2, 5), (10, 1), (1000, 8), (1000, 7)])
def test_shards_are_exclusive_complete_and_ragged(num_files, num_trainers):
    files = [f"part-{i:05d}" for i in range(num_files)]
    shards = [shard_files(files, num_trainers, trainer, seed=3) for trainer in range(num_trainers)]
    assert sorted(itertools.chain(*shards)) == files
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_it_is_index_modulo_trainers_of_one_shuffled_list():
    files = [f"part-{i:05d}" for i in range(100)]
    (order,) = [shard_files(files, 1, 0, seed=5)]
    assert order != files
    assert [shard_files(files, 3, trainer, seed=5) for trainer in range(3)] == [order[t::3] for t in range(3)]


def test_the_listing_order_does_not_matter_and_the_seed_does():
    files = [Path(f"part-{i:05d}") for i in range(1000)]
    mixed = random.Random(0).sample(files, len(files))
    assert shard_files(mixed, 8, 3) == shard_files(files, 8, 3)
    assert shard_files(files, 8, 3, seed=1) != shard_files(files, 8, 3)
    lost = set(files) - {name for trainer in range(8) for name in shard_files(files, 8, trainer, seed=trainer)}
    assert len(lost) > 200  # what one seed a trainer would cost


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a"], 0, 0), "num_trainers must be a whole number of at least 1, got 0"),
        ((["a"], 2, 2), "trainer_id must be a whole number from 0 to 1, got 2"),
        ((["a"], 2, 0.5), "trainer_id .* got 0.5"),
        ((None, 2, 0), "files must be a list of file names, got None"),
        ((["a", 1], 2, 0), "files must be names or paths of files, got 1"),
        (("a.npz", 2, 0), "files must be a list of file names, got the single name 'a.npz'"),
        ((["b", "a", "b"], 2, 0), "files must differ from each other, got 'b' twice"),
        ((["a"], 2, 0, None), "seed must be .* got None"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        shard_files(*arguments)
