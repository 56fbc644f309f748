"""The rule that names late ranks, on made-up own times, and the words for what it finds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import betainc

from rankscope.diagnose.traces.late_ranks import incomplete_beta, lateness
from rankscope.diagnose.traces.trace import PHASES
from rankscope.diagnose.traces.verdict import headline, sentences

from .late_jobs import CASES, NOISES, NUM_RANKS, healthy, judged, named

SEEDS = range(100, 110)


def words(phase_s: np.ndarray) -> str:
    found = judged(phase_s)
    steps = range(len(phase_s))
    return "\n".join([*sentences(found, steps, is_complete=True), headline(found, steps)])


@pytest.mark.parametrize("case", CASES)
def test_late_ranks_and_their_causes_are_named_and_cost_what_their_absence_saves(case: str) -> None:
    for seed in SEEDS:
        phase_s = healthy("", NUM_RANKS, 16, seed)  # of two ranks in turn, fewer steps prove too little
        usual_s = phase_s.sum(axis=2).max(axis=1).mean()
        CASES[case].spoil(phase_s)
        assert named(phase_s) == CASES[case].causes
        assert "balanced" not in words(phase_s) or case == "one pause"
        if CASES[case].causes:
            cost_s = sum(culprit.cost_s for culprit in judged(phase_s).culprits)
            assert cost_s == pytest.approx(phase_s.sum(axis=2).max(axis=1).mean() - usual_s, rel=0.1)


@pytest.mark.parametrize("noise", ["pauses of 0.7, 2 %", "gaussian, sd 0.05", "lognormal, sigma 0.3"])
def test_a_rank_that_is_late_in_each_step_is_mostly_named_among_noisy_ones(noise: str) -> None:
    right = []
    for seed in range(20):
        phase_s = healthy(noise, NUM_RANKS, 30, seed)
        phase_s[:, 1, 0] += 0.8 * phase_s.sum(axis=2).mean()
        right.append(named(phase_s).keys() == {1})
    assert np.mean(right) >= 0.9


@pytest.mark.parametrize(("num_ranks", "num_steps"), [(4, 9), (4, 11), (8, 30)])
def test_healthy_jobs_are_hardly_ever_accused(num_ranks: int, num_steps: int) -> None:
    """Also in slow spells of several steps. `python -m tests.benchmarks.late_ranks` prints the whole table."""
    accused = [bool(named(healthy(noise, num_ranks, num_steps, seed))) for noise in NOISES for seed in range(12)]
    assert np.mean(accused) <= 0.04


def test_one_or_two_slow_spells_name_nobody_and_three_do() -> None:
    for spells, ranks in ([slice(3, 8)], set()), ([slice(0, 5), slice(8, 13)], set()), ([slice(0, 30, 5)], {2}):
        phase_s = healthy("", NUM_RANKS, 30, 0)
        for steps in spells:
            phase_s[steps, 2, 0] += 0.05
        assert named(phase_s).keys() == ranks
        assert "ank 2" in words(phase_s)
        assert "balanced" not in words(phase_s)


def test_no_job_is_called_balanced_in_which_a_rank_waits_for_long() -> None:
    num_waiting = 0
    for noise in NOISES:
        for seed in SEEDS:
            phase_s = healthy(noise, 4, 12, seed)
            own_s = phase_s.sum(axis=2)
            waits_s = own_s.max(axis=1, keepdims=True) - own_s
            if waits_s.mean(axis=0).max() > 0.15 * judged(phase_s).step_s:
                num_waiting += 1
                assert "balanced" not in words(phase_s)
    assert num_waiting > 10


def test_what_costs_too_little_or_may_be_chance_is_told_and_not_called_balanced() -> None:
    """Both are of `cases/24`."""
    phase_s = healthy("", 8, 11, 0)
    phase_s[:, 4, 0] += 0.006
    assert named(phase_s) == {}
    assert "Rank 4 arrives" in words(phase_s)
    assert "only" in words(phase_s)
    for num_steps in (6, 11, 30):
        phase_s = healthy("", 2, num_steps, 0)
        phase_s[::3, 1, 0] += 0.022
        assert named(phase_s) == {}
        assert "ank 1" in words(phase_s)
        assert "balanced" not in words(phase_s)


def test_one_pause_is_told_with_its_step() -> None:
    phase_s = healthy("", 4, 12, 1)
    phase_s[7, 1, PHASES.index("host")] += 2.0
    assert named(phase_s) == {}
    assert "in step 7, for rank 1" in words(phase_s)


def test_how_ranks_share_the_lateness() -> None:
    for case, pattern in (("half", "are late together"), ("in turn", "are late in turn")):
        phase_s = healthy("", 4, 16, 1)
        CASES[case].spoil(phase_s)
        assert words(phase_s).count(f"anks 0 and 1 {pattern}") == 2


def test_a_rank_whose_phases_are_all_longer_is_slower() -> None:
    phase_s = healthy("", 4, 12, 1)
    phase_s[:, 2] *= 1.5
    assert named(phase_s) == {2: {"slower"}}
    phase_s[:, 2, PHASES.index("forward")] /= 1.5
    assert named(phase_s) == {2: {"backward"}}


def test_few_ranks_and_few_steps() -> None:
    for num_steps, num_ranks in ((0, 4), (1, 4), (1, 1), (5, 1), (2, 2)):
        phase_s = np.full((num_steps, num_ranks, len(PHASES)), 0.01)
        result = lateness(range(num_ranks), np.full((num_steps, num_ranks), 0.08), phase_s)
        assert result.culprits == []
        assert result.late_s.shape == (num_steps, num_ranks)
        assert result.is_balanced
    phase_s = healthy("", 128, 50, 0)
    phase_s[:, :64, 0] += 0.04
    assert named(phase_s) == {rank: {"loader"} for rank in range(64)}
    phase_s = healthy("", 2, 4, 0)
    phase_s[:, 1, 0] += 0.04
    assert named(phase_s) == {1: {"loader"}}


def test_a_rank_that_is_last_far_more_often_than_chance_is_a_lead() -> None:
    """Jitter of 30 % hides 40 ms in 20 of 29 steps, but not who is last; healthy ranks are no lead."""
    right = 0
    for seed in range(20):
        random = np.random.default_rng(seed)
        phase_s = healthy("", 16, 29, seed)
        phase_s[..., 3] += 0.3 * phase_s.sum(axis=2).mean() * random.standard_normal((29, 16))
        assert judged(phase_s).often_last is None
        phase_s[random.permutation(29)[:20], 5, 4] += 0.04
        right += "Rank 5 " in words(phase_s)
    assert right >= 18


def test_the_incomplete_beta_function_is_scipys() -> None:
    random = np.random.default_rng(0)
    for a, b in 10 ** random.uniform(-1, 3, (200, 2)):
        for x in (*random.uniform(0.001, 0.999, 5), 1.0):
            assert incomplete_beta(a, b, x) == pytest.approx(betainc(a, b, x), rel=1e-6, abs=1e-12)
