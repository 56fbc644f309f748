"""The audit counts tokens, cost per step and padding, and finds planted faults."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rankscope.sampling import Assignment, AuditError, assign, audit, epoch_work


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
