"""The audit counts tokens, cost per step, padding and the bias of weights, and finds planted faults."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch.utils.data import WeightedRandomSampler

from rankscope.sampling import Assignment, AuditError, assign, audit, epoch_work
from rankscope.sampling.audits.weights import sum_of_squared_repeats, weight_bias
from tests.extents import SAMPLE_OR_EVERYTHING


def kinds(report):
    return {finding.kind for finding in report.findings}


def test_work_is_recounted_batch_by_batch():
    draw = random.Random(0)
    for _ in range(300):
        size = draw.randint(1, 40)
        num_ranks = draw.randint(1, 5)
        lengths = [draw.randint(0, 9) for _ in range(size)]
        assignment = assign(size, num_ranks, seed=draw.randint(0, 5), drop_last=draw.random() < 0.5)
        if draw.random() < 0.8:
            assignment = assignment.with_loader(draw.randint(1, 7), drop_last=draw.random() < 0.5)
        if draw.random() < 0.3:
            assignment = assign(size, num_ranks, sampler="balanced", lengths=lengths, batch_size=draw.randint(1, 4))
        if draw.random() < 0.2:  # a sampler's batches of any size, which may be empty
            stops = [[*sorted(draw.choices(range(rank.size + 1), k=3)), rank.size] for rank in assignment.ranks]
            assignment = Assignment(size, assignment.ranks, batch_stops=stops)
        work = epoch_work(assignment, lengths, lambda tokens: (1 + tokens**2) / 128)
        num_steps = work.step_costs.shape[0]
        costs = np.zeros((num_steps, num_ranks))
        tokens = np.zeros((num_steps, num_ranks), dtype=int)
        padding = np.zeros(num_steps, dtype=int)
        for rank in range(num_ranks):
            for step, indices in enumerate(assignment.batches(rank)):
                batch = [lengths[index] for index in indices]
                costs[step, rank] = sum((1 + length**2) / 128 for length in batch)
                tokens[step, rank] = sum(batch)
                padding[step] += max(batch, default=0) * len(batch) - sum(batch)
        assert work.step_costs.tolist() == costs.tolist()
        assert work.tokens.tolist() == tokens.sum(axis=0).tolist()
        processed = padding + tokens.sum(axis=1)
        assert work.step_padding_shares.tolist() == (padding / np.maximum(processed, 1)).tolist()
        assert work.padding_share == padding.sum() / max(processed.sum(), 1)
        assert work.ratios == pytest.approx([max(step) / (sum(step) / num_ranks or 1) or 1 for step in costs.tolist()])
        waited = costs.max(axis=1).sum() / costs.mean(axis=1).sum() if costs.any() else 1
        assert work.imbalance == pytest.approx(waited)


def test_unequal_costs_and_padding_are_found_and_balanced_epochs_are_clean():
    lengths = np.exp(np.random.default_rng(0).normal(5, 1, 8 * 4 * 100)).astype(int) + 1
    at_random = audit(assign(lengths.size, 8).with_loader(4), lengths=lengths)
    assert kinds(at_random) == {"unequal_cost", "padding_waste"}
    imbalance = epoch_work(assign(lengths.size, 8).with_loader(4), lengths).imbalance
    assert imbalance > 1.5
    with pytest.raises(AuditError, match=f"{imbalance:.2f} times"):
        at_random.check(allow=["padding_waste"])
    balanced = audit(assign(lengths.size, 8, sampler="balanced", lengths=lengths, batch_size=4), lengths=lengths)
    assert "unequal_cost" not in kinds(balanced)
    assert balanced.work[0].imbalance < 1.1


def test_a_rank_without_a_batch_is_found():
    uneven = Assignment(3, ([0, 1], [2]))
    assert "unbalanced" in kinds(audit(uneven, lengths=[1, 1, 1]))
    even = Assignment(6, ([0, 1, 2], [3, 4, 5]))
    for without_cost, is_unbalanced in ((0, False), (1, False), (2, True), (5, True)):
        lengths = [int(sample != without_cost) for sample in range(6)]
        assert ("unbalanced" in kinds(audit(even, lengths=lengths))) == is_unbalanced


@pytest.mark.parametrize("weights", [[1] * 90 + [20] * 10, [0.01] * 900 + [0.1] * 100], ids=["100", "1000"])
def test_ignored_weights_are_found_in_a_single_epoch(weights):
    """No sample alone is read much more or less often than its weight asks for, but the group of heavy ones is."""
    size = len(weights)
    report = audit(assign(size, 2), weights=weights)
    assert kinds(report) == {"weight_bias"}
    assert report.weight_bias.deviations < 6
    assert report.weight_bias.group_reads.tolist() == [size * 0.9, size * 0.1]
    assert kinds(audit(assign(size, 2, sampler="weighted", weights=weights), weights=weights)) == set()


def test_draws_without_replacement_are_not_accused():
    """250 of 500 samples, none twice, in torch's own order: they cannot be in proportion to the weights."""
    torch.manual_seed(0)
    weights = [1.0] * 250 + [9.0] * 250
    for _ in range(20):
        drawn = np.array(list(WeightedRandomSampler(weights, 250, replacement=False)))
        assert kinds(audit(Assignment(500, (drawn,)), weights=weights)) == set()


