"""Which ranks the others wait for, in which phase, and the cost: `lateness`, the rule behind every verdict.

The null hypothesis is that within each step any rank may have had the times of any other one. Then permuting the ranks
within each step changes nothing, whatever the distribution of the noise, and whatever all ranks have in common in a
step. The statistic is the largest over all numbers of late ranks and several scores, and the same largest value is
taken of each permuted job: so nothing else has to allow for the number of ranks, or for choosing the latest of them. It
needs no trust in the noise, but ranks must pause independently from step to step.

`python -m tests.benchmarks.late_ranks` counts the wrong verdicts on made-up jobs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .trace import PHASES

Seconds = NDArray[np.float64]
Steps = NDArray[np.bool_]

SHARE_OF_STEP = 0.1  # late ranks must cost this share of a step …
LEAST_S = 0.004  # … and these seconds
_SUSPICIOUS = 0.5  # a job is not balanced in which ranks that are not named seem to cost this share of that
_CHANCE = 0.04  # of naming anybody in a job whose ranks are exchangeable
_MOST_ORDERS = 499
_LEAST_ORDERS = 199
_ORDERED_TIMES = 200_000  # so many times are permuted, as far as the number of orders is between these two
_NEARLY = 0.85  # the smallest set is named that is almost as unlikely as the unlikeliest, by this share
_FEWEST_ORDERED = 11  # steps: of fewer, permutations prove too little
_NOISES = 7.4  # times the median noise, five standard deviations: a rank that is later than so many is late in a step
_ROUNDING = 1e-6  # standard deviations
_SECOND_CAUSE = 0.4  # a phase is a further cause if it loses this share of the time that the first cause loses
_ALIKE = 0.6  # a phase takes longer like all phases if it does so by at least this share of their common factor …
_LEAST_ALIKE = 3  # … all phases take longer alike if at least so many do …
_ALMOST_ALL = 0.8  # … which make up this share of a step
_UNBALANCED = 0.15  # of a step: a job in which a rank waits longer for other ranks is not balanced


class Culprit(NamedTuple):
    """A rank that the others wait for, the phase that it loses its time in, and what that costs per step, in seconds.

    The cause is one of `PHASES`, or "slower" if all phases take longer alike: the clock of its GPU or CPU is slower, or
    it shares its core.

    A step gets shorter by `cost_s` once this culprit is mended and those before it in `Lateness.culprits` are. Of ranks
    that are late in the same steps, mending one alone saves next to nothing, because the others are still waited for.
    So the last of them has nearly all of the cost, and only the sum says what they cost.
    """

    rank: int
    cause: str
    cost_s: float


class LateRank(NamedTuple):
    """A late rank: its column, the steps in which it is late, and its culprits, one for each cause.

    `late_s` is the mean over these steps of how much more own time it has than the ranks that are not late, and
    `takes_s` and `usual_s`, by phase, of how much time it and they have.
    """

    column: int
    in_steps: Steps
    late_s: float
    takes_s: Seconds
    usual_s: Seconds
    culprits: tuple[Culprit, ...]


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
    """Judge own times, steps by ranks by `PHASES`.

    The likeliest set of late ranks is taken out, as long as chance does not explain it. Sets are named once they cost
    enough together: of ranks that are late in the same steps, the first alone saves nothing.
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
        if further_s < least_s:
            continue
        behind_s = own_s[:, pending] - np.median(own_s[:, rest], axis=1, keepdims=True)
        is_seldom = (behind_s > least_s).sum(axis=0).min() < 2  # any rank may pause once
        # Real noise lasts for several steps, which permutations do not allow for: the others must cost less by theirs.
        noise_s = own_s[:, rest].max(axis=1) - np.median(own_s[:, rest], axis=1)
        is_chance = is_chance or bool(is_seldom) or further_s < noise_s.mean()
        if not is_chance:
            groups.append(pending)
            pending = []
            saved_s += further_s
    is_suspicious = bool(pending) and further_s >= _SUSPICIOUS * least_s
    described = _described(ranks, phase_s, [*groups, pending] if is_suspicious else groups, least_s)
    suspicion = Suspicion(described.pop(), further_s, is_chance) if is_suspicious else None
    return Lateness(tuple(ranks), window_s, phase_s, tuple(described), suspicion)


