"""The audit counts tokens, cost per step, padding and the bias of weights, and finds planted faults."""

from __future__ import annotations

import random

import attrs
import numpy as np
import pytest

from rankscope.sampling import Assignment, AuditError, PackedSampler, WeightedSampler, assign, audit, epoch_work
from rankscope.sampling.work import weight_bias


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
        work = epoch_work(assignment, lengths, lambda tokens: (1 + tokens**2) / 128)
        num_padded = np.zeros(work.step_costs.shape[0], dtype=int)
        num_tokens = np.zeros_like(num_padded)
        for rank in range(num_ranks):
            batches = [[lengths[index] for index in batch] for batch in assignment.batches(rank)]
            assert work.tokens[rank] == sum(map(sum, batches))
            for step in range(work.step_costs.shape[0]):
                batch = batches[step] if step < len(batches) else []
                assert work.step_costs[step, rank] == sum((1 + length**2) / 128 for length in batch)
                num_padded[step] += max(batch, default=0) * len(batch) - sum(batch)
                num_tokens[step] += sum(batch)
        assert work.num_padding_tokens == num_padded.sum()
        num_processed = num_padded + num_tokens
        shares = [part / whole if whole else 0 for part, whole in zip(num_padded, num_processed, strict=True)]
        assert work.step_padding_shares.tolist() == shares
        assert work.padding_share == (num_padded.sum() / num_processed.sum() if num_processed.any() else 0)
        ratios = [max(costs) / (sum(costs) / num_ranks) for costs in work.step_costs.tolist()]
        assert work.ratios == pytest.approx(ratios)
        means = [sum(costs) / num_ranks for costs in work.step_costs.tolist()]
        waited = sum(map(max, work.step_costs.tolist())) / sum(means) if means else 1
        assert work.imbalance == pytest.approx(waited)


def test_packed_sequences_are_padded_to_their_room():
    packed = assign(5, 1, sampler="packed", lengths=[6, 3, 5, 2, 4], max_tokens=10, shuffle=False)
    assert epoch_work(packed, [6, 3, 5, 2, 4], max_tokens=10).num_padding_tokens == 10
    with pytest.raises(
        ValueError, match="max_tokens must be at least the tokens of each batch, got 8: batch 0 of rank 0"
    ):
        epoch_work(packed, [6, 3, 5, 2, 4], max_tokens=8)
    with pytest.raises(
        ValueError, match="max_tokens must be a whole number from 1 to 1125899906842624, got 4611686018"
    ):
        epoch_work(packed, [6, 3, 5, 2, 4], max_tokens=2**62)


@pytest.mark.parametrize("num_ranks", [1, 8192])
def test_padding_that_exceeds_64_bits_is_refused(num_ranks):
    ones = [1] * 8192
    with pytest.raises(ValueError, match=f"max_tokens must be at most {2**50 - 1} for 8192 batches, got {2**50}"):
        epoch_work(assign(8192, num_ranks), ones, max_tokens=2**50)
    assert epoch_work(assign(8192, num_ranks), ones, max_tokens=2**50 - 1).num_padding_tokens == 8192 * (2**50 - 2)


def test_unequal_costs_and_padding_are_found_and_balanced_epochs_are_clean():
    lengths = np.exp(np.random.default_rng(0).normal(5, 1, 8 * 4 * 100)).astype(int) + 1
    at_random = audit(assign(lengths.size, 8).with_loader(4), lengths=lengths)
    assert kinds(at_random) == {"unequal_cost", "padding_waste"}
    imbalance = epoch_work(assign(lengths.size, 8).with_loader(4), lengths).imbalance
    assert imbalance > 1.5
    with pytest.raises(
        AuditError, match=f"the costliest batch of a step costs {imbalance:.2f} times the mean, so ranks wai"
    ):
        at_random.check(allow=["padding_waste"])
    balanced = audit(assign(lengths.size, 8, sampler="balanced", lengths=lengths, batch_size=4), lengths=lengths)
    assert "unequal_cost" not in kinds(balanced)
    assert "cost per step: highest over mean 1.0" in str(balanced)
    packed = assign(lengths.size, 8, sampler="packed", lengths=lengths, max_tokens=int(lengths.max()))
    assert "padding_waste" not in kinds(audit(packed, lengths=lengths, max_tokens=int(lengths.max())))


