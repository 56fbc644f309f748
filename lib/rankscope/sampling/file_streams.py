"""`stream_files`: the reads of loaders that stream files of many rows, whose order is only locally random.

Formats for large datasets read files from the front to the back, so they cannot jump to any row. They mix the order of
the files and, locally, the rows. `mixing` compares what that leaves of a true shuffle.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.checks import of_type, one_of, several, whole
from .assignment import MOST_RANKS, MOST_SAMPLES, Assignment
from .keyed import KeyedPermutation
from .permutation import SEEDS

METHODS = ("buffer", "block")


def stream_files(
    file_rows: Iterable[int],
    num_replicas: int,
    *,
    method: str = "buffer",
    buffer_size: int = 1000,
    initial: int = 100,
    seed: int = 0,
    epoch: int = 0,
) -> Assignment:
    """Return what each rank reads in an epoch of files with so many rows each, if it streams them.

    Sample i is row i of all files in their given order. The order of the files is random in each epoch.

    - "buffer", as in WebDataset: rank r of N streams every N-th file, beginning with file r of the order. Rows pass
      through a shuffle buffer of `buffer_size` rows, from which a random one is taken each time, as soon as it has
      `initial` rows. Ranks read different numbers of rows unless the files divide evenly.
    - "block", as the "py1b" shuffle of mosaicml-streaming with one canonical node: the rows of all files in a row are
      cut into blocks of `buffer_size`, and each block is shuffled. Rank r reads the r-th of equal, contiguous parts,
      padded from the beginning.

    The random numbers are our own, except that "buffer" draws from the buffer as WebDataset does from
    ``random.Random(seed)``, with the seed ``f"{seed} {epoch} {rank}"``.

    Sources: webdataset/filters.py, `_shuffle` and `pick`; streaming/base/shuffle/py1b.py, `get_shuffle_py1b`.

    >>> epoch = stream_files([4, 4], 2, buffer_size=1)
    >>> [indices.tolist() for indices in epoch.ranks]
    [[4, 5, 6, 7], [0, 1, 2, 3]]
    """
    rows = [
        whole("file_rows", number, 0, MOST_SAMPLES) for number in several("file_rows", file_rows, "numbers of rows")
    ]
    size = whole("the rows of all files", sum(rows), 0, MOST_SAMPLES)
    num_replicas = whole("num_replicas", num_replicas, 1, MOST_RANKS)
    one_of("method", method, METHODS)
    buffer_size = whole("buffer_size", buffer_size, 1)
    initial = min(whole("initial", initial, 1), buffer_size)
    seed = whole("seed", seed, *SEEDS)
    epoch = whole("epoch", epoch, 0)
    starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
    order = KeyedPermutation(len(rows), f"files of seed {seed}, epoch {epoch}")(np.arange(len(rows)))
    files = [np.arange(starts[file], starts[file + 1]) for file in order]
    none = np.empty(0, dtype=np.int64)
    ranks: list[NDArray[np.int64]] = []
    if method == "buffer":
        for rank in range(num_replicas):
            stream = np.concatenate([none, *files[rank::num_replicas]])
            ranks.append(_through_buffer(stream, buffer_size, initial, random.Random(f"{seed} {epoch} {rank}")))
    else:
        mixed = _in_blocks(np.concatenate([none, *files]), buffer_size, f"seed {seed}, epoch {epoch}")
        count = -(-size // num_replicas)
        places = np.arange(count * num_replicas)
        if size:
            places %= size
        ranks = list(mixed[places].reshape(num_replicas, count))
    return Assignment(size, tuple(ranks), sampler=f"stream by {method}", seed=seed, epoch=epoch)


def _through_buffer(
    stream: NDArray[np.int64], buffer_size: int, initial: int, draw: random.Random
) -> NDArray[np.int64]:
    """Return a stream in the order in which WebDataset's shuffle returns it."""
    rows = iter(stream.tolist())
    buffer: list[int] = []
    mixed: list[int] = []

    def take() -> None:
        place = draw.randint(0, len(buffer) - 1)
        mixed.append(buffer[place])
        buffer[place] = buffer[-1]
        buffer.pop()

    for row in rows:
        buffer.append(row)
        if len(buffer) < buffer_size:  # it grows by two rows for each that is taken
            buffer.extend(_next_row(rows))
        if len(buffer) >= initial:
            take()
    while buffer:
        take()
    return np.array(mixed, dtype=np.int64)


