"""KeyedPermutation is a bijection of good quality, and KeyedSampler reads it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rankscope.sampling import KeyedSampler, keyed
from rankscope.sampling.keyed import KeyedPermutation

from ..extents import SAMPLE_OR_EVERYTHING
from . import shuffle_quality
from .shuffle_quality import beginning_of_order, lowest_p_value, quality, sets_of_orders

TRILLION = 10**12
LARGEST = 2**63 - 1


def is_bijection(order: KeyedPermutation) -> bool:
    positions = np.arange(order.size)
    samples = order(positions)
    is_complete = np.array_equal(np.sort(samples), positions)
    return is_complete and np.array_equal(order.inverse(samples), positions)


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
    assert np.array_equal(order.inverse(samples), positions)
    assert np.unique(samples).size == np.unique(positions).size
    assert np.array_equal(order(order.inverse(positions)), positions)


def test_a_network_that_forgets_a_round_is_no_inverse(monkeypatch):
    order = KeyedPermutation(TRILLION, "a key")
    samples = order(np.arange(100))
    order._rounds = order._rounds[:-1]
    assert not np.array_equal(order.inverse(samples), np.arange(100))


def test_orders_do_not_depend_on_how_they_are_asked_for():
    for size in (1000, 100_000, TRILLION):
        order = KeyedPermutation(size, "a key")
        for start, stop, step in [(0, 1000, 1), (7, 990, 13), (5, 5, 1), (0, min(size, 70_000), 1)]:
            blocks = list(order.blocks(start, stop, step))
            flat = np.concatenate([np.empty(0, np.int64), *blocks])
            assert np.array_equal(flat, order(np.arange(start, stop, step)))
            assert all(order[place] == flat[at] for at, place in enumerate(range(start, stop, step)[:3]))


def test_orders_are_the_same_on_every_machine():
    """Stored values: whoever resumes a job after an update of the library must get the same order."""
    assert KeyedPermutation(10, "a key")(np.arange(10)).tolist() == SMALL
    assert KeyedPermutation(TRILLION, "a key")(np.arange(4)).tolist() == LARGE


SMALL = [1, 4, 7, 5, 9, 3, 0, 8, 6, 2]
LARGE = [836625890273, 877146504755, 55648208107, 362193196577]


# ---- as random as randperm


@pytest.mark.slow
@SAMPLE_OR_EVERYTHING
@pytest.mark.parametrize("size", [500, 4097, 5000, 65_537, 1_000_003])
def test_pairs_runs_and_chi_squared_are_those_of_uniform_orders(size, everything):
    """There are 11 tests with two p-values each for each of five sizes: by chance, one in 100 lists has one < 1e-4."""
    num_seeds = 200 if everything else 20
    num_orders = 100 if everything else 20
    uniform = sets_of_orders("uniform", size, 3 * num_seeds, num_orders)
    kinds = ["keyed"]
    if size < 10_000:  # torch stores each of its orders
        kinds.append("torch")
    for kind in kinds:
        tests = quality(sets_of_orders(kind, size, num_seeds, num_orders), uniform)
        assert lowest_p_value(tests) > 1e-4, tests


@pytest.mark.parametrize("num_rounds", [1, 2, 3])
def test_three_rounds_are_too_few_and_the_tests_notice(monkeypatch, num_rounds):
    monkeypatch.setattr(keyed, "NUM_ROUNDS", num_rounds)
    uniform = sets_of_orders("uniform", 4097, 40, 20)
    tests = quality(sets_of_orders("keyed", 4097, 40, 20), uniform)
    assert min(test.together for test in tests.values()) < 1e-6


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (lambda rows: np.sort(rows[:, :8], axis=1), "runs"),
        (lambda rows: rows // 2 * 2, "pairs, lowest bits"),
        (lambda rows: np.where(rows < 1000, rows // 2, rows), "one position"),
    ],
)
def test_faulty_orders_are_noticed(monkeypatch, fault, name):
    uniform = sets_of_orders("uniform", 5000, 30, 20)

    def faulty(kind, size, seed, number):
        row = beginning_of_order("uniform", size, 1000 + seed, number)[None]
        changed = fault(row)
        return np.concatenate([changed, row[:, changed.shape[1] :]], axis=1)[0]

    monkeypatch.setattr(shuffle_quality, "beginning_of_order", faulty)
    tests = quality(sets_of_orders("faulty", 5000, 30, 20), uniform)
    assert tests[name].together < 1e-6


def test_different_seeds_and_epochs_have_unrelated_orders():
    """Unlike torch's, (seed 0, epoch 1) is not (seed 1, epoch 0)."""
    orders = {}
    for seed, epoch in itertools.product((0, 1, 2**32), range(3)):
        sampler = KeyedSampler(2000, seed=seed)
        sampler.set_epoch(epoch)
        orders[seed, epoch] = np.array(list(sampler))
    for (_, first), (_, second) in itertools.combinations(orders.items(), 2):
        assert abs(np.corrcoef(first, second)[0, 1]) < 0.12  # 5.4 standard deviations of 1 / sqrt(2000)


# ---- the sampler


def test_any_rank_starts_anywhere_in_a_trillion_samples():
    order = KeyedSampler(TRILLION, seed=3)
    for num_replicas, rank, trained in [(1, 0, 0), (1024, 1023, 10**8), (7, 3, 142_857_142_800)]:
        sampler = KeyedSampler(TRILLION, num_replicas, rank, seed=3)
        sampler.load_state_dict(sampler.state_after(trained))
        first = trained * num_replicas + rank
        expected = [order[first + step * num_replicas] for step in range(5)]
        assert list(itertools.islice(sampler, 5)) == expected
    last = KeyedSampler(TRILLION, 7, 6, seed=3)
    last.load_state_dict(last.state_after(len(last) - 2))
    assert list(last) == [order[TRILLION - 2], order[5]]  # 7 ranks are padded with the first six samples


def test_without_shuffle_positions_are_samples() -> None:
    """More of them than are made at once; on 3 ranks, two of which repeat the beginning."""
    size = 100_000
    for rank, padding in enumerate(([], [0], [1])):
        sampler = KeyedSampler(size, 3, rank, shuffle=False)
        assert list(sampler) == [*range(rank, size, 3), *padding]
        assert sampler[99_999] == 99_999
    assert KeyedSampler(size, 3, 0).padding == 2
