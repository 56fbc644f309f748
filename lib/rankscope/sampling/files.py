"""Which trainer reads which file: exclusive shards of a list that every trainer shuffles alike."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import pairwise
from typing import TypeVar

from ..values.checks import several, whole
from .permutation import torch_order

Name = TypeVar("Name", str, os.PathLike[str])


def shard_files(files: Iterable[Name], num_trainers: int, trainer_id: int, seed: int = 0) -> list[Name]:
    """Return the files of one trainer: those whose place in the shuffled list is `trainer_id` modulo `num_trainers`.

    The list is sorted before it is shuffled, because trainers list a folder in whatever order their file system
    gives, and shards of differently ordered lists overlap and lose files. For the same reason all trainers must
    pass the same `seed`. Shards are ragged: their lengths differ by at most one, and with fewer files than
    trainers some are empty. The shuffle is that of ``torch.randperm(len(files))`` after ``manual_seed(seed)``.

    Raises ValueError for a trainer_id outside [0, num_trainers - 1], for a file that is listed twice (two trainers
    would read it), and for one string in place of a list.

    >>> [shard_files(["a", "b", "c", "d", "e"], 2, trainer) for trainer in range(2)]
    [['e', 'b', 'c'], ['a', 'd']]
    """
    if isinstance(files, (str, bytes, os.PathLike)):
        raise ValueError(f"files must be a list of file names, got the single name {files!r}")
    num_trainers = whole("num_trainers", num_trainers, 1)
    trainer_id = whole("trainer_id", trainer_id, 0, num_trainers - 1)
    ordered = several("files", files, "file names")
    for file in ordered:
        if not isinstance(file, str | os.PathLike):
            raise ValueError(f"files must be names or paths of files, got {file!r}")
    ordered.sort(key=os.fspath)
    twice = next((one for one, other in pairwise(ordered) if os.fspath(one) == os.fspath(other)), None)
    if twice is not None:
        raise ValueError(f"files must differ from each other, got {os.fspath(twice)!r} twice")
    order = torch_order(len(ordered), whole("seed", seed, -(2**63), 2**64 - 1))
    return [ordered[i] for i in order[trainer_id::num_trainers].tolist()]
