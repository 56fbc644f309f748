"""Which ranks the others wait for, in which phase, and the cost: `lateness`, the rule behind every verdict.

The null hypothesis is that within a block of steps any rank may have had the times of any other one. Then permuting the
ranks within each block changes nothing, whatever the distribution of the noise, and whatever all ranks have in common
in a step. The statistic is the largest over all numbers of late ranks and several scores, and the same largest value is
taken of each permuted job: so nothing else has to allow for the number of ranks, or for choosing the latest of them.
Blocks are longer than the slow spells that the job shows, because the steps of a spell are no independent evidence.
Each late rank must also stand out by itself (`_stand_out`), and cost more than the noise of the others.

`python -m tests.benchmarks.late_ranks` counts the wrong verdicts on made-up jobs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .late_causes import Culprit, LateRank, Seconds, Steps, described_groups

SHARE_OF_STEP = 0.1  # late ranks must cost this share of a step …
LEAST_S = 0.004  # … and these seconds
_SUSPICIOUS = 0.5  # a job is not balanced in which ranks that are not named seem to cost this share of that
_CHANCE = 0.04  # of naming anybody in a job whose ranks are exchangeable
_MOST_ORDERS = 499
_LEAST_ORDERS = 199
_ORDERED_TIMES = 200_000  # so many times are permuted, as far as the number of orders is between these two
_NEARLY = 0.85  # the smallest set is named that is almost as unlikely as the unlikeliest, by this share
_FEWEST_ORDERED = 11  # steps: of fewer, permutations prove too little
_MOST_STEPS = 0.75  # a rank that is late in this share of the steps is late for good, not in slow spells
_FEWEST_SPELLS = 3  # any rank may have had one or two slow spells
_CHANCE_OF_SIGN = 0.0005  # a rank is late if a fair coin would show heads as often as it is later with less than this
_NOISES = 7.4  # times the median noise, five standard deviations: a rank that is later than so many is late in a step
_ROUNDING = 1e-6  # standard deviations
_UNBALANCED = 0.15  # of a step: a job in which a rank waits longer for other ranks is not balanced


class Suspicion(NamedTuple):
    """Ranks that may be late and are not named, the latest first, and what they cost per step."""

    late: tuple[LateRank, ...]
    cost_s: float
    is_chance: bool  # else they cost too little


class Lateness(NamedTuple):
    """Who is late in a job. Times have a row per step and a column per rank; `phase_s` has a last axis for `PHASES`.

    `groups` are ranks that are late next to each other; a later group would be late once those before it are mended.
    """

    ranks: tuple[int, ...]
    window_s: Seconds
    phase_s: Seconds
    groups: tuple[tuple[LateRank, ...], ...]
    suspicion: Suspicion | None = None

    @property
    def culprits(self) -> list[Culprit]:
        """All culprits, in the order in which to mend them."""
        return [culprit for group in self.groups for late in group for culprit in late.culprits]

    @property
    def step_s(self) -> float:
        """The mean seconds of a step."""
        return float(self.window_s.mean()) if self.window_s.size else 0.0

    @property
    def late_s(self) -> Seconds:
        """How much more own time each rank has in each step than the median of the other ranks that are not late."""
        own_s = self.phase_s.sum(axis=2)
        named = [late.column for group in self.groups for late in group]
        calm = np.delete(np.arange(own_s.shape[1]), named)
        late_s = np.zeros(own_s.shape)
        for column in range(own_s.shape[1]):
            others = calm[calm != column]
            if not others.size:  # the only calm rank is compared with those that are late
                others = np.delete(np.arange(own_s.shape[1]), column)
            if others.size:
                late_s[:, column] = own_s[:, column] - np.median(own_s[:, others], axis=1)
        return late_s

    @property
    def longest_wait_s(self) -> float:
        """Seconds per step that the rank that waits longest waits for other ranks, communication not included."""
        own_s = self.phase_s.sum(axis=2)
        waits_s = own_s.max(axis=1, keepdims=True, initial=0.0) - own_s
        return float(waits_s.mean(axis=0).max()) if waits_s.size else 0.0

    @property
    def is_balanced(self) -> bool:
        """Whether nobody is late, and no rank waits for others for a large share of a step."""
        is_calm = not self.groups and self.suspicion is None
        return is_calm and self.longest_wait_s <= _UNBALANCED * self.step_s


def lateness(ranks: Sequence[int], window_s: Seconds, phase_s: Seconds) -> Lateness:
    """Judge own times, steps by ranks by `PHASES`: take out the likeliest late ranks until chance explains them.

    Sets are named once they cost enough: of ranks that are late together or in turn, the first alone saves little.
    """
    own_s = phase_s.sum(axis=2)
    median_step_s = float(np.median(window_s)) if window_s.size else 0.0
    least_s = max(LEAST_S, SHARE_OF_STEP * median_step_s)
    rest = np.arange(len(ranks))
    groups: list[list[int]] = []
    pending: list[int] = []  # late, and not yet named
    saved_s = further_s = 0.0
    is_chance = False
    while rest.size > 1 and len(own_s) > 1 and not is_chance:
        late, is_chance = _latest_set(own_s[:, rest], least_s)
        if is_chance and pending:  # those that chance does not explain cost too little
            is_chance = False
            break
        pending += rest[late].tolist()
        rest = np.delete(rest, late)
        earlier_s = own_s.max(axis=1) - own_s[:, rest].max(axis=1)
        # without the worst step, which may be an accident
        further_s = float((earlier_s.sum() - earlier_s.max()) / (len(earlier_s) - 1)) - saved_s
        noise_s = own_s[:, rest].max(axis=1) - np.median(own_s[:, rest], axis=1)
        if further_s < max(least_s, noise_s.mean()):
            continue
        is_chance = is_chance or not _stand_out(own_s[:, pending], own_s[:, rest], least_s)
        if not is_chance:
            groups.append(pending)
            pending = []
            saved_s += further_s
    is_suspicious = bool(pending) and further_s >= _SUSPICIOUS * least_s
    described = described_groups(ranks, phase_s, [*groups, pending] if is_suspicious else groups, least_s)
    suspicion = Suspicion(described.pop(), further_s, is_chance or further_s >= least_s) if is_suspicious else None
    return Lateness(tuple(ranks), window_s, phase_s, tuple(described), suspicion)


def _latest_set(own_s: Seconds, least_s: float) -> tuple[NDArray[np.int64], bool]:
    """Return the ranks that are likeliest to be late, as columns, the latest first, and whether chance explains them.

    How late a rank is counts from the lower middle rank of a step or, as most ranks may be late, from the first one.
    Half of what a late rank must cost is ignored; of what is left, one score takes all, and others at most that cost,
    so that long pauses hide nobody.
    """
    num_steps, num_ranks = own_s.shape
    sorted_s = np.sort(own_s, axis=1)
    middle_s = own_s - sorted_s[:, [(num_ranks - 1) // 2]] - least_s / 2
    first_s = own_s - sorted_s[:, [0]] - least_s / 2
    scores = [np.maximum(middle_s, 0.0), np.clip(middle_s, 0.0, least_s), np.clip(first_s, 0.0, least_s)]
    num_orders = int(np.clip(_ORDERED_TIMES // own_s.size, _LEAST_ORDERS, _MOST_ORDERS))
    block = _steps_in_block(own_s, least_s)
    orders = np.tile(np.arange(num_ranks), (1 + num_orders, math.ceil(num_steps / block), 1))
    np.random.default_rng(0).permuted(orders[1:], axis=2, out=orders[1:])  # the first one is the job itself
    orders = np.repeat(orders, block, axis=1)[:, :num_steps]
    in_orders = [np.take_along_axis(score[None], orders, axis=2).sum(axis=1) for score in scores]
    sums = np.stack(in_orders, axis=1)  # orders by scores by ranks
    of_sizes = -np.cumsum(np.sort(-sums, axis=2), axis=2)[:, :, :-1]  # of the latest 1, 2, … ranks
    extremes = (of_sizes - of_sizes.mean(axis=0)) / np.maximum(of_sizes.std(axis=0), _ROUNDING * least_s)
    largest = extremes.max(axis=(1, 2))  # by order
    size = int((extremes[0].max(axis=0) >= _NEARLY * largest[0]).argmax())
    score = int(extremes[0, :, size].argmax())
    late = np.argsort(-sums[0, score], kind="stable")[: size + 1]
    is_chance = bool((largest >= largest[0] - _ROUNDING).mean() > _CHANCE)
    if num_steps < _FEWEST_ORDERED:  # too few for permutations to prove much
        is_chance = not _stand_out(own_s[:, late], np.delete(own_s, late, axis=1), least_s)
    return late, is_chance


def _steps_in_block(own_s: Seconds, least_s: float) -> int:
    """Return how many steps are permuted alike: nearly twice a slow spell, as a shorter block often cuts it in two.

    Ranks that are late for good have no spells.
    """
    middle_s = np.sort(own_s, axis=1)[:, [(own_s.shape[1] - 1) // 2]]
    is_late = own_s - middle_s > least_s / 2
    lengths = [_spells(of_rank) for of_rank in is_late.T if of_rank.mean() < _MOST_STEPS]
    lengths_of_all = np.concatenate([*lengths, [1]])
    mean_of_late_steps = float((lengths_of_all**2).sum() / lengths_of_all.sum())
    return math.ceil(2 * mean_of_late_steps - 1)


def _spells(is_late: Steps) -> NDArray[np.int64]:
    """Return how many steps each unbroken run of late steps has."""
    edges = np.flatnonzero(np.diff(is_late.astype(int), prepend=0, append=0))
    return edges[1::2] - edges[::2]


def _stand_out(late_s: Seconds, calm_s: Seconds, least_s: float) -> bool:
    """Return whether each late rank is late so often that neither a few slow spells nor noise explain it.

    A single step never counts, nor do one or two spells of several steps. Laplace's rule of succession and the binomial
    distribution state the chance that a calm rank is late as often. Where noise is large, a rank stands out that is
    later in nearly all steps, as a fair coin would not fall.
    """
    usual_s = np.median(calm_s, axis=1, keepdims=True)
    noise_s = calm_s - usual_s
    if calm_s.shape[1] == 1:  # without others to compare with, it is compared with its own median step
        noise_s = calm_s - np.median(calm_s)
    noisy_s = max(least_s, _NOISES * float(np.median(np.abs(noise_s))))
    num_steps = len(late_s)
    for of_rank in (late_s - usual_s).T:
        is_late = of_rank > least_s
        spells = _spells(is_late)
        are_few = spells.size < _FEWEST_SPELLS and spells.max(initial=1) > 1
        if is_late.sum() < 2 or (are_few and is_late.mean() < _MOST_STEPS):
            return False
        if _binomial_tail(int(is_late.sum()), num_steps, 0.5) < _CHANCE_OF_SIGN:
            continue
        later_s = of_rank[of_rank > noisy_s]
        share_of_calm = ((noise_s >= later_s.min(initial=np.inf)).sum() + 1) / (noise_s.size + 2)
        if later_s.size < 2 or _binomial_tail(later_s.size, num_steps, share_of_calm) > _CHANCE:
            return False
    return True


def _binomial_tail(least: int, trials: int, chance: float) -> float:
    """Return the probability that at least so many of the trials succeed."""
    numbers = range(least, trials + 1)
    return sum(math.comb(trials, number) * chance**number * (1 - chance) ** (trials - number) for number in numbers)
