"""PackedSampler packs by first fit, returns the boundaries, and reads every document once."""

from __future__ import annotations

import pickle
import random
from itertools import chain

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from rankscope.sampling import Pack, PackedSampler
from rankscope.sampling.packed import first_fit

from ..extents import SAMPLE_OR_EVERYTHING


def plain_first_fit(lengths, max_tokens, window):
    """Return the pack of each document, one document after the other."""
    packs = []
    first_pack = 0
    for start in range(0, len(lengths), window):
        rooms = []
        for length in lengths[start : start + window]:
            fitting = [pack for pack, room in enumerate(rooms) if room >= length]
            if not fitting:
                fitting = [len(rooms)]
                rooms.append(max_tokens)
            pack = fitting[0]
            rooms[pack] -= length
            packs.append(first_pack + pack)
        first_pack += len(rooms)
    return packs


@SAMPLE_OR_EVERYTHING
def test_packs_are_those_of_first_fit(everything):
    draw = random.Random(0)
    for _ in range(10_000 if everything else 500):
        max_tokens = draw.randint(1, 20)
        lengths = [draw.randint(0, max_tokens) for _ in range(draw.randint(0, 40))]
        window = draw.randint(1, 15)
        assert first_fit(np.array(lengths, dtype=int), max_tokens, window).tolist() == plain_first_fit(
            lengths, max_tokens, window
        )


def test_many_windows_are_packed_in_groups(monkeypatch):
    lengths = np.random.default_rng(0).integers(1, 20, 1000)
    expected = first_fit(lengths, 20, 50)
    monkeypatch.setattr("rankscope.sampling.packed._MOST_PACKS", 200)
    assert np.array_equal(first_fit(lengths, 20, 50), expected)


@SAMPLE_OR_EVERYTHING
def test_every_document_is_read_once_within_the_tokens(everything):
    draw = random.Random(1)
    for _ in range(3000 if everything else 200):
        max_tokens = draw.randint(1, 20)
        size = draw.randint(0, 40)
        lengths = np.array([draw.randint(0, max_tokens) for _ in range(size)], dtype=int)
        num_replicas = draw.randint(1, 6)
        recipe = {"window": draw.randint(1, 15), "seed": draw.randint(0, 5), "drop_last": draw.random() < 0.4}
        samplers = [PackedSampler(lengths, max_tokens, num_replicas, rank, **recipe) for rank in range(num_replicas)]
        packs = [list(sampler) for sampler in samplers]
        assert {len(of_rank) for of_rank in packs} == {len(samplers[0])}
        for pack in chain(*packs):
            assert pack.boundaries == (0, *np.cumsum(lengths[list(pack)]).tolist())
            assert pack.boundaries[-1] <= max_tokens
        in_order = [pack for step in zip(*packs, strict=True) for pack in step]
        num_packs = len(in_order) - samplers[0].padding
        read = np.bincount(np.array([*chain(*in_order[:num_packs])], dtype=int), minlength=size)
        assert read.max(initial=0) <= 1
        if not recipe["drop_last"]:
            assert (read == 1).all()


def test_a_pack_goes_through_a_data_loader_and_keeps_its_boundaries():
    lengths = [6, 3, 5, 2, 4]
    texts = [torch.full((length,), index) for index, length in enumerate(lengths)]
    sampler = PackedSampler(lengths, 10)
    sequences = list(DataLoader(texts, batch_sampler=sampler, collate_fn=torch.cat))
    for pack, sequence in zip(sampler, sequences, strict=True):
        for document, start, stop in zip(pack, pack.boundaries, pack.boundaries[1:], strict=False):
            assert (sequence[start:stop] == document).all()
            assert stop - start == lengths[document]
    copy = pickle.loads(pickle.dumps(pack))
    assert (copy, copy.boundaries, type(copy)) == (pack, pack.boundaries, Pack)


def test_a_longer_window_fills_packs_better():
    lengths = np.minimum(np.exp(np.random.default_rng(0).normal(5, 1, 50_000)).astype(int), 2048)
    fills = [PackedSampler(lengths, 2048, window=window).fill for window in (20, 200, 2000)]
    assert fills == sorted(fills)
    assert fills[0] < 0.9
    assert fills[2] > 0.98


@pytest.mark.parametrize(
    ("lengths", "arguments", "message"),
    [
        ([3, 11], {}, "lengths must be at most max_tokens, which is 10: sample 1 has 11 tokens"),
        ([3, -1], {}, "lengths must be whole numbers from 0 to .*, got -1 for sample 1"),
        ([0.5], {}, "lengths must be a 1-D array of whole numbers"),
        ([3], {"max_tokens": 0}, "max_tokens must be a whole number from 1 to .*, got 0"),
        ([3], {"window": 10**30}, "window must be a whole number from 1 to .*, got 10000"),
        ([3], {"window": 0}, "window must be a whole number from 1 to .*, got 0"),
    ],
)
def test_bad_input(lengths, arguments, message):
    with pytest.raises(ValueError, match=message):
        PackedSampler(lengths, **({"max_tokens": 10} | arguments))


def test_a_position_outside_the_packs_is_an_index_error():
    with pytest.raises(IndexError, match="position must be a whole number from 0 to 0, got 1"):
        PackedSampler([3], 10)[1]


def test_the_fill_is_the_share_of_all_packs():
    assert PackedSampler([6], 10).fill == 0.6
    assert PackedSampler([6, 3, 5, 2, 4], 10, shuffle=False).fill == 20 / 30
    assert PackedSampler([], 10).fill == 1
