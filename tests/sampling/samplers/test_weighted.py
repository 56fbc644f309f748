"""WeightedSampler draws each sample as often as its weight says: within one draw in every epoch, exactly on average."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import scipy

from rankscope.sampling import WeightedSampler
from tests.extents import SAMPLE_OR_EVERYTHING


def counts_of(sampler, epoch=0):
    sampler.set_epoch(epoch)
    draws = np.concatenate(sampler.all_ranks().indices)
    return np.bincount(draws, minlength=sampler.size)


@SAMPLE_OR_EVERYTHING
def test_each_epoch_draws_within_one_of_the_exact_expectation(everything):
    draw = random.Random(0)
    for _ in range(10_000 if everything else 600):
        size = draw.randint(1, 12)
        weights = [draw.choice([0, 1, 1, 2.5, 0.1, 1e-9, 1e6]) for _ in range(size)]
        if not any(weights):
            continue
        num_samples = draw.randint(0, 40)
        sampler = WeightedSampler(weights, num_samples=num_samples, seed=draw.randint(0, 99))
        exact_weights = [Fraction(float(weight)) for weight in weights]
        expected = [num_samples * weight / sum(exact_weights) for weight in exact_weights]
        assert np.abs(sampler.expected - np.array(expected, dtype=float)).max() < 1e-9
        assert int(sampler._shares.sum()) == num_samples << sampler._fraction_bits
        counts = counts_of(sampler, draw.randint(0, 3))
        assert counts.sum() == num_samples
        for count, value in zip(counts.tolist(), expected, strict=True):
            assert float(value) - 1 - 1e-9 < count < float(value) + 1 + 1e-9
            if value.denominator == 1:
                assert count == value


def test_the_mean_over_epochs_is_the_expectation():
    weights = np.array([5.0, 3.0, 2.0, 1.0, 1.0, 0.5, 0.25, 0.0])
    sampler = WeightedSampler(weights, num_samples=4)
    num_epochs = 4000
    total = sum(counts_of(sampler, epoch) for epoch in range(num_epochs))
    fraction = sampler.expected - np.floor(sampler.expected)
    deviation = np.sqrt(fraction * (1 - fraction) * num_epochs)
    difference = np.abs(total - num_epochs * sampler.expected)
    assert (difference <= 4.5 * deviation + 1e-6).all()
    assert total[-1] == 0


def test_the_order_of_the_draws_is_random():
    sampler = WeightedSampler([1.0, 1.0], num_samples=2000)
    heads = np.array(list(sampler))
    changes = int((heads[1:] != heads[:-1]).sum())
    assert scipy.stats.binom.cdf(changes, 1999, 0.5) > 1e-5
    assert scipy.stats.binom.sf(changes, 1999, 0.5) > 1e-5


def test_equal_weights_read_every_sample_once():
    assert (counts_of(WeightedSampler(np.full(777, 1e-300))) == 1).all()
    assert (counts_of(WeightedSampler(np.full(10, 1e308), num_samples=30)) == 3).all()