def _latest_set(own_s: Seconds, least_s: float) -> tuple[NDArray[np.int64], bool]:
    """Return the ranks that are likeliest to be late, as columns, the latest first, and whether chance explains them.

    How late a rank is counts from the lower middle rank of a step or, as more than half of the ranks may be late, from
    the first one. Half of what a late rank must cost is ignored; of what is left, one score takes all, and others at
    most that cost, so that long pauses hide nobody.
    """
    num_steps, num_ranks = own_s.shape
    sorted_s = np.sort(own_s, axis=1)
    middle_s = own_s - sorted_s[:, [(num_ranks - 1) // 2]] - least_s / 2
    first_s = own_s - sorted_s[:, [0]] - least_s / 2
    scores = [np.maximum(middle_s, 0.0), np.clip(middle_s, 0.0, least_s), np.clip(first_s, 0.0, least_s)]
    num_orders = int(np.clip(_ORDERED_TIMES // own_s.size, _LEAST_ORDERS, _MOST_ORDERS))
    orders = np.tile(np.arange(num_ranks), (1 + num_orders, num_steps, 1))
    np.random.default_rng(0).permuted(orders[1:], axis=2, out=orders[1:])  # the first one is the job itself
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


def _stand_out(late_s: Seconds, calm_s: Seconds, least_s: float) -> bool:
    """Return whether ranks are late in at least two steps in which, by the noise of the calm ranks, they would not be.

    Chance alone makes a calm rank as late as often, by Laplace's rule of succession and the binomial distribution.
    """
    usual_s = np.median(calm_s, axis=1, keepdims=True)
    noise_s = calm_s - usual_s
    if calm_s.shape[1] == 1:  # without others to compare with, it is compared with its own median step
        noise_s = calm_s - np.median(calm_s)
    noisy_s = max(least_s, _NOISES * float(np.median(np.abs(noise_s))))
    num_steps = len(late_s)
    for of_rank in (late_s - usual_s).T:
        later_s = of_rank[of_rank > noisy_s]
        if later_s.size < 2:
            return False
        share_of_calm = ((noise_s >= later_s.min()).sum() + 1) / (noise_s.size + 2)
        chance = 0.0
        for number in range(later_s.size, num_steps + 1):
            ways = math.comb(num_steps, number)
            chance += ways * share_of_calm**number * (1 - share_of_calm) ** (num_steps - number)
        if chance > _CHANCE:
            return False
    return True


# ---- why they are late, and what that costs


def _described(
    ranks: Sequence[int], phase_s: Seconds, groups: Sequence[Sequence[int]], least_s: float
) -> list[tuple[LateRank, ...]]:
    """Mend one late rank after the other, and return what that shows. A cost is the mean over all steps."""
    named = [column for group in groups for column in group]
    usual_s = np.median(np.delete(phase_s, named, axis=1), axis=1) if named else phase_s[:, 0]  # steps by phases
    remaining_s = phase_s.copy()
    described = []
    for group in groups:
        late_ranks = []
        for column in group:
            longer_s = phase_s[:, column] - usual_s
            late_s = longer_s.sum(axis=1)
            most_s = late_s.max()
            in_steps = late_s >= min(most_s, np.clip(most_s / 2, least_s / 2, 2 * least_s))
            # the median, because a single step with a disturbance of its own must not decide
            typical_s = np.median(longer_s[in_steps], axis=0)
            culprits = []
            for cause, phases in _causes(np.maximum(typical_s, 0.0), usual_s[in_steps].mean(axis=0)):
                before_s = remaining_s.sum(axis=2).max(axis=1)  # the own time of the last rank, by step
                mended_s = np.minimum(remaining_s[:, column, phases], usual_s[:, phases])
                remaining_s[:, column, phases] = mended_s
                cost_s = before_s - remaining_s.sum(axis=2).max(axis=1)
                culprits.append(Culprit(ranks[column], cause, float(cost_s.mean())))
            takes_s = phase_s[in_steps, column].mean(axis=0)
            usual_then_s = usual_s[in_steps].mean(axis=0)
            mean_late_s = float(late_s[in_steps].mean())
            late_ranks.append(LateRank(column, in_steps, mean_late_s, takes_s, usual_then_s, tuple(culprits)))
            remaining_s[:, column] = np.minimum(remaining_s[:, column], usual_s)
        described.append(tuple(late_ranks))
    return described


def _causes(longer_s: Seconds, usual_s: Seconds) -> list[tuple[str, list[int]]]:
    """Return why a rank takes longer than usual, the most important cause first, with the phases that it makes longer.

    Arrays are by phase.
    """
    # A phase is alike if it is longer by about the same factor as all phases together:
    # longer_s / usual_s > _ALIKE * (longer_s.sum() / usual_s.sum()). Multiplied out, because a phase may take no time.
    is_alike = longer_s * usual_s.sum() > _ALIKE * longer_s.sum() * usual_s
    if is_alike.sum() >= _LEAST_ALIKE and usual_s[is_alike].sum() > _ALMOST_ALL * usual_s.sum():
        return [("slower", list(range(len(PHASES))))]
    longest_first = np.argsort(-longer_s, kind="stable").tolist()
    is_cause = longer_s > _SECOND_CAUSE * longer_s.max()
    return [(PHASES[phase], [phase]) for phase in longest_first if is_cause[phase]]