def test_a_rank_without_a_batch_is_found():
    uneven = Assignment(3, ([0, 1], [2]))
    assert "unbalanced" in kinds(audit(uneven, lengths=[1, 1, 1]))
    even = Assignment(6, ([0, 1, 2], [3, 4, 5]))
    for without_cost, is_unbalanced in ((0, False), (1, False), (2, True), (5, True)):
        lengths = [int(sample != without_cost) for sample in range(6)]
        assert ("unbalanced" in kinds(audit(even, lengths=lengths))) == is_unbalanced


def test_what_epochs_cost_is_summed_and_the_worst_is_named():
    """Batches of 5 and 3 tokens on each of two ranks: a fifth of the tokens is padding, which is not too much."""
    epoch = Assignment(4, ([0, 1], [2, 3])).with_loader(2)
    report = audit([epoch] * 3, lengths=[5, 3, 5, 3])
    lines = str(report).splitlines()
    assert lines[1:4] == [
        "  tokens per rank: 24 to 24, 48 in all",
        "  cost per step: highest over mean 1.000, in the worst step 1.000",
        "  padding: 20.0 % of the tokens",
    ]
    assert "padding_waste" not in kinds(report)
    padded = {finding.kind: finding.message for finding in audit(epoch, lengths=[6, 3, 5, 3]).findings}
    assert padded == {
        "unequal_cost": "the costliest batch of a step costs 1.06 times the mean, so ranks wait for 6 % of the time",
        "padding_waste": "23 % of the processed tokens are padding",
    }


def test_an_epoch_without_work_costs_nothing():
    nothing = epoch_work(Assignment(2, ([], [])), [3, 4])
    assert (nothing.imbalance, nothing.padding_share, nothing.ratios.size) == (1, 0, 0)
    free = epoch_work(Assignment(2, ([0], [1])), [0, 0])
    assert (free.imbalance, free.padding_share, free.ratios.tolist()) == (1, 0, [1])
    assert free.step_padding_shares.tolist() == [0]


def test_the_least_likely_sample_is_named_with_its_deviance():
    """Poisson: 2 (r log(r / e) - r + e) is 4 (2 log 2 - 1) = 1.545 for 4 reads of which 2 are expected, and 6 for 0."""
    bias = weight_bias(np.array([4, 0, 5, 2]), np.array([2.0, 3.0, 0.0, 2.0]))
    assert (bias.sample, bias.num_forbidden) == (1, 5)
    assert bias.deviations == pytest.approx(6**0.5)
    assert weight_bias(np.array([4]), np.array([2.0])).deviations == pytest.approx((4 * (2 * np.log(2) - 1)) ** 0.5)
    for reads, expected in ((4, 0.5), (1, 3.0)):
        deviance = 2 * (reads * np.log(reads / expected) - reads + expected)
        assert weight_bias(np.array([reads]), np.array([expected])).deviations == pytest.approx(deviance**0.5)
    assert weight_bias(np.zeros(0, dtype=int), np.zeros(0)).deviations == 0


def test_weights_that_are_obeyed_are_clean_and_others_are_found():
    weights = np.random.default_rng(1).exponential(size=500)
    weights[7] = 0
    obeyed = [assign(500, 4, sampler="weighted", weights=weights, epoch=epoch) for epoch in range(20)]
    report = audit(obeyed, weights=weights)
    assert kinds(report) == set()
    assert "every sample is read in proportion to its weight" in str(report)
    ignored = audit([assign(500, 4, epoch=epoch) for epoch in range(20)], weights=weights)
    assert kinds(ignored) == {"weight_bias"}
    messages = [finding.message for finding in ignored.findings]
    assert messages[0] == "20 reads of samples whose weight is 0"
    assert "standard deviations" in messages[1]


