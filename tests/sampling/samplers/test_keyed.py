"""KeyedPermutation is a bijection of good quality, and KeyedSampler reads it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy

from rankscope.sampling import KeyedSampler, assign
from rankscope.sampling.samplers import keyed
from rankscope.sampling.samplers.keyed import KeyedPermutation
from tests.extents import SAMPLE_OR_EVERYTHING, first_in_test

TRILLION = 10**12
LARGEST = 2**63 - 1


def is_bijection(order: KeyedPermutation) -> bool:
    positions = np.arange(order.size)
    return np.array_equal(np.sort(order(positions)), positions)


def position_of(order: KeyedPermutation, sample: int) -> int:
    """Undo the network in whole numbers: its rounds in reverse order, because adding a hash twice by XOR removes it."""
    halves = [sample >> order._right_bits, sample % 2**order._right_bits]
    num_bits = [order._left_bits, order._right_bits]
    for number, keys in reversed(list(enumerate(order._rounds))):
        side = number % 2
        mixed = (halves[1 - side] * int(keys.factor) + int(keys.offset)) % 2**32
        mixed = (mixed ^ mixed >> 15) * int(keys.second_factor) % 2**32
        halves[side] ^= mixed >> (32 - num_bits[side])
    position = (halves[0] << order._right_bits) + halves[1]
    return position if position < order.size else position_of(order, position)


# ---- a bijection


@SAMPLE_OR_EVERYTHING
def test_every_small_size_is_a_bijection(monkeypatch, everything):
    """Also where an order is stored, the network of that size is tested."""
    for size in range(700 if everything else 130):
        assert is_bijection(KeyedPermutation(size, "stored"))
    monkeypatch.setattr(keyed, "_MOST_STORED", 0)
    for size in range(1, 5000 if everything else 600):
        assert is_bijection(KeyedPermutation(size, "network"))


@pytest.mark.parametrize("size", [4095, 4096, 4097, 8192, 32_767, 32_768, 32_769, 65_537, 262_144, 1_000_003])
def test_larger_sizes_are_bijections(size):
    assert is_bijection(KeyedPermutation(size, "a key"))


@pytest.mark.parametrize("size", [2**32 - 1, 2**32, 2**32 + 1, 2**39 + 1, TRILLION, 2**40, 2**62 + 1, LARGEST])
def test_the_inverse_leads_back_at_sizes_that_cannot_be_listed(size):
    order = KeyedPermutation(size, "a key")
    draw = np.random.default_rng(0)
    positions = np.concatenate([draw.integers(0, size, 100_000), np.arange(1000), size - 1 - np.arange(1000)])
    samples = order(positions)
    assert samples.min() >= 0
    assert samples.max() < size
    assert np.unique(samples).size == np.unique(positions).size
    for position, sample in zip(positions[-3000:].tolist(), samples[-3000:].tolist(), strict=True):
        assert position_of(order, sample) == position


def test_orders_do_not_depend_on_how_they_are_asked_for():
    for size in (1000, 100_000, TRILLION):
        order = KeyedPermutation(size, "a key")
        for start, stop, step in [(0, 1000, 1), (7, 990, 13), (5, 5, 1), (0, min(size, 70_000), 1)]:
            blocks = list(order.blocks(start, stop, step))
            flat = np.concatenate([np.empty(0, np.int64), *blocks])
            assert np.array_equal(flat, order(np.arange(start, stop, step)))
            assert all(order[place] == flat[at] for at, place in enumerate(range(start, stop, step)[:3]))


# ---- as random as uniform orders


def beginnings(size, num_keys=800):
    """Return the first 512 samples of the orders of many keys, a row each."""
    return np.stack([KeyedPermutation(size, f"key {number}")(np.arange(512)) for number in range(num_keys)])


def p_values(rows, size):
    """Return p-values of chi-square tests: of one position, of pairs of items, and of the distance between two items.

    Items are put into 16 bins by their upper or lower bits. Distances at lags of 128 and 256 notice a missing round.
    """
    tests = {}

    def compare(name, values, expected):
        counts = np.bincount(values.ravel(), minlength=expected.size)
        expected = expected * values.size / expected.sum()
        tests[name] = float(scipy.stats.chisquare(counts, expected).pvalue)

    samples = np.arange(size)
    for name, bins_of in (("upper", lambda items: items * 16 // size), ("lower", lambda items: items % 16)):
        bins = bins_of(rows)
        share = np.bincount(bins_of(samples), minlength=16)
        compare(f"{name}, one position", bins[:, :64] + 16 * np.arange(64), np.tile(share, 64))
        for lag in (1, 32, 256):
            compare(f"{name}, pairs", bins[:, :-lag] * 16 + bins[:, lag:], np.outer(share, share).ravel())
    for lag in (1, 128, 256):
        distances = (rows[:, lag:] - rows[:, :-lag]) % size
        compare(f"distances, lag {lag}", distances * 32 // size, np.bincount(samples[1:] * 32 // size))
    return tests


@pytest.mark.parametrize("size", first_in_test(1, [4097, 5000, 65_537, 1_000_003]))
def test_orders_are_as_random_as_uniform_ones(size):
    """By chance, one in 900 lists of 11 p-values has one below 1e-4; the keys are always the same."""
    assert min(p_values(beginnings(size), size).values()) > 1e-4
    uniform = np.stack([np.random.default_rng(key).permutation(size)[:512] for key in range(100)])
    assert min(p_values(uniform, size).values()) > 1e-4


@pytest.mark.parametrize("num_rounds", [1, 2, 3])
def test_three_rounds_are_too_few_and_the_tests_notice(monkeypatch, num_rounds):
    monkeypatch.setattr(keyed, "NUM_ROUNDS", num_rounds)
    assert min(p_values(beginnings(4097), 4097).values()) < 1e-6


def test_different_seeds_and_epochs_have_unrelated_orders():
    """Unlike torch's, (seed 0, epoch 1) is not (seed 1, epoch 0)."""
    recipes = itertools.product((0, 1, 2**32), range(3))
    orders = [assign(2000, 1, sampler="keyed", seed=seed, epoch=epoch).ranks[0] for seed, epoch in recipes]
    for first, second in itertools.combinations(orders, 2):
        assert abs(np.corrcoef(first, second)[0, 1]) < 0.12  # 5.4 standard deviations of 1 / sqrt(2000)


# ---- the sampler


def test_without_shuffle_positions_are_samples() -> None:
    """More of them than are made at once; on 3 ranks, two of which repeat the beginning."""
    size = 100_000
    for rank, padding in enumerate(([], [0], [1])):
        sampler = KeyedSampler(size, 3, rank, shuffle=False)
        assert list(sampler) == [*range(rank, size, 3), *padding]
        assert sampler[99_999] == 99_999
    assert KeyedSampler(size, 3, 0).padding == 2
