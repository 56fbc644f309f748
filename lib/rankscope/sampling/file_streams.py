"""`stream_files`: the reads of loaders that stream files of many rows, whose order is only locally random.

Formats for large datasets read files from the front to the back, so they cannot jump to any row. They mix the order of
the files and, locally, the rows. `mixing` compares what that leaves of a true shuffle.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.checks import of_type, one_of, several, whole
from .assignment import MOST_SAMPLES, Assignment
from .elastic import MOST_RANKS
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
    num_nodes: int = 1,
    seed: int = 0,
    epoch: int = 0,
) -> Assignment:
    """Return the samples that each rank reads in an epoch if it streams files with these numbers of rows.

    Sample i is row i of all files in their given order. The order of the files is random in each epoch.

    - "buffer", as in WebDataset: rank r of N streams every N-th file, beginning with file r of the order. Rows pass
      through a shuffle buffer of `buffer_size` rows, from which a random one is taken each time, as soon as it has
      `initial` rows. Ranks read different numbers of rows unless the files divide evenly.
    - "block": the same indices as mosaicml-streaming with its "py1b" shuffle. Each of `num_nodes` nodes streams its own
      part of the files, which is the same in every epoch. Its rows are cut into blocks of `buffer_size`, and each block
      is shuffled. The ranks of a node read its rows in turn. Rows near the end are repeated until all ranks have the
      same number.

    With "buffer", the order of the files is our own. The buffer draws as WebDataset does from ``random.Random(seed)``,
    with the seed ``f"{seed} {epoch} {rank}"``.

    Raises ValueError if a number is out of range or `num_nodes` does not divide the number of ranks.

    Sources: webdataset/filters.py, `_shuffle` and `pick`; streaming/base/shuffle/py1b.py, `get_shuffle_py1b`;
    streaming/base/partition/orig.py, `get_partitions_orig`.

    >>> epoch = stream_files([4, 4], 2, buffer_size=1)
    >>> [indices.tolist() for indices in epoch.ranks]
    [[4, 5, 6, 7], [0, 1, 2, 3]]
    >>> epoch = stream_files([4, 4], 2, method="block", buffer_size=1)
    >>> [indices.tolist() for indices in epoch.ranks]
    [[0, 2, 4, 6], [1, 3, 5, 7]]
    """
    num_rows = _checked_rows(file_rows)
    size = whole("the rows of all files", sum(num_rows), 0, MOST_SAMPLES)
    num_replicas = whole("num_replicas", num_replicas, 1, MOST_RANKS)
    one_of("method", method, METHODS)
    buffer_size = whole("buffer_size", buffer_size, 1)
    initial = min(whole("initial", initial, 1), buffer_size)  # a buffer cannot wait for more than it holds
    num_nodes = whole("num_nodes", num_nodes, 1, num_replicas)
    if num_replicas % num_nodes:
        raise ValueError(f"num_nodes must divide the number of ranks, {num_replicas}, got {num_nodes}")
    if method == "buffer" and num_nodes > 1:
        raise ValueError(f"num_nodes must be 1 with method 'buffer', where only ranks count, got {num_nodes}")
    seed = whole("seed", seed, 0, SEEDS[1])  # numpy's generators take no seed below 0
    epoch = whole("epoch", epoch, 0)
    stops = np.cumsum(num_rows, dtype=np.int64).tolist()
    spans = [_FileRows(stop - number, stop) for number, stop in zip(num_rows, stops, strict=True)]
    ranks: list[NDArray[np.int64]] = []
    if method == "buffer":
        order = KeyedPermutation(len(spans), f"files of seed {seed}, epoch {epoch}")(np.arange(len(spans))).tolist()
        for rank in range(num_replicas):
            stream = _rows_of([spans[file] for file in order[rank::num_replicas]])
            ranks.append(_through_buffer(stream, buffer_size, initial, random.Random(f"{seed} {epoch} {rank}")))
    else:
        mixed = _in_blocks(spans, num_nodes, buffer_size, seed, epoch)
        for positions in _positions_of_nodes(size, num_nodes):
            ranks += _in_turn(mixed[positions], num_replicas // num_nodes)
    return Assignment(size, tuple(ranks), sampler=f"stream by {method}", seed=seed, epoch=epoch)


class _FileRows(NamedTuple):
    """Rows of one file: the samples from `start` to ``stop - 1``."""

    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        return self.stop - self.start


def _checked_rows(file_rows: Iterable[int]) -> list[int]:
    """Return the number of rows of each file."""
    counts = several("file_rows", file_rows, "numbers of rows")
    return [whole("file_rows", count, 0, MOST_SAMPLES) for count in counts]


def _rows_of(spans: Iterable[_FileRows]) -> NDArray[np.int64]:
    """Return the rows of files, one file after the other."""
    return np.concatenate([np.empty(0, dtype=np.int64), *[np.arange(*span) for span in spans]])


def _through_buffer(
    stream: NDArray[np.int64], buffer_size: int, initial: int, draw: random.Random
) -> NDArray[np.int64]:
    """Return a stream in the order in which WebDataset's shuffle returns it.

    Rows are taken from the buffer once it has `initial` rows. Until it is full, two are added for each that is taken;
    after that, one.
    """
    rows = iter(stream.tolist())
    buffer: list[int] = []
    mixed: list[int] = []

    def take() -> None:
        """Move a random row from the buffer to `mixed`; the last row of the buffer replaces it."""
        index = draw.randint(0, len(buffer) - 1)
        mixed.append(buffer[index])
        buffer[index] = buffer[-1]
        buffer.pop()

    for row in rows:
        buffer.append(row)
        if len(buffer) < buffer_size:
            second_row = next(rows, None)
            if second_row is not None:
                buffer.append(second_row)
        if len(buffer) >= initial:
            take()
    while buffer:
        take()
    return np.array(mixed, dtype=np.int64)


def _in_blocks(spans: list[_FileRows], num_nodes: int, block_size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the order of all samples, node by node, with the random numbers that py1b draws."""
    files = list(spans)  # a copy, because numpy shuffles in place
    np.random.default_rng(seed).shuffle(files)  # decides which files a node has, in all epochs
    draw = np.random.default_rng(seed + epoch)
    parts = _divided(files, num_nodes)
    for part in parts:  # py1b draws the order of the files of all nodes before it shuffles any block
        draw.shuffle(part)
    streams = []
    for part in parts:
        stream = _rows_of(part)
        for start in range(0, stream.size, block_size):
            draw.shuffle(stream[start : start + block_size])
        streams.append(stream)
    return np.concatenate(streams)


