"""`shard_files`: the files that each trainer reads."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import pairwise
from typing import TypeVar

from ...common.checks import several, whole
from .permutation import SEEDS, torch_order_blocks

Name = TypeVar("Name", bound=str | os.PathLike[str])


def shard_files(files: Iterable[Name], num_trainers: int, trainer_id: int, seed: int = 0) -> list[Name]:
    """Return the files of one trainer, whose positions in the shuffled list are `trainer_id` modulo `num_trainers`.

    The list is sorted before it is shuffled, because file systems list a folder in different orders, and shards of
    differently ordered lists overlap and lose files. For the same reason all trainers must pass the same `seed`. The
    lengths of the shards differ by at most one; with fewer files than trainers, some shards are empty. The shuffle is
    that of ``torch.randperm(len(files))`` after ``manual_seed(seed)``.

    Raises ValueError if `trainer_id` is outside 0 … num_trainers - 1, if a file is listed twice (two trainers would
    read it), or if `files` is a single name.

    >>> [shard_files(["a", "b", "c", "d", "e"], 2, trainer) for trainer in range(2)]
    [['e', 'b', 'c'], ['a', 'd']]
    """
    num_trainers = whole("num_trainers", num_trainers, 1)
    trainer_id = whole("trainer_id", trainer_id, 0, num_trainers - 1)
    ordered = sorted(several("files", files, "file names"), key=os.fspath)
    for name, next_name in pairwise(map(os.fspath, ordered)):
        if name == next_name:
            raise ValueError(f"files must differ from each other, got {name!r} twice")
    blocks = torch_order_blocks(len(ordered), whole("seed", seed, *SEEDS), len(ordered))
    shuffled = [ordered[index] for block in blocks for index in block.tolist()]
    return shuffled[trainer_id::num_trainers]
