"""KeyedPermutation is a bijection of good quality, and KeyedSampler reads it; and torch.randperm's bias is exact."""

from __future__ import annotations

import itertools
import pickle
import random
import tracemalloc

import numpy as np
import pytest
import torch
from scipy import stats

from rankscope.sampling import Assignment, KeyedSampler, audit, keyed, randperm_bias
from rankscope.sampling.keyed import KeyedPermutation
from rankscope.sampling.randperm_bias import worst_randperm_bound

from ..extents import SAMPLE_OR_EVERYTHING

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
    positions = np.concatenate([draw.integers(0, size, 200_000), np.arange(1000), size - 1 - np.arange(1000)])
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


def orders_of(kind, size, num_orders):
    """Return the first 512 items of many orders: an array with a row for each."""
    count = min(size, 512)
    rows = np.empty((num_orders, count), dtype=np.int64)
    for number in range(num_orders):
        if kind == "keyed":
            rows[number] = KeyedPermutation(size, f"order {number}")(np.arange(count))
        else:
            rows[number] = torch.randperm(size, generator=torch.Generator().manual_seed(number))[:count]
    return rows


def quality(rows, size):
    """Return the p-value of each test: what a uniform order would exceed with that probability."""
    num_orders, count = rows.shape
    p_values = {}
    bins = rows[:, :64] * 16 // size
    expected = np.bincount(np.arange(size) * 16 // size, minlength=16) / size * num_orders
    counts = np.stack([(bins == number).sum(axis=0) for number in range(16)])
    chi_squared = ((counts - expected[:, None]) ** 2 / expected[:, None]).sum()
    p_values["one position"] = float(stats.chi2.sf(chi_squared, 15 * 64))
    for lag in (1, 2, 32):
        left = rows[:, :-lag] * 16 // size
        right = rows[:, lag:] * 16 // size
        pairs = np.bincount((left * 16 + right).ravel(), minlength=256)
        p_values[f"pairs {lag} apart"] = float(stats.chisquare(pairs, _expected_pairs(size) * left.size).pvalue)
    distances = (rows[:, 1:] - rows[:, :-1]) % size
    possible = np.bincount(np.arange(1, size) * 32 // size, minlength=32) / (size - 1)
    seen = np.bincount(distances.ravel() * 32 // size, minlength=32)
    p_values["distances"] = float(stats.chisquare(seen, possible * distances.size).pvalue)
    ascents = (rows[:, 1:] > rows[:, :-1]).sum(axis=1)
    z = (ascents.mean() - (count - 1) / 2) / np.sqrt((count + 1) / 12 / num_orders)
    p_values["runs"] = float(2 * stats.norm.sf(abs(z)))
    spread = ascents.var(ddof=1) / ((count + 1) / 12) * (num_orders - 1)
    p_values["spread of runs"] = two_sided(stats.chi2(num_orders - 1), spread)
    fixed = int((rows == np.arange(count)).sum())
    p_values["fixed points"] = two_sided(stats.poisson(num_orders * count / size), fixed)
    return p_values


def two_sided(distribution, value):
    below = distribution.cdf(value)
    above = distribution.sf(np.nextafter(value, -np.inf) if isinstance(value, float) else value - 1)
    return min(1.0, 2 * float(min(below, above)))


def _expected_pairs(size):
    """Return the probability of each pair of bins for two different items."""
    in_bin = np.bincount(np.arange(size) * 16 // size, minlength=16).astype(float)
    pairs = np.outer(in_bin, in_bin) - np.diag(in_bin)
    return (pairs / (size * (size - 1))).ravel()


QUALITY_SIZES = (500, 4097, 5000, 65_537, 1_000_003)


@SAMPLE_OR_EVERYTHING
@pytest.mark.parametrize("size", QUALITY_SIZES)
def test_pairs_runs_and_chi_squared_are_those_of_random_orders(size, everything):
    """Eight tests for each of five sizes: by chance, one p-value in 40 is below 0.025, and one in 4,000 below 1e-4."""
    num_orders = 4000 if everything else 600
    rows = orders_of("keyed", size, num_orders)
    assert min(quality(rows, size).values()) > 1e-4
    if size < 10_000:  # torch stores each of its orders
        assert min(quality(orders_of("torch", size, num_orders), size).values()) > 1e-4


@pytest.mark.parametrize("num_rounds", [1, 2, 3])
def test_three_rounds_are_too_few_and_the_tests_notice(monkeypatch, num_rounds):
    monkeypatch.setattr(keyed, "NUM_ROUNDS", num_rounds)
    p_values = quality(orders_of("keyed", 4097, 2000), 4097)
    assert min(p_values.values()) < 1e-6


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


@SAMPLE_OR_EVERYTHING
def test_every_sample_is_read_once_and_padding_is_the_beginning(everything):
    draw = random.Random(0)
    for _ in range(3000 if everything else 300):
        size = draw.randint(0, 40)
        num_replicas = draw.randint(1, 12)
        recipe = {"shuffle": draw.random() < 0.8, "seed": draw.randint(0, 9), "drop_last": draw.random() < 0.5}
        samplers = [KeyedSampler(size, num_replicas, rank, **recipe) for rank in range(num_replicas)]
        epoch = draw.randint(0, 3)
        assignment = Assignment.collect(samplers, size, epoch)
        lengths = {indices.size for indices in assignment.ranks}
        assert lengths == {len(samplers[0])}
        read = np.stack(assignment.ranks, axis=1).ravel()
        order = [samplers[0][place] for place in range(size)]
        assert sorted(order) == list(range(size))
        assert read.tolist() == [order[place % size] for place in range(read.size)]
        assert samplers[0].padding == max(read.size - size, 0)
        if not recipe["drop_last"]:
            assert 0 <= read.size - size < num_replicas
        at_once = samplers[0].all_ranks()
        assert [indices.tolist() for indices in at_once.indices] == [indices.tolist() for indices in assignment.ranks]


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
        (lambda: KeyedSampler(10, 0, 0), "num_replicas must be a whole number of at least 1, got 0"),
        (lambda: KeyedSampler(10, 2, 2), "rank must be a whole number from 0 to 1, got 2"),
        (lambda: KeyedSampler(10, seed=2**64), "seed must be"),
        (lambda: KeyedSampler(10).set_epoch(-1), "epoch must be a whole number of at least 0, got -1"),
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


@pytest.mark.parametrize("bounds", [[0], [2**32 + 1], [1.5], "many"])
def test_bounds_that_no_draw_has(bounds):
    with pytest.raises(ValueError, match="bounds must be whole numbers from 1 to 4294967296, got"):
        randperm_bias(bounds)