def _divided(spans: list[_FileRows], num_nodes: int) -> list[list[_FileRows]]:
    """Divide files into a part for each node, with numbers of rows that differ by at most one: some files are cut."""
    size = sum(span.num_rows for span in spans)
    waiting = deque(spans)
    num_assigned = 0  # rows
    parts = []
    for node in range(num_nodes):
        end = size * (node + 1) // num_nodes  # rows of this node and those before it
        part = []
        while waiting and num_assigned + waiting[0].num_rows <= end:
            span = waiting.popleft()
            part.append(span)
            num_assigned += span.num_rows
        if waiting and num_assigned < end:  # the next file is too long, so it is cut
            span = waiting.popleft()
            cut = span.start + end - num_assigned
            part.append(_FileRows(span.start, cut))
            waiting.appendleft(_FileRows(cut, span.stop))
            num_assigned = end
        parts.append(part)
    return parts


def _positions_of_nodes(size: int, num_nodes: int) -> list[NDArray[np.int64]]:
    """Return the positions in the order of all samples that each node reads, equally many for all nodes.

    They are those of its part; if that is one row shorter than the longest part, its last row is read twice.
    """
    longest = -(-size // num_nodes)  # rounded up
    if size < num_nodes:  # some nodes have no part: each node reads one of the samples
        return list(np.resize(np.arange(size), (num_nodes, longest)))
    positions = []
    for node in range(num_nodes):
        start = size * node // num_nodes
        stop = size * (node + 1) // num_nodes
        positions.append(np.minimum(np.arange(start, start + longest), stop - 1))
    return positions


def _in_turn(stream: NDArray[np.int64], num_ranks: int) -> list[NDArray[np.int64]]:
    """Return what each rank of a node reads if the ranks read its stream in turn.

    If the last turn has too few rows, it also gets rows from just before the last `num_ranks - 1` of the stream, by the
    rule of `get_partitions_orig`. A stream that is too short for this rule is repeated from its start.
    """
    num_missing = -stream.size % num_ranks  # until the size is a multiple of the number of ranks
    last_repeated = stream.size - num_ranks
    first_repeated = last_repeated - num_missing + 1
    padding = np.resize(stream, num_missing)
    if first_repeated >= 0:
        padding = stream[first_repeated : last_repeated + 1]
    padded = np.concatenate([stream, padding])
    return [padded[rank::num_ranks] for rank in range(num_ranks)]


class Mixing(NamedTuple):
    """How far an order is from a true shuffle of the same files on as many ranks.

    `same_file` is the share of neighbouring reads of a rank that are of one file, and `same_file_if_shuffled` what it
    is in a true shuffle. `files_per_batch` is the mean number of different files in a batch, and
    `files_per_batch_if_shuffled` its expectation. `correlation` is that of the sample numbers of neighbouring reads, 0
    in a true shuffle. `coverage` is the share of the dataset that is read. With fewer than two samples, there are no
    neighbouring reads in a true shuffle, and `same_file_if_shuffled` is 1. In the order itself, `same_file` is 0
    without neighbouring reads, and `files_per_batch` is 0 without a full batch. The `coverage` of no samples is 1.
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
    rows = np.array(_checked_rows(file_rows), dtype=np.int64)
    if int(rows.sum()) != assignment.size:
        raise ValueError(f"file_rows must add up to the dataset's {assignment.size} samples, got {int(rows.sum())}")
    file_of_sample = np.repeat(np.arange(rows.size), rows)
    num_same = 0  # pairs of neighbouring reads from one file
    num_neighbours = 0  # all pairs of neighbouring reads
    firsts = []  # the samples of these pairs
    seconds = []
    num_files: list[int] = []  # of each batch
    is_read = np.zeros(assignment.size, dtype=bool)
    for rank, indices in enumerate(assignment.ranks):
        if indices.size and (indices.min() < 0 or indices.max() >= assignment.size):
            raise ValueError(f"rank {rank} reads outside the dataset's {assignment.size} samples")
        is_read[indices] = True
        files = file_of_sample[indices]
        num_same += int((files[1:] == files[:-1]).sum())
        num_neighbours += max(indices.size - 1, 0)
        firsts.append(indices[:-1])
        seconds.append(indices[1:])
        num_files += _files_per_batch(files, batch_size)
    return Mixing(
        same_file=num_same / max(num_neighbours, 1),
        same_file_if_shuffled=_expected_same_file(rows),
        files_per_batch=float(np.mean(num_files)) if num_files else 0.0,
        files_per_batch_if_shuffled=_expected_files(rows, batch_size),
        correlation=_correlation(np.concatenate(firsts), np.concatenate(seconds)),
        coverage=float(is_read.mean()) if assignment.size else 1.0,
    )


def _files_per_batch(files: NDArray[np.int64], batch_size: int) -> list[int]:
    """Return the number of different files in each full batch of a rank; `files` has the file of each of its reads."""
    num_in_batches = files.size // batch_size * batch_size
    batches = np.sort(files[:num_in_batches].reshape(-1, batch_size), axis=1)
    num_changes = (np.diff(batches, axis=1) != 0).sum(axis=1)  # from one file of the sorted batch to the next
    num_files: list[int] = (1 + num_changes).tolist()
    return num_files


def _expected_same_file(rows: NDArray[np.int64]) -> float:
    """Return the probability that two neighbouring samples of a true shuffle are of the same file.

    The first sample is of a file with the probability of the file's share of all samples. The second one is any of the
    other samples, of which the file has one less.
    """
    size = int(rows.sum())
    if size < 2:
        return 1.0
    shares = rows / size
    return float((shares * (rows - 1)).sum() / (size - 1))


def _expected_files(rows: NDArray[np.int64], batch_size: int) -> float:
    """Return how many different files a random batch is expected to have, or 0 if it has more samples than there are.

    It is the sum over all files of the probability that the batch has a row of the file.
    """
    size = int(rows.sum())
    if batch_size > size:
        return 0.0
    missing_probability = np.ones(rows.size)  # of each file: that none of the samples drawn so far is of it
    for num_drawn in range(batch_size):
        missing_probability *= np.maximum(size - rows - num_drawn, 0) / (size - num_drawn)
    return float((1 - missing_probability).sum())


def _correlation(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    """Return Pearson's correlation coefficient, or 0 if it is not defined."""
    if first.size < 2 or first.std() == 0 or second.std() == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])
