"""KeyedPermutation is a bijection of good quality, and KeyedSampler reads it; and torch.randperm's bias is exact."""

from __future__ import annotations

import itertools
import pickle
import tracemalloc

import numpy as np
import pytest
import torch

from rankscope.sampling import Assignment, KeyedSampler, audit, keyed, randperm_bias
from rankscope.sampling.keyed import KeyedPermutation
from rankscope.sampling.randperm_bias import worst_randperm_bound

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


def test_an_epoch_takes_the_memory_of_a_chunk():
    sampler = KeyedSampler(TRILLION, 8, 7)
    list(itertools.islice(sampler, 10))
    tracemalloc.start()
    for _ in itertools.islice(sampler, 200_000):
        pass
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 8 * 2**16 + 10**6  # one chunk of indices, and 1 MB


def test_an_iterator_can_be_pickled():
    sampler = KeyedSampler(100, 3, 1)
    iterator = iter(sampler)
    next(iterator)
    assert list(pickle.loads(pickle.dumps(iterator))) == list(sampler)[1:]


def test_the_audit_finds_nothing_in_epochs_of_a_keyed_sampler():
    samplers = [KeyedSampler(64, 4, rank) for rank in range(4)]
    audit(Assignment.collect(samplers, 64, epoch) for epoch in range(4)).check()
    forgotten = audit(Assignment.collect(samplers, 64, 0) for _ in range(2))
    assert [finding.kind for finding in forgotten.findings] == ["repeated_order"]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: KeyedSampler(-1), "size must be a whole number from 0 to 9223372036854775807, got -1"),
        (lambda: KeyedSampler(2**63), "size must be"),
        (lambda: KeyedSampler(10, 2), "num_replicas and rank must be given together, got 2 and None"),
        (lambda: KeyedSampler(10, 0, 0), "num_replicas must be a whole number from 1 to 65536, got 0"),
        (lambda: KeyedSampler(10, 2, 2), "rank must be a whole number from 0 to 1, got 2"),
        (lambda: KeyedSampler(10, seed=2**64), "seed must be"),
        (lambda: KeyedSampler(10).set_epoch(-1), "epoch must be a whole number of at least 0, got -1"),
        (lambda: KeyedSampler(10).positions([3.5]), "positions must be whole numbers, got float64"),
        (lambda: KeyedSampler(10, shuffle=False).positions([3.7]), "positions must be whole numbers, got float64"),
        (lambda: KeyedSampler(10**6).permutation(np.array([0.5])), "positions must be whole numbers, got float64"),
        (lambda: KeyedSampler(10).positions([True]), "positions must be whole numbers, got bool"),
        (lambda: KeyedSampler(10)["a"], "position must be a whole number, got 'a'"),
    ],
)
def test_bad_input(ask, message):
    with pytest.raises(ValueError, match=message):
        ask()


def test_positions_outside_the_order_are_an_index_error():
    for sampler in (KeyedSampler(10), KeyedSampler(10, shuffle=False), KeyedPermutation(10, "a key")):
        for position in (-1, 10):
            with pytest.raises(IndexError, match=f"position must be a whole number from 0 to 9, got {position}"):
                sampler[position]
    with pytest.raises(IndexError, match="positions must be from 0 to 9, got 30 to 30"):
        KeyedSampler(10, shuffle=False).positions([30])
    assert KeyedSampler(10).positions([]).tolist() == []
    with pytest.raises(IndexError, match="positions must be from 0 to 9, got 0 to 10"):
        KeyedPermutation(10, "a key")(np.array([0, 10]))


# ---- the bias of torch.randperm


@pytest.mark.parametrize("word_bits", [1, 4, 8, 11])
def test_the_bias_is_that_of_counting_all_words(word_bits):
    words = np.arange(2**word_bits)
    bias = randperm_bias(np.arange(1, 2**word_bits + 1), word_bits)
    for place, bound in enumerate(bias.bounds.tolist()):
        counts = np.bincount(words % bound, minlength=bound)
        assert bias.num_favoured[place] == (counts > counts.min()).sum()
        assert bias.quotient[place] == counts.min()
        assert bias.excess[place] == pytest.approx(counts.max() / counts.min() - 1)
        distance = np.abs(counts / words.size - 1 / bound).sum() / 2
        assert bias.distance[place] == pytest.approx(distance)


def test_torch_draws_by_the_formula_that_the_bias_is_of():
    """The first item of torch's order is the first word modulo n, up to the size at which it changes to 64 bits."""
    for size in (3, 1000, 99_991):
        for seed in range(20):
            generator = torch.Generator().manual_seed(seed)
            word = np.random.RandomState(seed).randint(0, 2**32, dtype=np.uint32)
            assert torch.randperm(size, generator=generator)[0] == word % size
    assert worst_randperm_bound() * 20 < 2**32 <= (worst_randperm_bound() + 2) * 20


def test_the_bias_is_worst_just_below_the_change_to_64_bits():
    worst = randperm_bias(np.arange(worst_randperm_bound() - 10**6, worst_randperm_bound() + 1))
    assert worst.excess.max() == pytest.approx(1 / 20)
    assert randperm_bias([2**20]).excess[0] == 0


@pytest.mark.parametrize("bounds", [[0], [2**32 + 1], [1.5], "many", [0, 5], [5, 2**32 + 1]])
def test_bounds_that_no_draw_has(bounds):
    with pytest.raises(ValueError, match="bounds must be whole numbers from 1 to 4294967296, got"):
        randperm_bias(bounds)


def test_any_number_of_words_may_be_a_bound() -> None:
    bias = randperm_bias([1, 2**32])
    assert (bias.num_favoured.tolist(), bias.quotient.tolist()) == ([0, 0], [2**32, 1])
    assert (bias.excess.tolist(), bias.distance.tolist()) == ([0, 0], [0, 0])
    assert randperm_bias([1000]) == randperm_bias([1000], word_bits=32)
    assert randperm_bias([2**62], word_bits=62).quotient.tolist() == [1]
    with pytest.raises(ValueError, match="word_bits must be a whole number from 1 to 62, got 63"):
        randperm_bias([1], word_bits=63)


def test_without_shuffle_positions_are_samples() -> None:
    """More of them than are made at once; on 3 ranks, two of which repeat the beginning."""
    size = 100_000
    for rank, padding in enumerate(([], [0], [1])):
        sampler = KeyedSampler(size, 3, rank, shuffle=False)
        assert list(sampler) == [*range(rank, size, 3), *padding]
        assert sampler[99_999] == 99_999
        assert sampler.positions(np.array([7, 3])).tolist() == [7, 3]
    assert KeyedSampler(size, 3, 0).padding == 2
    assert len(KeyedPermutation(size, "")) == size
