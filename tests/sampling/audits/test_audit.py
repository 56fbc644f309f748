"""audit sees everything it says it sees: each fault is planted, then found, then counted a second way."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.sampling import Assignment, AuditError, DistributedSampler, assign, audit
from rankscope.sampling.audits.audit import Audit


def kinds(report):
    return {finding.kind for finding in report.findings}


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.integers(0, 12),
    st.lists(st.lists(st.integers(-3, 15), max_size=8), min_size=1, max_size=5),
)
def test_one_epoch_counted_by_hand(size, ranks):
    report = audit(Assignment(size, tuple(np.array(indices, dtype=int) for indices in ranks)))
    reads = Counter(index for indices in ranks for index in indices)
    readers = Counter(index for indices in ranks for index in set(indices))
    (epoch,) = report.epochs
    assert epoch.duplicated.tolist() == sorted(i for i, count in reads.items() if count > 1 and 0 <= i < size)
    assert epoch.overlap.tolist() == sorted(i for i, count in readers.items() if count > 1 and 0 <= i < size)
    assert epoch.dropped.tolist() == [index for index in range(size) if index not in reads]
    assert epoch.out_of_range.tolist() == sorted(index for index in reads if not 0 <= index < size)
    assert report.duplicates == sum(count - 1 for count in reads.values())
    uneven = max(map(len, ranks)) - min(map(len, ranks))
    assert ("unbalanced" in kinds(report)) == (uneven > 0)
    assert bool(report.findings) == (
        any(count > 1 for count in reads.values()) or set(reads) != set(range(size)) or uneven > 0
    )


def test_a_clean_run_has_no_findings():
    report = audit(assign(64, 4, epoch=epoch) for epoch in range(5))
    assert report.findings == ()
    report.check()
    assert "every sample is read exactly once per epoch" in repr(report)  # as a cell shows it


def test_a_finding_is_an_error_unless_its_kind_is_allowed():
    ranks = [indices.tolist() for indices in assign(64, 4).ranks]
    ranks[0][0] = ranks[1][0]
    ranks[2].pop()
    report = audit(Assignment(64, ranks))
    found = {"duplicates", "overlap", "dropped", "unbalanced"}
    assert kinds(report) == found
    for not_allowed in found:
        with pytest.raises(AuditError):
            report.check(allow=set(Audit.KINDS) - {not_allowed})
    report.check(allow=found)


def test_drop_last_with_fewer_samples_than_ranks_reads_nothing():
    report = audit(assign(3, 8, drop_last=True))
    assert kinds(report) == {"nothing_read", "dropped"}


def test_a_forgotten_set_epoch_is_found_and_a_kept_one_is_not():
    forgotten = audit(assign(100, 4, epoch=0) for _ in range(3))
    assert forgotten.repeated_orders == ((0, 1), (0, 2))
    late = audit(assign(100, 4, epoch=epoch) for epoch in (4, 5, 5, 6, 6, 5))
    assert late.repeated_orders == ((1, 2), (3, 4), (1, 5))
    assert "3 of 6 epochs" in str(late)
    assert audit(assign(100, 4, epoch=epoch) for epoch in range(3)).repeated_orders == ()


@pytest.mark.parametrize(
    ("recipes", "why"),
    [
        ([{"epoch": 3}, {"epoch": 3}], "was set_epoch forgotten?"),
        ([{"seed": 0, "epoch": 1}, {"seed": 1, "epoch": 0}], "seed + epoch is the same"),
        ([{"seed": 0}, {"seed": 2**32}], "seed + epoch is the same modulo 2**32"),
        ([{"size": 3, "num_ranks": 1, "seed": seed} for seed in (0, 512)], "by chance"),
    ],
)
def test_the_reason_of_a_repeated_order(recipes, why):
    report = str(audit(assign(**{"size": 100, "num_ranks": 4, **recipe}) for recipe in recipes))
    assert why in report.splitlines()[-1]
    assert ("forgotten" in report) == ("forgotten" in why)


def test_an_unshuffled_run_may_repeat():
    torchs = [DistributedSampler(100, 4, rank, shuffle=False) for rank in range(4)]
    assert audit(Assignment.collect(torchs, 100, epoch=e) for e in range(3)).repeated_orders == ()
    assert audit(assign(100, 4, shuffle=False, epoch=e) for e in range(3)).repeated_orders == ()


def test_the_same_reads_split_otherwise_are_another_order():
    even = Assignment(4, (np.array([0, 1]), np.array([2, 3])))
    uneven = Assignment(4, (np.array([0, 1, 2]), np.array([3])))
    assert audit([even, uneven]).repeated_orders == ()


def test_libtorchs_tail_is_never_seen_and_torchs_is():
    libtorch = audit(assign(10, 4, sampler="libtorch_random", drop_last=True, epoch=epoch) for epoch in range(30))
    assert libtorch.never_seen.tolist() == [8, 9]
    assert "never_seen" in kinds(libtorch)
    assert audit(assign(10, 4, drop_last=True, epoch=epoch) for epoch in range(30)).never_seen.size == 0
