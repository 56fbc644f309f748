"""Streams of files: read once, mixed as WebDataset's own buffer mixes them, and measured against a true shuffle."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rankscope.sampling import Assignment, assign, audit, mixing, stream_files
from rankscope.sampling.file_streams import _divided, _FileRows, _in_turn, _positions_of_nodes, _through_buffer

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


class First(random.Random):
    """Draws the lowest number that it may."""

    def randint(self, low: int, high: int) -> int:
        assert (low, high >= 0) == (0, True)
        self.highest = [*getattr(self, "highest", []), high]
        return low


def test_a_buffer_by_hand():
    """Two rows are added for each one that is taken until there are 3; the last row replaces the one that is taken."""
    draw = First()
    assert _through_buffer(np.arange(6), 3, 2, draw).tolist() == [0, 1, 3, 4, 5, 2]
    assert draw.highest == [1, 2, 2, 2, 1, 0]


def test_nodes_divide_files_and_ranks_take_turns_by_hand():
    files = [_FileRows(0, 5), _FileRows(5, 6), _FileRows(6, 10)]
    assert _divided(files, 2) == [[(0, 5)], [(5, 6), (6, 10)]]
    assert _divided(files, 3) == [[(0, 3)], [(3, 5), (5, 6)], [(6, 10)]]
    assert [positions.tolist() for positions in _positions_of_nodes(10, 3)] == [
        [0, 1, 2, 2],
        [3, 4, 5, 5],
        [6, 7, 8, 9],
    ]
    assert [positions.tolist() for positions in _positions_of_nodes(2, 3)] == [[0], [1], [0]]
    # Of 10 rows on 4 ranks 2 are missing. The last one repeated, 6, precedes the end by 4.
    assert [rows.tolist() for rows in _in_turn(np.arange(10), 4)] == [[0, 4, 8], [1, 5, 9], [2, 6, 5], [3, 7, 6]]
    assert [rows.tolist() for rows in _in_turn(np.arange(5), 4)] == [[0, 4], [1, 0], [2, 1], [3, 2]]
    assert [rows.tolist() for rows in _in_turn(np.arange(8), 4)] == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_an_order_of_few_samples_is_compared_by_hand():
    in_order = mixing(assign(6, 1, shuffle=False), [3, 3], batch_size=3)
    assert (in_order.same_file, in_order.files_per_batch, in_order.coverage) == (4 / 5, 1, 1)
    assert in_order.same_file_if_shuffled == pytest.approx(2 / 5)
    assert in_order.correlation == pytest.approx(1)
    assert in_order.files_per_batch_if_shuffled == pytest.approx(2 * (1 - 3 / 6 * 2 / 5 * 1 / 4))
    turned = mixing(Assignment(4, ([0, 2, 1], [3])), [2, 2], batch_size=2)
    assert (turned.same_file, turned.files_per_batch, turned.coverage) == (0, 2, 1)
    assert turned.correlation == pytest.approx(-1)
    assert mixing(Assignment(4, ([0, 1],)), [2, 2], batch_size=5)[2:] == (0, 0, 0, 0.5)
    assert mixing(Assignment(1, ([0],)), [1]) == (0, 1, 0, 0, 0, 1)
    assert mixing(Assignment(0, ([],)), []).coverage == 1
    assert mixing(Assignment(2, ([0, 1],)), [1, 1]).same_file_if_shuffled == 0
    assert mixing(Assignment(2, ([0, 1],)), [2])[:2] == (1, 1)
    for reads in ([0, 0, 1], [0, 1, 1], [0, 1]):
        assert mixing(Assignment(2, (reads,)), [2]).correlation == 0, "one of the neighbours is always the same"
    assert mixing(assign(64, 1), [32, 32]) == mixing(assign(64, 1), [32, 32], batch_size=32)
    for outside in (-1, 3):
        with pytest.raises(ValueError, match="rank 1 reads outside the dataset's 3 samples"):
            mixing(Assignment(3, ([0], [outside])), [3])


def test_streams_buffer_1000_rows_and_begin_with_100_by_default():
    rows = [3000]
    explicit = {"method": "buffer", "buffer_size": 1000, "initial": 100, "num_nodes": 1, "seed": 0, "epoch": 0}
    streamed = stream_files(rows, 1).ranks[0].tolist()
    assert streamed == stream_files(rows, 1, **explicit).ranks[0].tolist()
    for name in ("buffer_size", "initial", "seed", "epoch"):
        other = stream_files(rows, 1, **explicit | {name: explicit[name] + 1}).ranks[0].tolist()
        assert streamed != other
    in_blocks = [stream_files([40] * 5, 1, method="block", seed=4, epoch=epoch).ranks[0].tolist() for epoch in (0, 1)]
    assert in_blocks[0] != in_blocks[1]
    files = [stream_files([4] * 9, 1, method="block", buffer_size=1, epoch=epoch).ranks[0] // 4 for epoch in (0, 1)]
    for order in files:
        assert (np.diff(order) != 0).sum() == 8, "the rows of each file follow one another"
    assert files[0].tolist() != files[1].tolist()