def test_draws_that_drop_last_leaves_unread_are_expected_so():
    """A heavy sample is drawn in each of these epochs, but read in four of seven, because three draws are dropped."""
    weights = [100.0] + [1.0] * 30
    settings = {"sampler": "weighted", "weights": weights, "num_samples": 7, "replacement": False, "drop_last": True}
    epochs = [assign(31, 4, epoch=epoch, **settings) for epoch in range(300)]
    assert "weight_bias" not in kinds(audit(epochs, weights=weights))
    without_number = [attrs.evolve(epoch, num_draws=None) for epoch in epochs]
    assert "weight_bias" in kinds(audit(without_number, weights=weights))
    samplers = [
        WeightedSampler(weights, 4, rank, num_samples=7, replacement=False, drop_last=True) for rank in range(4)
    ]
    assert Assignment.collect(samplers, 31).num_draws == 7


@pytest.mark.parametrize("num_draws", [0, 1, 2**31])
def test_an_epoch_may_state_any_number_of_draws_that_a_sampler_may_have(num_draws):
    epoch = assign(3, 1, sampler="weighted", weights=[1, 1, 1], num_samples=3, replacement=False)
    stated = attrs.evolve(epoch, num_draws=num_draws)
    assert audit(stated, weights=[1, 1, 1]).weight_bias.expected.tolist() == [1, 1, 1]


def test_draws_without_replacement_are_compared_with_their_own_expectation():
    weights = [100, 1, 1, 1, 1]
    settings = {"sampler": "weighted", "weights": weights, "num_samples": 3, "replacement": False}
    for num_ranks in (1, 2):  # on two ranks, a fourth read is padding
        epochs = [assign(5, num_ranks, epoch=epoch, **settings) for epoch in range(600)]
        report = audit(epochs, weights=weights)
        assert "weight_bias" not in kinds(report)
        assert ("duplicates" in kinds(report)) == (num_ranks == 2)
        assert report.weight_bias.expected.tolist() == [600, 300, 300, 300, 300]
        assert "weight_bias" in kinds(audit(epochs, weights=weights, replacement=True))
    with_replacement = [assign(5, 1, epoch=epoch, **settings | {"replacement": True}) for epoch in range(60)]
    assert not kinds(audit(with_replacement, weights=weights)) & {"weight_bias", "duplicates", "overlap"}
    assert "duplicates" in kinds(audit(with_replacement, weights=weights, replacement=False))
    collected = [Assignment.collect([WeightedSampler(weights, num_samples=3, replacement=False)], 5)]
    assert audit(collected, weights=weights).weight_bias.expected.tolist() == [1, 0.5, 0.5, 0.5, 0.5]


LENGTHS = [3, 9, 2, 5, 7, 1, 4, 8, 6, 2]


@pytest.mark.parametrize(("sampler", "max_tokens"), [("packed", 9), ("balanced", 12)])
def test_equally_many_batches_of_different_sizes_are_no_finding(sampler, max_tokens):
    epoch = assign(10, 2, sampler=sampler, lengths=LENGTHS, max_tokens=max_tokens)
    sizes = {indices.size for indices in epoch.ranks}
    assert len(sizes) == 2
    assert "unbalanced" not in kinds(audit(epoch))
    fewer = Assignment(10, epoch.ranks, batch_stops=(epoch.batch_stops[0][1:], epoch.batch_stops[1]))
    counts = [stops.size for stops in fewer.batch_stops]
    messages = [finding.message for finding in audit(fewer).findings if finding.kind == "unbalanced"]
    assert messages == [f"ranks read from {counts[0]} to {counts[1]} batches in epoch 0"]


def test_packs_are_padded_to_their_tokens_not_to_their_longest_document(tmp_path):
    epoch = assign(10, 2, sampler="packed", lengths=LENGTHS, max_tokens=10)
    num_packs = sum(stops.size for stops in epoch.batch_stops)
    num_tokens = sum(np.array(LENGTHS)[indices].sum() for indices in epoch.ranks)
    assert epoch_work(epoch, LENGTHS).num_padding_tokens == num_packs * 10 - num_tokens
    loaded = Assignment.load(epoch.save(tmp_path / "epoch.npz"))
    collected = Assignment.collect([PackedSampler(LENGTHS, 10, 2, rank) for rank in range(2)], 10)
    assert loaded.padded_to == collected.padded_to == 10
    assert assign(10, 2, sampler="balanced", lengths=LENGTHS, max_tokens=10).padded_to is None