def _next_row(rows: Any) -> list[int]:
    for row in rows:
        return [row]
    return []


def _in_blocks(stream: NDArray[np.int64], block_size: int, key: str) -> NDArray[np.int64]:
    mixed = stream.copy()
    for number, start in enumerate(range(0, stream.size, block_size)):
        block = stream[start : start + block_size]
        mixed[start : start + block_size] = block[
            KeyedPermutation(block.size, f"block {number} of {key}")(np.arange(block.size))
        ]
    return mixed


class Mixing(NamedTuple):
    """How far an order is from a true shuffle of the same files on as many ranks.

    `same_file` is the share of neighbouring reads of a rank that are of one file, and `same_file_if_shuffled` what it
    is in a true shuffle. `files_per_batch` is the mean number of different files in a batch, and
    `files_per_batch_if_shuffled` its expectation. `correlation` is that of the sample numbers of neighbouring reads, 0
    in a true shuffle. `coverage` is the share of the dataset that is read.
    """

    same_file: float
    same_file_if_shuffled: float
    files_per_batch: float
    files_per_batch_if_shuffled: float
    correlation: float
    coverage: float


def mixing(assignment: Assignment, file_rows: Iterable[int], batch_size: int = 32) -> Mixing:
    """Compare the order of an assignment with a true shuffle. Incomplete batches are left out.

    Raises ValueError if the files do not have as many rows as the dataset has samples, or a rank reads outside it.

    >>> from rankscope.sampling import assign
    >>> shuffled = mixing(assign(6400, 4), [100] * 64)
    >>> f"{shuffled.same_file:.2f}, expected {shuffled.same_file_if_shuffled:.2f}"
    '0.02, expected 0.02'
    """
    of_type("assignment", assignment, Assignment)
    batch_size = whole("batch_size", batch_size, 1)
    rows = np.array([whole("file_rows", number, 0) for number in several("file_rows", file_rows, "numbers of rows")])
    if int(rows.sum()) != assignment.size:
        raise ValueError(f"file_rows must add up to the dataset's {assignment.size} samples, got {int(rows.sum())}")
    file_of = np.repeat(np.arange(rows.size), rows)
    num_same = 0
    num_neighbours = 0
    firsts = []
    seconds = []
    num_files = []
    is_read = np.zeros(assignment.size, dtype=bool)
    for rank, indices in enumerate(assignment.ranks):
        if indices.size and (indices.min() < 0 or indices.max() >= assignment.size):
            raise ValueError(f"rank {rank} reads outside the dataset's {assignment.size} samples")
        is_read[indices] = True
        files = file_of[indices]
        num_same += int((files[1:] == files[:-1]).sum())
        num_neighbours += max(indices.size - 1, 0)
        firsts.append(indices[:-1])
        seconds.append(indices[1:])
        batches = np.sort(files[: files.size // batch_size * batch_size].reshape(-1, batch_size), axis=1)
        num_files += (1 + (np.diff(batches, axis=1) != 0).sum(axis=1)).tolist()
    size = assignment.size
    shares = rows / max(size, 1)
    expected_same = float((shares * (rows - 1)).sum() / (size - 1)) if size > 1 else 1.0
    return Mixing(
        same_file=num_same / max(num_neighbours, 1),
        same_file_if_shuffled=expected_same,
        files_per_batch=float(np.mean(num_files)) if num_files else 0.0,
        files_per_batch_if_shuffled=_expected_files(rows, batch_size),
        correlation=_correlation(np.concatenate(firsts), np.concatenate(seconds)),
        coverage=float(is_read.mean()) if size else 1.0,
    )


def _expected_files(rows: NDArray[np.int64], batch_size: int) -> float:
    """Return how many different files a random batch has: for each file, the chance that it is in it."""
    size = int(rows.sum())
    if batch_size > size:
        return 0.0
    is_missing = np.ones(rows.size)
    for drawn in range(batch_size):
        is_missing *= np.maximum(size - rows - drawn, 0) / (size - drawn)
    return float((1 - is_missing).sum())


def _correlation(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    if first.size < 2 or first.std() == 0 or second.std() == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])
