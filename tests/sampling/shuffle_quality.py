"""How random orders are, compared with orders that are exactly uniform: pairs, runs and chi-squared over many seeds.

Each test returns one number for a set of orders. The distribution of that number for uniform orders is measured, with
orders of numpy's generator, which rejects words so that no item is favoured. So no formula has to hold for it, and a
p-value is exact. For each test there are two p-values:

- `spread`: Kolmogorov and Smirnov's comparison of the numbers of many seeds with those of uniform orders. The p-values
  of a single seed are then uniform from 0 to 1, and this is their test: one seed with p = 0.003 in 300 is expected.
- `together`: all orders of all seeds as one set. This finds a bias that is small but the same for every key.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
import torch

from rankscope.sampling.keyed import KeyedPermutation

NUM_ITEMS = 512
"""Items at the beginning of each order that are examined."""

_BINS = 16


class QualityTest(NamedTuple):
    """The p-values of one test."""

    spread: float
    together: float


class _SetOfOrders(NamedTuple):
    """What is counted in a set of orders; counts of several sets add up.

    `counts` has for each test of frequencies the observed counts, and `expected` those of uniform orders. `numbers` has
    for every other test its number for each order.
    """

    counts: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]
    numbers: dict[str, np.ndarray]


def beginning_of_order(kind, size, seed, number):
    """Return the first items of one order: "keyed", "torch", or "uniform"."""
    count = min(size, NUM_ITEMS)
    if kind == "keyed":
        return KeyedPermutation(size, f"seed {seed}, order {number}")(np.arange(count))
    if kind == "torch":
        return torch.randperm(size, generator=torch.Generator().manual_seed(seed * 1_000_000 + number))[:count]
    return np.random.default_rng([seed, number]).choice(size, count, replace=False, shuffle=True)


def sets_of_orders(kind, size, num_seeds, num_orders):
    """Return what is counted for each seed, in so many orders each."""
    sets = []
    for seed in range(num_seeds):
        rows = np.stack([beginning_of_order(kind, size, seed, number) for number in range(num_orders)])
        sets.append(_counted(rows, size))
    return sets


def quality(sets, uniform_sets):
    """Return the `QualityTest` of each test, by name."""
    tests = {}
    for name in sets[0].counts:
        values = [_chi_squared([orders], name) for orders in sets]
        reference = [_chi_squared([orders], name) for orders in uniform_sets]
        # In a set of any number of orders, chi-squared has nearly the same distribution: a multiple of chi-squared with
        # some other number of degrees of freedom, because the items of an order depend on each other.
        mean = np.mean(reference)
        variance = np.var(reference, ddof=1)
        all_together = _chi_squared(sets, name)
        together = scipy.stats.chi2.sf(all_together * 2 * mean / variance, 2 * mean**2 / variance)
        tests[name] = QualityTest(_spread(values, reference), float(together))
    for name in sets[0].numbers:
        values = [orders.numbers[name].mean() for orders in sets]
        reference = [orders.numbers[name].mean() for orders in uniform_sets]
        tests[name] = QualityTest(_spread(values, reference), _same_mean(values, reference))
    return tests


def lowest_p_value(tests):
    return min(min(test) for test in tests.values())


def _spread(values, reference):
    return float(scipy.stats.ks_2samp(values, reference).pvalue)


def _same_mean(values, reference):
    if len({*values, *reference}) == 1:  # as fixed points in a trillion items: none in any order
        return 1.0
    return float(scipy.stats.ttest_ind(values, reference, equal_var=False).pvalue)


def _chi_squared(sets, name):
    observed = np.sum([orders.counts[name] for orders in sets], axis=0)
    expected = np.sum([orders.expected[name] for orders in sets], axis=0)
    return float(((observed - expected) ** 2 / expected).sum())


def _counted(rows, size):
    num_orders, count = rows.shape
    counts = {}
    expected = {}
    high = rows * _BINS // size
    low = rows % _BINS
    share_of_high = _sizes_of_bins(size, _BINS) / size
    share_of_low = np.array([len(range(number, size, _BINS)) for number in range(_BINS)]) / size
    counts["one position"] = np.stack([(high[:, :64] == number).sum(axis=0) for number in range(_BINS)])
    expected["one position"] = np.repeat(share_of_high[:, None], 64, axis=1) * num_orders
    for lag in (1, 2, 32, 256):
        counts[f"pairs {lag} apart"] = _pairs(high, lag)
        expected[f"pairs {lag} apart"] = _expected_pairs(share_of_high, size) * high[:, lag:].size
    counts["pairs, lowest bits"] = _pairs(low, 1)
    expected["pairs, lowest bits"] = _expected_pairs(share_of_low, size) * low[:, 1:].size
    distances = (rows[:, 1:] - rows[:, :-1]) % size
    counts["distances"] = np.bincount(distances.ravel() * 32 // size, minlength=32)
    possible = _sizes_of_bins(size, 32)
    possible[0] -= 1  # a distance of 0
    expected["distances"] = possible / (size - 1) * distances.size
    places = np.arange(count) // 32
    counts["place and item"] = np.bincount((places * _BINS + high).ravel(), minlength=_BINS * _BINS)
    expected["place and item"] = np.outer(np.bincount(places, minlength=_BINS), share_of_high).ravel() * num_orders
    ascents = (rows[:, 1:] > rows[:, :-1]).sum(axis=1)
    numbers = {
        "runs": ascents,
        "spread of runs": (ascents - (count - 1) / 2) ** 2,
        "fixed points": (rows == np.arange(count)).sum(axis=1),
    }
    return _SetOfOrders(counts, expected, numbers)


def _sizes_of_bins(size, num_bins):
    """Return how many of 0 … size - 1 are in each of so many bins: item i is in bin ``i * num_bins // size``."""
    edges = [-(-number * size // num_bins) for number in range(num_bins + 1)]
    return np.diff(edges)


def _pairs(bins, lag):
    return np.bincount((bins[:, :-lag] * _BINS + bins[:, lag:]).ravel(), minlength=_BINS * _BINS)


def _expected_pairs(shares, size):
    """Return the probability of each pair of bins for two different items."""
    in_bin = shares * size
    pairs = np.outer(in_bin, in_bin) - np.diag(in_bin)
    return (pairs / (size * (size - 1))).ravel()
