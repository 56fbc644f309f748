"""Streams of files: read once, mixed as WebDataset's own buffer mixes them, and measured against a true shuffle."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rankscope.sampling import assign, audit, mixing, stream_files
from rankscope.sampling.file_streams import _through_buffer

from ..peers import HOW, importable, peer, streaming_modules


@pytest.mark.parametrize("method", ["buffer", "block"])
def test_every_row_is_read_once(method):
    draw = random.Random(0)
    for _ in range(200):
        num_replicas = draw.randint(1, 4)
        rows = [draw.randint(0, 30) for _ in range(draw.randint(0, 8))]
        epoch = stream_files(
            rows, num_replicas, method=method, buffer_size=draw.randint(1, 40), initial=draw.randint(1, 50), epoch=1
        )
        counts = np.bincount(np.concatenate(epoch.ranks), minlength=epoch.size)
        assert (counts >= 1).all()
        if method == "buffer":
            assert (counts == 1).all()
        else:
            assert counts.sum() - epoch.size < num_replicas


@pytest.mark.oracle
def test_the_buffer_is_webdatasets():
    with importable():
        filters = peer("webdataset.filters")
    if filters is None:
        pytest.skip(f"WebDataset is not installed: {HOW}")
    for size, buffer_size, initial in [(0, 5, 2), (3, 10, 10), (500, 50, 10), (500, 20, 100), (100, 1, 1)]:
        theirs = list(filters._shuffle(iter(range(size)), buffer_size, initial, rng=random.Random("seed")))
        ours = _through_buffer(np.arange(size), buffer_size, min(initial, buffer_size), random.Random("seed"))
        assert ours.tolist() == theirs


def test_a_larger_buffer_is_closer_to_a_true_shuffle():
    rows = [1000] * 40
    shares = []
    for buffer_size in (1, 100, 1000, 10_000):
        mixed = mixing(stream_files(rows, 4, buffer_size=buffer_size), rows)
        assert mixed.coverage == 1
        shares.append(mixed.same_file)
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.99
    shuffled = mixing(assign(40_000, 4), rows)
    assert shuffled.same_file == pytest.approx(shuffled.same_file_if_shuffled, rel=0.1)
    assert shuffled.files_per_batch == pytest.approx(shuffled.files_per_batch_if_shuffled, rel=0.02)
    assert abs(shuffled.correlation) < 0.03
    assert shares[-1] > 2 * shuffled.same_file  # a rank reads only its own files in an epoch


def test_mixing_is_recounted_by_hand():
    epoch = stream_files([2, 2], 1, buffer_size=1)
    mixed = mixing(epoch, [2, 2], batch_size=2)
    assert (mixed.same_file, mixed.files_per_batch) == (2 / 3, 1)
    assert mixed.same_file_if_shuffled == pytest.approx(1 / 3)
    assert mixed.files_per_batch_if_shuffled == pytest.approx(1 + 2 / 3)


def test_a_dataset_of_no_files_has_a_mixing():
    assert mixing(assign(0, 1), []).coverage == 1


def test_the_audit_reads_streams():
    report = audit(stream_files([10, 10, 10], 2, epoch=epoch) for epoch in range(2))
    assert [finding.kind for finding in report.findings] == ["unbalanced"]
    audit(stream_files([10] * 4, 2, method="block", epoch=epoch) for epoch in range(3)).check()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: stream_files([3, -1], 2), "file_rows must be a whole number from 0 to"),
        (lambda: stream_files(3, 2), "file_rows must be a list of numbers of rows, got 3"),
        (lambda: stream_files([2**28, 1], 2), "the rows of all files must be a whole number from 0 to 268435456"),
        (lambda: stream_files([3], 2, method="magic"), "method must be one of 'buffer', 'block', got 'magic'"),
        (lambda: stream_files([3], 2, buffer_size=0), "buffer_size must be"),
        (
            lambda: stream_files([3], 4, method="block", num_nodes=3),
            "num_nodes must divide the number of ranks, 4, got 3",
        ),
        (lambda: stream_files([3], 4, num_nodes=2), "num_nodes must be 1 with method 'buffer'"),
        (lambda: stream_files([3], 2, seed=-1), "seed must be a whole number from 0 to"),
        (lambda: mixing(assign(4, 2), []), "file_rows must add up to the dataset's 4 samples, got 0"),
        (lambda: mixing(assign(4, 2), [2**70]), "file_rows must be a whole number from 0 to 268435456, got 1180591"),
        (lambda: mixing(assign(4, 2), [3]), "file_rows must add up to the dataset's 4 samples, got 3"),
        (lambda: mixing(assign(3, 8, sampler="libtorch_random"), [3]), "reads outside the dataset's 3 samples"),
        (lambda: mixing([0, 1], [2]), "assignment must be an Assignment"),
    ],
)
def test_bad_input(ask, message):
    with pytest.raises(ValueError, match=message):
        ask()


# ---- mosaicml-streaming itself


@pytest.mark.filterwarnings("ignore:Trying to partition", "ignore:Attempting to partition")
@pytest.mark.oracle
def test_blocks_are_those_of_mosaicml_streaming_to_the_index():
    with streaming_modules("shuffle/py1b", "partition/orig") as modules:
        if modules is None:
            pytest.skip(f"mosaicml-streaming is not installed: {HOW}")
        compare_with_streaming(*modules)


def compare_with_streaming(py1b, partition):
    draw = random.Random(0)
    for _ in range(500):
        num_nodes = draw.randint(1, 4)
        ranks_per_node = draw.randint(1, 4)
        rows = [draw.randint(1, 30) for _ in range(draw.randint(1, 12))]
        seed = draw.randint(0, 99)
        epoch = draw.randint(0, 5)
        block_size = draw.randint(1, 60)
        order = py1b.get_shuffle_py1b(np.array(rows), num_nodes, seed, epoch, block_size)
        places = partition.get_partitions_orig(sum(rows), num_nodes, num_nodes, ranks_per_node, 1, 1)
        theirs = order[places.reshape(num_nodes * ranks_per_node, -1)]
        ours = stream_files(
            rows,
            num_nodes * ranks_per_node,
            method="block",
            buffer_size=block_size,
            num_nodes=num_nodes,
            seed=seed,
            epoch=epoch,
        )
        assert [indices.tolist() for indices in ours.ranks] == theirs.tolist()


def test_a_block_is_shuffled_within_itself():
    (order,) = stream_files([100], 1, method="block", buffer_size=20).ranks
    blocks = order.reshape(5, 20)
    for block in blocks:
        assert np.ptp(block) == 19  # the rows of one block, which follow one another in the file
        assert sorted(block) != block.tolist()
