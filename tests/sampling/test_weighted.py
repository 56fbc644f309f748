"""WeightedSampler draws each sample as often as its weight says: within one draw in every epoch, exactly on average."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
import scipy
import torch

from rankscope.sampling import WeightedSampler
from rankscope.sampling.weighted import expected_counts

from ..extents import SAMPLE_OR_EVERYTHING


def counts_of(sampler, epoch=0):
    sampler.set_epoch(epoch)
    draws = np.concatenate(sampler.all_ranks().indices)
    return np.bincount(draws, minlength=sampler.size)


def exact_counts(weights, num_samples, replacement):
    """Return the expected counts in exact fractions."""
    shares = [Fraction(float(weight)) for weight in weights]
    expected = [Fraction(0)] * len(shares)
    is_open = [share > 0 for share in shares]
    num_open = num_samples
    while num_open:
        total = sum(share for share, is_left in zip(shares, is_open, strict=True) if is_left)
        certain = []
        for place, share in enumerate(shares):
            if is_open[place]:
                expected[place] = num_open * share / total
                if not replacement and expected[place] >= 1:
                    certain.append(place)
        if not certain:
            return expected
        for place in certain:
            expected[place] = Fraction(1)
            is_open[place] = False
        num_open -= len(certain)
    return [value if not is_left else Fraction(0) for value, is_left in zip(expected, is_open, strict=True)]


@SAMPLE_OR_EVERYTHING
def test_each_epoch_draws_within_one_of_the_exact_expectation(everything):
    draw = random.Random(0)
    for _ in range(10_000 if everything else 600):
        size = draw.randint(1, 12)
        weights = [draw.choice([0, 1, 1, 2.5, 0.1, 1e-9, 1e6]) for _ in range(size)]
        num_positive = sum(weight > 0 for weight in weights)
        if not num_positive:
            continue
        replacement = draw.random() < 0.5
        num_samples = draw.randint(0, 40 if replacement else num_positive)
        sampler = WeightedSampler(weights, num_samples=num_samples, replacement=replacement, seed=draw.randint(0, 99))
        expected = exact_counts(weights, num_samples, replacement)
        assert np.abs(sampler.expected - np.array(expected, dtype=float)).max() < 1e-9
        assert int(sampler._shares.sum()) == num_samples << sampler._fraction_bits
        counts = counts_of(sampler, draw.randint(0, 3))
        assert counts.sum() == num_samples
        for count, value in zip(counts.tolist(), expected, strict=True):
            assert float(value) - 1 - 1e-9 < count < float(value) + 1 + 1e-9
            if value.denominator == 1:
                assert count == value
            if not replacement:
                assert count <= 1


@pytest.mark.parametrize("replacement", [True, False])
def test_the_mean_over_epochs_is_the_expectation(replacement):
    weights = np.array([5.0, 3.0, 2.0, 1.0, 1.0, 0.5, 0.25, 0.0])
    sampler = WeightedSampler(weights, num_samples=4, replacement=replacement)
    num_epochs = 4000
    total = sum(counts_of(sampler, epoch) for epoch in range(num_epochs))
    fraction = sampler.expected - np.floor(sampler.expected)
    deviation = np.sqrt(fraction * (1 - fraction) * num_epochs)
    difference = np.abs(total - num_epochs * sampler.expected)
    assert (difference <= 4.5 * deviation + 1e-6).all()
    assert total[-1] == 0


def test_torch_without_replacement_favours_light_samples():
    """Why ours is not torch.multinomial: its chances are not in proportion to the weights."""
    weights = torch.tensor([4.0, 2.0, 1.0, 1.0])
    torch.manual_seed(0)
    drawn = torch.multinomial(weights.expand(20_000, 4), 2, replacement=False)
    shares = torch.bincount(drawn.ravel(), minlength=4).double() / 20_000
    exact = expected_counts(weights.double().numpy(), 2, replacement=False)
    assert exact.tolist() == [1.0, 0.5, 0.25, 0.25]
    assert shares[0] < 0.9
    assert shares[2] > 0.3


def test_the_order_of_the_draws_is_random():
    sampler = WeightedSampler([1.0, 1.0], num_samples=2000)
    heads = np.array(list(sampler))
    changes = int((heads[1:] != heads[:-1]).sum())
    assert scipy.stats.binom.cdf(changes, 1999, 0.5) > 1e-5
    assert scipy.stats.binom.sf(changes, 1999, 0.5) > 1e-5


def test_equal_weights_read_every_sample_once():
    assert (counts_of(WeightedSampler(np.full(100_000, 0.1))) == 1).all()
    assert (counts_of(WeightedSampler(np.full(777, 1e-300), replacement=False)) == 1).all()
    assert (counts_of(WeightedSampler(np.full(10, 1e308), num_samples=30)) == 3).all()


def test_weights_whose_ratio_is_below_the_smallest_float_are_drawn_once_without_replacement():
    sampler = WeightedSampler([1e300, 1e-300, 0, 5], num_samples=3, replacement=False)
    assert sampler.expected.tolist() == [1, 1, 0, 1]
    assert sorted(sampler) == [0, 1, 3]


def test_tiny_weights_are_expected_hardly_ever_and_not_less_than_never():
    """Rounding errors of large shares must not be taken from tiny ones."""
    draw = np.random.default_rng(0)
    cases = [[1e-19, 2.8e-17, 0, 0.1, 1e-17]]
    cases += [10.0 ** draw.uniform(-20, 0, draw.integers(2, 12)) for _ in range(300)]
    for weights in cases:
        for num_samples, replacement in [(1, False), (2, False), (1, True), (100, True)]:
            sampler = WeightedSampler(weights, num_samples=num_samples, replacement=replacement)
            assert (sampler.expected >= 0).all()
            assert replacement or (sampler.expected <= 1).all()
            assert int(sampler._shares.sum()) == num_samples << sampler._fraction_bits


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": [[1.0], [1.0, 2.0]]}, "weights must be a 1-D array of numbers, one for each sample: "),
        ({"weights": torch.ones(3, dtype=torch.bfloat16)}, "weights must be a 1-D array of numbers, .*BFloat16"),
        ({"weights": torch.ones(3, requires_grad=True)}, "weights must be a 1-D array of numbers, .*requires grad"),
        ({"weights": [1, -0.5]}, "weights must be finite numbers of at least 0, got -0.5 for sample 1"),
        ({"weights": [float("nan"), 1]}, "weights must be finite .*, got nan for sample 0"),
        ({"weights": [1, float("inf")]}, "weights must be finite .*, got inf for sample 1"),
        ({"weights": [0, 0]}, "weights must have at least one above 0, got 2 that are 0"),
        ({"weights": [], "num_samples": 3}, "weights must have at least one above 0, got none"),
        ({"weights": ["a"]}, "weights must be a 1-D array of numbers, one for each sample, got <U1 of shape"),
        ({"weights": [[1.0]]}, "weights must be a 1-D array of numbers"),
        ({"num_samples": -1}, "num_samples must be a whole number from 0 to 2147483648, got -1"),
        ({"num_samples": 3, "replacement": False}, "num_samples must be at most 2 without replacement, .*, got 3"),
        ({"replacement": "no"}, "replacement must be True or False, got 'no'"),
    ],
)
def test_bad_input(arguments, message):
    recipe = {"weights": [1.0, 0.0, 2.0]} | arguments
    with pytest.raises(ValueError, match=message):
        WeightedSampler(recipe.pop("weights"), 1, 0, **recipe)
