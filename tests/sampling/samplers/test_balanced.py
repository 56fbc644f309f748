"""BalancedSampler: equal numbers of batches, nearly equal cost, every sample once, in an order that stays random."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from rankscope.sampling import Assignment, BalancedSampler, epoch_work
from rankscope.sampling.samplers.balancing import ascending


def lognormal_lengths(size, mean=5.0):
    return np.exp(np.random.default_rng(0).normal(mean, 1.0, size)).astype(np.int64) + 1


def ratios_of(sampler, cost="linear"):
    """Return the highest cost over the mean cost of each step."""
    indices, stops = sampler.all_ranks()
    return epoch_work(Assignment(sampler.size, indices, batch_stops=stops), sampler.lengths, cost).ratios


# ---- the bar


def test_every_full_step_is_balanced_within_five_percent_where_random_order_is_far_off():
    lengths = lognormal_lengths(64 * 8 * 200)
    sampler = BalancedSampler(lengths, 64, 0, batch_size=8, window=100)
    ratios = ratios_of(sampler)
    assert ratios.size == 200
    assert ratios.max() < 1.05
    at_random = lengths[sampler._order(0, lengths.size)].reshape(-1, 64, 8).sum(axis=2)
    assert (at_random.max(axis=1) / at_random.mean(axis=1)).mean() > 1.5


@pytest.mark.parametrize("extra", [1, 63, 64, 65, 511, 1553, 25_000])
def test_the_last_step_is_balanced_at_any_size(extra):
    """Also where few samples remain, and with the samples that padding repeats."""
    lengths = lognormal_lengths(64 * 8 * 100 + extra)
    ratios = ratios_of(BalancedSampler(lengths, 64, 0, batch_size=8, window=100))
    assert ratios.size == -(-lengths.size // 512)
    assert ratios.max() < 1.05


def test_costs_other_than_the_length_are_as_balanced_as_the_longest_sample_allows():
    """A sample whose cost is above that of any possible batch makes its step unequal, whoever divides it."""
    lengths = lognormal_lengths(8 * 8 * 100, mean=6.0)
    quadratic = ratios_of(BalancedSampler(lengths, 8, 0, batch_size=8, cost="quadratic"), "quadratic")
    unaware = ratios_of(BalancedSampler(lengths, 8, 0, batch_size=8), "quadratic")
    assert np.median(quadratic) < 1.05
    assert quadratic.mean() < unaware.mean()


def test_the_order_stays_random():
    """A sample is read in the window of its random place, and long samples come neither early nor late in it."""
    lengths = lognormal_lengths(4 * 4 * 50 * 20)
    sampler = BalancedSampler(lengths, 4, 0, batch_size=4, window=50)
    reads = sampler.all_ranks()
    by_step = np.stack([indices.reshape(-1, 4) for indices in reads.indices], axis=1).reshape(20, -1)
    order = sampler._order(0, lengths.size).reshape(20, -1)
    assert np.array_equal(np.sort(by_step, axis=1), np.sort(order, axis=1))
    assert not np.array_equal(by_step, order)
    step_costs = lengths[by_step].reshape(20 * 50, 16).sum(axis=1)
    steps_in_window = np.tile(np.arange(50), 20)
    assert abs(np.corrcoef(step_costs, steps_in_window)[0, 1]) < 0.12


# ---- the parts


def test_ascending_is_a_stable_sort():
    draw = np.random.default_rng(0)
    for size in (0, 1, 2, 1000):
        values = draw.integers(0, 20, size).astype(float) / 3
        assert np.array_equal(ascending(values), np.argsort(values, kind="stable"))
    assert ascending(np.array([0.0, -0.0, 1e-300])).tolist() == [0, 1, 2]


def test_a_last_step_is_filled_up_with_samples_of_its_cost():
    """Of 7, 8, 9, 9 the 8 is of medium cost. It and the first 9 are nearest to 8, and so are read twice."""
    reads = BalancedSampler([9, 7, 8, 9], 3, 0, shuffle=False)
    assert [indices.tolist() for indices in reads.all_ranks().indices] == [[0, 2], [1, 0], [3, 2]]
    assert reads.padding == 2


# ---- batches of tokens


def test_batches_of_tokens_are_equal_in_number_and_each_sample_is_read_once_on_changing_ranks():
    """Read in up to four parts, on other ranks and with other budgets, as if never stopped where nothing changes."""
    draw = random.Random(0)
    for trial in range(150):
        lengths = np.random.default_rng(trial).integers(0, 21, draw.randint(0, 80))
        drop_last = draw.random() < 0.3
        state = None
        read = []
        for part in range(4):
            num_ranks = draw.randint(1, 6)
            budget = draw.randint(20, 90)
            window = draw.randint(1, 4)

            def ranks(state, num_ranks=num_ranks, budget=budget, window=window, lengths=lengths, drop_last=drop_last):
                options = {"max_tokens": budget, "window": window, "drop_last": drop_last}
                made = [BalancedSampler(lengths, num_ranks, rank, **options) for rank in range(num_ranks)]
                for sampler in made if state else []:
                    sampler.load_state_dict(json.loads(json.dumps(state)))
                return made

            samplers = ranks(state)
            padding = samplers[0].padding
            (num_steps,) = {len(sampler) for sampler in samplers}
            (states,) = {json.dumps(sampler.state_after(num_steps // (4 - part))) for sampler in samplers}
            state = json.loads(states)
            items = [list(sampler) for sampler in samplers]
            assert {len(batches) for batches in items} == {num_steps}
            padded = [len(batch) * max(lengths[batch]) for batches in items for batch in batches]
            assert max(padded, default=0) <= budget
            trained = num_steps // (4 - part)
            if trained < num_steps:
                assert [list(sampler) for sampler in ranks(state)] == [batches[trained:] for batches in items]
            together = ranks(None)[0].all_ranks().indices if part == 0 else ()
            for batches, indices in zip(items, together, strict=False):
                assert [index for batch in batches for index in batch] == indices.tolist()
            read += [index for batches in items for batch in batches[:trained] for index in batch]
        counts = np.bincount(read, minlength=lengths.size)
        if drop_last:
            assert counts.max(initial=0) <= 1
            assert np.count_nonzero(counts == 0) < num_ranks
        else:
            assert counts.min(initial=1) == 1
            assert counts.sum() == lengths.size + padding


def test_batches_of_tokens_need_little_padding_and_ranks_have_nearly_equal_work():
    lengths = np.minimum(lognormal_lengths(8 * 8 * 200), 2000)
    sampler = BalancedSampler(lengths, 8, 0, max_tokens=8000)
    indices, stops = sampler.all_ranks()
    work = epoch_work(Assignment(sampler.size, indices, batch_stops=stops), lengths)
    assert work.padding_share < 0.1
    assert work.imbalance < 1.03
    assert np.median(work.step_tokens) > 0.85 * 8 * 8000