def test_rare_samples_of_independent_draws_are_no_finding():
    """Of thousands of samples that are each expected once in fifty epochs, some are read once or twice."""
    weights = np.ones(20_000)
    weights[:10_000] = 0.001
    draw = np.random.default_rng(3)
    independent = Assignment(20_000, [draw.choice(20_000, 20_000, p=weights / weights.sum()) for _ in range(4)])
    assert kinds(audit(independent, weights=weights)) == set()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lengths": [1, 2]}, "lengths must have the dataset's length 4, got 2"),
        ({"weights": [1] * 5}, "weights must have the dataset's length 4, got 5"),
        ({"weights": [1] * 4, "replacement": "no"}, "replacement must be True or False, got 'no'"),
        ({"lengths": [1, 2, 3, -4]}, "lengths must be whole numbers from 0 to .* got -4 for sample 3"),
        ({"weights": [1, 2, 3, np.nan]}, "weights must be finite numbers of at least 0, got nan for sample 3"),
        ({"lengths": [1] * 4, "cost": "cubic"}, "cost must be one of"),
        ({"lengths": [1] * 4, "max_tokens": 0}, "max_tokens must be"),
    ],
)
def test_bad_input(settings, message):
    with pytest.raises(ValueError, match=message):
        audit(assign(4, 2), **settings)


@pytest.mark.parametrize("outside", [3, -1])
def test_the_first_index_beyond_the_dataset_is_outside(outside):
    epoch = Assignment(3, ([0, 1], [2, outside]))
    with pytest.raises(ValueError, match="rank 1 reads outside the dataset's 3 samples, so they have no lengths"):
        epoch_work(epoch, [1, 2, 3])
    with pytest.raises(ValueError, match="rank 1 reads outside the dataset's 3 samples"):
        epoch.count_labels([0, 0, 1])
    assert audit(epoch).out_of_range == 1


def test_reads_outside_the_dataset_have_no_length():
    with pytest.raises(ValueError, match="rank [0-9] reads outside the dataset's 3 samples, so they have no lengths"):
        audit(assign(3, 8, sampler="libtorch_random"), lengths=[1, 2, 3])


# ---- batches in an assignment


def test_an_assignment_with_batches_is_stored_and_shown(tmp_path):
    assignment = assign(40, 3, sampler="balanced", lengths=list(range(40)), max_tokens=80)
    loaded = Assignment.load(assignment.save(tmp_path / "epoch.npz"))
    assert [stops.tolist() for stops in loaded.batch_stops] == [stops.tolist() for stops in assignment.batch_stops]
    frame = loaded.to_frame()
    for rank in range(3):
        groups = frame[frame["rank"] == rank].groupby("batch")["index"]
        assert [group.tolist() for _, group in groups] == [batch.tolist() for batch in assignment.batches(rank)]
    with pytest.raises(ValueError, match="this assignment's sampler makes the batches, so a loader cannot"):
        assignment.with_loader(4)


@pytest.mark.parametrize(
    ("stops", "message"),
    [
        ([[1], [2], [3]], "batch_stops must have 2 ranks, got 3"),
        ([[1], [2]], "batch_stops of rank 0 must rise to 2, its number of reads"),
        ([[2], [2, 1, 2]], "batch_stops of rank 1 must rise to 2"),
    ],
)
def test_batches_that_do_not_fit_the_reads(stops, message):
    with pytest.raises(ValueError, match=message):
        Assignment(4, ([0, 1], [2, 3]), batch_stops=stops)


def test_a_batch_may_be_empty():
    batches = Assignment(3, ([0, 1, 2],), batch_stops=[[1, 1, 3]]).batches(0)
    assert [batch.tolist() for batch in batches] == [[0], [], [1, 2]]


def test_samplers_of_indices_and_of_batches_do_not_mix():
    collected = Assignment.collect([[[0], [1, 2]], []], 3)
    assert [[batch.tolist() for batch in collected.batches(rank)] for rank in (0, 1)] == [[[0], [1, 2]], []]
    with pytest.raises(ValueError, match="must all yield indices or all yield batches, got indices on rank 1"):
        Assignment.collect([[[0], [1]], [2, 3]], 4)
    with pytest.raises(ValueError, match="rank 0's sampler must yield whole numbers"):
        Assignment.collect([[[0.5]]], 4)