def test_groups_are_equal_weights_or_tenths_of_the_reads_and_their_test_is_scipys():
    draw = np.random.default_rng(0)
    few = draw.choice([0.5, 1.0, 4.0], 3000)
    many = draw.exponential(size=3000)
    for weights, num_groups in ((few, 3), (many, 10)):
        expected = 3000 * weights / weights.sum()
        reads = draw.multinomial(3000, weights / weights.sum())
        bias = weight_bias(reads, expected)
        assert bias.group_reads.size == num_groups
        assert bias.group_reads.sum() == 3000
        assert bias.p_value == pytest.approx(chisquare(bias.group_reads, bias.group_expected).pvalue)
    assert bias.group_expected == pytest.approx(np.full(10, 300), rel=0.02)


def test_padding_that_repeats_a_draw_on_many_ranks_is_no_finding():
    """On 64 ranks, 3 draws are read 64 times in all; with one step, all reads may be of one draw."""
    for seed in range(200):
        epoch = assign(5, 64, sampler="weighted", weights=[1, 2, 3, 4, 5], num_samples=3, seed=seed)
        assert kinds(audit(epoch, weights=[1, 2, 3, 4, 5])) == set()
    assert sum_of_squared_repeats(epoch) == 64 * 64
    two_steps = assign(100, 64, sampler="weighted", weights=[1] * 100)
    assert sum_of_squared_repeats(two_steps) == 128 + 2 * 63


# ---- weights: how often right samplers are accused, and faulty ones found


def random_weights(draw, size):
    kind = draw.choice(["two kinds", "few kinds", "all different", "long tail"])
    if kind == "two kinds":
        return np.where(np.arange(size) < size // 10, draw.choice([2.0, 5.0, 20.0]), 1.0)
    numbers = np.random.default_rng(draw.randrange(2**32))
    if kind == "few kinds":
        return numbers.choice([0.5, 1.0, 3.0, 8.0], size)
    return numbers.exponential(size=size) if kind == "all different" else numbers.lognormal(0, 1.5, size)


def right_epochs(draw, weights):
    """Return epochs of a right sampler: ours on random ranks, or torch's, which padding repeats on many of them."""
    num_ranks = draw.choice([1, 2, 8, 64])
    num_samples = draw.choice([weights.size, weights.size // 2 + 1, 2 * weights.size])
    seed = draw.randrange(2**31)
    for epoch in range(draw.choice([1, 1, 3])):
        if draw.random() < 0.5:
            options = {"weights": weights, "num_samples": num_samples, "seed": seed}
            yield assign(weights.size, num_ranks, sampler="weighted", epoch=epoch, **options)
        else:
            generator = torch.Generator().manual_seed(seed + epoch)
            drawn = np.array(list(WeightedRandomSampler(weights.tolist(), num_samples, generator=generator)))
            padded = np.resize(drawn, -(-num_samples // num_ranks) * num_ranks)
            yield Assignment(weights.size, [padded[rank::num_ranks] for rank in range(num_ranks)], epoch=epoch)


@SAMPLE_OR_EVERYTHING
def test_right_samplers_are_accused_at_most_once_in_a_thousand(everything):
    draw = random.Random(0)
    num_jobs = 3000 if everything else 200
    num_accused = 0
    for _ in range(num_jobs):
        weights = random_weights(draw, draw.choice([20, 100, 500, 2000]))
        num_accused += bool(audit(right_epochs(draw, weights), weights=weights).not_allowed(["repeated_order"]))
    print(f"{num_accused} of {num_jobs} right samplers accused")
    assert num_accused <= num_jobs / 1000


@SAMPLE_OR_EVERYTHING
@pytest.mark.parametrize(
    ("size", "power", "least"),
    [(100, 0.0, 0.8), (500, 0.0, 0.95), (2000, 0.0, 0.98), (500, 0.5, 0.5), (2000, 0.5, 0.9)],
    ids=["ignored, 100", "ignored, 500", "ignored, 2000", "square roots, 500", "square roots, 2000"],
)
def test_weights_that_are_not_obeyed_are_found_in_a_single_epoch(size, power, least, everything):
    """Of samplers that draw by another power of the weights."""
    draw = random.Random(1)
    found = []
    for _ in range(500 if everything else 50):
        weights = random_weights(draw, size)
        numbers = np.random.default_rng(draw.randrange(2**32))
        drawn = numbers.choice(size, size, p=weights**power / sum(weights**power))
        found.append(bool(audit(Assignment(size, [drawn]), weights=weights).findings))
    print(f"power {power}, {size} samples: {np.mean(found):.3f} found")
    assert np.mean(found) >= least
