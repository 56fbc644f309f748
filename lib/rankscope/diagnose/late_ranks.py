"""Which ranks the others wait for, in which phase, and the cost: `lateness`, the rule behind every verdict.

Lateness is judged by the noise of the ranks that are not late, the calm ones. Late ranks would hide in their own noise:
two that share the lateness each make the other look like a usual fluctuation.

The constants of the rule were chosen on made-up jobs, whose late ranks and noise are known, so that late ranks are
named and healthy jobs are not accused. `python -m tests.benchmarks.late_ranks` counts the wrong verdicts on other such
jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .trace import PHASES, Ints

Seconds = NDArray[np.float64]
Steps = NDArray[np.bool_]

SHARE_OF_STEP = 0.1  # what a rank loses must be at least this share of a step …
LEAST_S = 0.004  # … and these seconds
_NOISES = 5.0  # a rank is late in a step if it is later than so many standard deviations of the calm ranks
_SIGMAS_PER_MAD = 1.4826  # standard deviations per median absolute deviation, of a normal distribution
_AS_LATE = 0.5  # a step is as late as others if the rank is late by this share of the median of its late steps
_CHANCE = 0.05  # a rank is late if calm ranks would be late as often with a lower probability than this …
_CHANCE_OF_SIGN = 0.005  # … or if a fair coin would show heads as often as it is later with a lower one than this
_CHANCE_OF_ORDER = 0.04  # … and if so small a share of random orders of the ranks of each step shows ranks as late
_NUM_ORDERS = 199
_ROUNDING = 1e-9  # standard deviations
_FEWEST_ALIKE = 3  # ranks that can be compared with each other: of two, either may be the late one
_FEWEST_ORDERED = 11  # steps: in fewer, chance alone explains even ranks that are late in turn in all of them
_SAME_CAUSE = 0.7  # if a rank is late in few steps, this share of them must have the same cause
_OFTEN = 0.5  # of all steps: a rank that is late in more of them is not late in few steps
_SECOND_CAUSE = 0.4  # a phase is a further cause if it loses this share of the time that the first cause loses
_ALIKE = 0.6  # a phase takes longer like all phases if it does so by at least this share of their common factor …
_LEAST_ALIKE = 3  # … all phases take longer alike if at least so many do …
_ALMOST_ALL = 0.8  # … which make up this share of a step
_UNBALANCED = 0.15  # of a step: a job in which a rank waits longer for other ranks is not balanced


class Culprit(NamedTuple):
    """A rank that the others wait for, the phase that it loses its time in, and what that costs per step, in seconds.

    The cause is one of `PHASES`; or "starved" if most of the time was spent waiting for a core; or "slower" if all
    phases take longer alike and nothing else is known: the clock of its GPU or CPU is slower, or it shares its core.

    A step gets shorter by `cost_s` once this culprit is mended and those before it in `Lateness.culprits` are. Of ranks
    that are late in the same steps, mending one alone saves next to nothing, because the others are still waited for.
    So the last of them has nearly all of the cost, and only the sum says what they cost.
    """

    rank: int
    cause: str
    cost_s: float


class LateRank(NamedTuple):
    """A late rank: its column, the steps in which it is late, and its culprits, one for each cause.

    `usual_s`, steps by phases, is the median of the calm ranks. `starved_s` is how much longer than they it waited for
    a core, the mean over the steps in which it is late.
    """

    column: int
    in_steps: Steps
    usual_s: Seconds
    starved_s: float
    culprits: tuple[Culprit, ...]


class Lateness(NamedTuple):
    """Who is late in a job. Times have a row per step and a column per rank; `phase_s` has a last axis for `PHASES`.

    `groups` are ranks that are late next to each other, all compared with the same calm ranks; a later group would be
    late once those before it are as fast as the calm ranks.
    """

    ranks: tuple[int, ...]
    window_s: Seconds
    phase_s: Seconds
    groups: tuple[tuple[LateRank, ...], ...]

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
        """How much more own time each rank has in each step than the median of the other calm ranks."""
        own_s = self.phase_s.sum(axis=2)
        num_ranks = own_s.shape[1]
        if num_ranks < 2:
            return np.zeros(own_s.shape)
        first_group = self.groups[0] if self.groups else ()  # later groups are late only once this one is mended
        late = [rank.column for rank in first_group]
        calm = np.setdiff1d(np.arange(num_ranks), late)
        late_s = np.zeros(own_s.shape)
        if calm.size >= 2:
            late_s[:, calm] = own_s[:, calm] - median_of_others(own_s[:, calm])
        else:  # a single calm rank has no other one, so it is compared with the late ranks
            late_s[:, calm] = (own_s - median_of_others(own_s))[:, calm]
        late_s[:, late] = own_s[:, late] - np.median(own_s[:, calm], axis=1)[:, None]
        return late_s

    @property
    def waits_s(self) -> Seconds:
        """How long each rank waits in each step for the rank with the most own time."""
        own_s = self.phase_s.sum(axis=2)
        return np.asarray(own_s.max(axis=1, initial=0.0)[:, None] - own_s)

    @property
    def longest_wait_s(self) -> float:
        """Seconds per step that the rank that waits longest waits for other ranks, communication not included."""
        waits_s = self.waits_s
        return float(waits_s.mean(axis=0).max()) if waits_s.size else 0.0

    @property
    def is_balanced(self) -> bool:
        """Whether nobody is late, and no rank waits for others for a large share of a step."""
        return not self.groups and self.longest_wait_s <= _UNBALANCED * self.step_s


def lateness(ranks: Sequence[int], window_s: Seconds, phase_s: Seconds, starved_s: Seconds | None = None) -> Lateness:
    """Return which ranks are late, why, and what it costs.

    `window_s` and `starved_s` have a row per step and a column per rank, `phase_s` a last axis for `PHASES` too, all in
    seconds; see `own_times`. The ranks with the most own time are taken for late and the others for calm, with each
    number of late ranks. Such a division holds if

    - each late rank is late in more steps than the noise of the calm ranks explains (`_late_steps`), and
    - the late ranks cost more per step, without the worst step, than the noise of the calm ranks does, more than
      `LEAST_S`, and more than `SHARE_OF_STEP` of the median step.

    If ranks that are all alike would often seem as late (`_is_chance`), nobody is late. Otherwise, of those that hold,
    the one with the fewest late ranks counts that explains as much as any other. Then the late ranks are taken to be as
    fast as the calm ones, and the rest is judged again.

    The causes of a rank are the phase that takes longest in comparison with the calm ranks, in the mean of its late
    steps without the worst, and each other one that takes `_SECOND_CAUSE` of that. A cost is what the last rank would
    arrive earlier if that phase took as long as on the calm ranks, once those before it in the list are mended: costs
    add up, and of ranks that are late together the last one has nearly all of it.
    """
    median_step_s = float(np.median(window_s)) if window_s.size else 0.0
    if starved_s is None:
        starved_s = np.zeros(window_s.shape)
    remaining_s = phase_s.astype(float)  # the ranks' own times, once those that are named are as fast as usual
    groups = list[tuple[LateRank, ...]]()
    named = set[int]()
    while len(ranks) > 1 and len(remaining_s):  # without another rank, or without steps, nobody is late
        division = _divided(remaining_s, median_step_s, named)
        if named.issuperset(division.late_steps):  # nobody is late, or nobody else
            break
        usual_s = np.median(remaining_s[:, division.calm], axis=1)  # steps by phases
        usual_starved_s = np.median(starved_s[:, division.calm], axis=1)  # by step
        group = []
        for column, in_steps in division.late_steps.items():
            if column not in named:
                starved_longer_s = float((starved_s[:, column] - usual_starved_s)[in_steps].mean())
                culprits = _mend(remaining_s, int(ranks[column]), column, in_steps, usual_s, starved_longer_s)
                group.append(LateRank(column, in_steps, usual_s, starved_longer_s, culprits))
            # `_mend` has only changed the phases that are causes
            remaining_s[:, column] = np.minimum(remaining_s[:, column], usual_s)
        named.update(division.late_steps)
        groups.append(tuple(group))
    return Lateness(tuple(ranks), window_s, phase_s, tuple(groups))


def _mend(
    remaining_s: Seconds, rank: int, column: int, in_steps: Steps, usual_s: Seconds, starved_longer_s: float
) -> tuple[Culprit, ...]:
    """Make a late rank as fast as usual in `remaining_s`, one cause after the other, and return its culprits.

    A cause costs what the last rank of each step arrives earlier once it is mended, in the mean over steps.
    """
    longer_s = _mean_without_worst_step((remaining_s[:, column] - usual_s)[in_steps])  # by phase
    longer_s = np.maximum(longer_s, 0.0)  # a phase that takes less time than usual makes up for none that takes longer
    culprits = []
    for cause, phases in _causes(longer_s, usual_s[in_steps].mean(axis=0), starved_longer_s):
        last_before_s = remaining_s.sum(axis=2).max(axis=1)  # the own time of the last rank, by step
        remaining_s[:, column, phases] = np.minimum(remaining_s[:, column, phases], usual_s[:, phases])
        last_after_s = remaining_s.sum(axis=2).max(axis=1)
        culprits.append(Culprit(rank, cause, float((last_before_s - last_after_s).mean())))
    return tuple(culprits)


class _RankDivision(NamedTuple):
    """Late ranks with their late steps, the latest first; the calm ranks; and what the late ones cost per step."""

    late_steps: dict[int, Steps]
    calm: Ints
    cost_s: float


def _divided(phase_s: Seconds, median_step_s: float, named: set[int]) -> _RankDivision:
    """Return the division into late and calm ranks that counts; without late ranks if none holds.

    `phase_s` has the shape (steps, ranks, phases). With each number of late ranks, the latest so many are divided from
    the others, if `_division` allows it. Of these divisions, the one with the fewest late ranks is returned that
    explains as much as any other, up to what a rank must lose at least to be late. Ranks that are `named` already have
    been made as fast as usual, so chance is judged without them if enough others remain.
    """
    own_s = phase_s.sum(axis=2)  # steps by ranks
    # so that the step which does not count for a rank is the one in which it is latest, and not one long on all ranks
    behind_first_s = own_s - own_s.min(axis=1, keepdims=True)
    latest_first = np.argsort(-_mean_without_largest(behind_first_s), kind="stable")
    least_s = max(LEAST_S, SHARE_OF_STEP * median_step_s)
    divisions: list[_RankDivision] = []
    for num_late in range(1, len(latest_first)):  # at least one rank is calm
        division = _division(phase_s, own_s, latest_first[:num_late], latest_first[num_late:], least_s)
        if division is not None:
            divisions.append(division)
    most_s = max((division.cost_s for division in divisions), default=0.0)
    judged_s = own_s
    if own_s.shape[1] - len(named) >= _FEWEST_ALIKE:
        judged_s = np.delete(own_s, sorted(named), axis=1)
    if divisions and not _is_chance(judged_s, least_s):
        for division in divisions:  # by rising number of late ranks
            if division.cost_s >= most_s - least_s:
                return division
    return _RankDivision(late_steps={}, calm=latest_first, cost_s=0.0)


def _division(
    phase_s: Seconds, own_s: Seconds, late_ranks: Ints, calm_ranks: Ints, least_s: float
) -> _RankDivision | None:
    """Return the division into these late ranks, the latest first, and these calm ones; None if it does not hold.

    It holds if the late ranks cost more than `least_s` per step and more than the noise of the calm ranks does, and if
    each of them has steps in which it is late by `_late_steps`.
    """
    # how much earlier the last rank of each step would be if there were only the calm ranks
    earlier_s = own_s.max(axis=1) - own_s[:, calm_ranks].max(axis=1)
    cost_s = float(_mean_without_largest(earlier_s))
    # The late rank that is the least late must be late in two steps, as `_late_steps` requires. Most divisions fail
    # here, and this takes little time.
    least_late_s = own_s[:, late_ranks[-1]] - np.median(own_s[:, calm_ranks], axis=1)
    if cost_s <= least_s or (least_late_s > least_s).sum() < 2:
        return None
    calm = _calm(phase_s[:, calm_ranks], least_s)
    if cost_s <= calm.cost_s:
        return None
    late_steps = dict[int, Steps]()
    for column in late_ranks[::-1].tolist():  # the least late first, as it is the most likely to be calm
        in_steps = _late_steps(phase_s[:, column], calm, least_s)
        if not in_steps.any():
            return None
        late_steps[column] = in_steps
    latest_first = dict(reversed(late_steps.items()))
    return _RankDivision(latest_first, calm_ranks, cost_s)


def _is_chance(own_s: Seconds, least_s: float) -> bool:
    """Return whether ranks that are all alike would often seem as late as some of these ranks do.

    Of ranks that are alike, any may have had the times of any other one in a step. So the times of each step are put
    into random orders of the ranks. It is compared how late the latest 1, 2, … ranks are in all steps together, as a
    number of standard deviations over the orders; the largest of these numbers counts, which allows for the number of
    ranks and for choosing the latest. A rank is late in comparison with the middle rank of a step, or, as more than
    half of the ranks may be late, with the first one. A long pause counts as little more than a short one.
    """
    num_steps, num_ranks = own_s.shape
    if num_steps < _FEWEST_ORDERED:
        return False
    sorted_s = np.sort(own_s, axis=1)
    extremes = np.zeros(1 + _NUM_ORDERS)  # of the job itself, and of each order
    for usual in (0, (num_ranks - 1) // 2):
        late_s = np.clip(own_s - sorted_s[:, [usual]] - least_s / 2, 0.0, least_s)  # steps by ranks
        random = np.random.default_rng(0)  # the same orders for both
        orders = [late_s, *(random.permuted(late_s, axis=1) for _ in range(_NUM_ORDERS))]
        latest_s = -np.sort([-order.sum(axis=0) for order in orders])
        together_s = latest_s.cumsum(axis=1)[:, :-1]  # without all ranks, who are as late in each order
        spread_s = np.maximum(together_s.std(axis=0), least_s * 1e-6)
        extremes = np.maximum(extremes, ((together_s - together_s.mean(axis=0)) / spread_s).max(axis=1))
    return bool((extremes[1:] >= extremes[0] - _ROUNDING).mean() > _CHANCE_OF_ORDER)


class _CalmStatistics(NamedTuple):
    """What is usual on calm ranks, and how noisy they are."""

    usual_s: Seconds  # steps by phases: the median of these ranks
    usual_own_s: Seconds  # the same of all phases together, by step
    # steps by ranks: how far each rank is from the others; of a single one, how far it is from its own median
    noise_s: Seconds
    least_s: float  # what is later than this is not noise
    # what the noise costs per step: how far the last calm rank is behind the usual one, a single one behind its median
    cost_s: float


def _calm(phase_s: Seconds, least_s: float) -> _CalmStatistics:
    """Return the statistics of calm ranks from their own times, steps by ranks by phases."""
    own_s = phase_s.sum(axis=2)
    usual_own_s = np.median(own_s, axis=1)
    num_ranks = own_s.shape[1]
    if num_ranks == 1:  # without other ranks to compare with, it is compared with its own median step
        noise_s = own_s - np.median(own_s, axis=0)
        cost_s = float(np.maximum(noise_s, 0.0).mean())  # a step that is faster than usual makes up for no slow one
    else:
        noise_s = own_s - median_of_others(own_s)
        cost_s = float((own_s.max(axis=1) - usual_own_s).mean())
    deviation_s = _SIGMAS_PER_MAD * float(np.median(np.abs(noise_s)))
    return _CalmStatistics(
        usual_s=np.median(phase_s, axis=1),
        usual_own_s=usual_own_s,
        noise_s=noise_s,
        least_s=max(least_s, _NOISES * deviation_s),
        cost_s=cost_s,
    )


def _late_steps(phase_s: Seconds, calm: _CalmStatistics, least_s: float) -> Steps:
    """Return the steps in which a rank is late; none of them if the noise of the calm ranks explains these.

    `phase_s` is the rank's own time, steps by phases. The noise explains it unless the rank is late so often that calm
    ranks would not be, by Laplace's rule of succession and the binomial distribution. Few late steps must also have the
    same cause. Or the rank must be more than `least_s` later than the calm ranks in so many steps that a fair coin
    would not fall like that, which needs no measure of noise. A single step never counts, because any rank may pause
    once.
    """
    late_s = phase_s.sum(axis=1) - calm.usual_own_s  # by step
    num_steps = len(late_s)
    in_steps = _equally_late(late_s, calm.least_s)
    num_late = int(in_steps.sum())
    if num_late > 1:
        # how often a calm rank is as late as this one in its late steps, by Laplace's rule
        as_late_s = float(late_s[in_steps].min())
        num_calm_as_late = int((calm.noise_s >= as_late_s).sum())
        share_of_calm = (num_calm_as_late + 1) / (calm.noise_s.size + 2)
        chance = _binomial_tail(num_late, num_steps, share_of_calm)
        is_often = num_late > _OFTEN * num_steps
        largest_phase = (phase_s - calm.usual_s)[in_steps].argmax(axis=1)  # the cause of each late step
        share_of_commonest = np.bincount(largest_phase).max() / num_late
        if chance < _CHANCE and (is_often or share_of_commonest > _SAME_CAUSE):
            return in_steps
    num_later = int((late_s > least_s).sum())
    if num_later > 1 and _binomial_tail(num_later, num_steps, 0.5) < _CHANCE_OF_SIGN:
        return _equally_late(late_s, least_s)
    return np.zeros(num_steps, bool)


def _equally_late(late_s: Seconds, least_s: float) -> Steps:
    """The steps in which a rank is later than this, and not much less late than in the median of them."""
    is_late = late_s > least_s
    if not is_late.any():
        return is_late
    return np.asarray(is_late & (late_s >= _AS_LATE * np.median(late_s[is_late])))


def median_of_others(values: Seconds) -> Seconds:
    """Return for each of at least two ranks, on axis 1, the median of the other ranks.

    >>> median_of_others(np.array([[1.0, 2.0, 9.0]])).tolist()
    [[5.5, 5.0, 1.5]]
    """
    num_others = values.shape[1] - 1
    order = np.argsort(values, axis=1, kind="stable")
    sorted_values = np.take_along_axis(values, order, axis=1)
    position = np.argsort(order, axis=1, kind="stable")  # of each rank in that order

    def other(index: int) -> Seconds:
        """Return for each rank the value at an index of the sorted others.

        Without the rank itself, the values behind it move up by one.
        """
        is_before_rank = index < position
        return np.where(is_before_rank, sorted_values[:, [index]], sorted_values[:, [index + 1]])

    # the two in the middle, which are the same one if the number of others is odd
    lower = other((num_others - 1) // 2)
    upper = other(num_others // 2)
    return np.asarray((lower + upper) / 2)


def _binomial_tail(least: int, trials: int, chance: float) -> float:
    """Return the probability that at least so many of the trials succeed, with a chance above 0 and below 1.

    It is calculated with logarithms, because the factorials of many trials are too large for a float.
    """
    log_factorial = np.append(0.0, np.cumsum(np.log(np.arange(1, trials + 1))))
    number = np.arange(least, trials + 1)
    log_ways = log_factorial[trials] - log_factorial[number] - log_factorial[trials - number]
    return float(np.exp(log_ways + number * np.log(chance) + (trials - number) * np.log1p(-chance)).sum())


def _mean_without_largest(values: Seconds) -> Seconds:
    """The mean over steps, the first axis, without the largest value, so that no single step decides.

    Of one step, its value is the mean.
    """
    if len(values) == 1:
        return np.asarray(values[0])
    return np.asarray((values.sum(axis=0) - values.max(axis=0)) / (len(values) - 1))


def _mean_without_worst_step(longer_s: Seconds) -> Seconds:
    """The mean over steps, the first axis, without the step that is longest in all phases together.

    A single step, with a disturbance of its own, must not decide the cause. Of two steps, both count, because one of
    them alone would be a single step, too.
    """
    if len(longer_s) > 2:
        worst = longer_s.sum(axis=1).argmax()
        longer_s = np.delete(longer_s, worst, axis=0)
    return np.asarray(longer_s.mean(axis=0))


class _LateCause(NamedTuple):
    """Why a rank takes longer than usual, and the phases that it makes longer, as columns."""

    name: str
    phases: list[int]


def _causes(longer_s: Seconds, usual_s: Seconds, starved_longer_s: float) -> list[_LateCause]:
    """Return why a rank takes longer than usual, the most important cause first; arrays are by phase."""
    every_phase = list(range(len(PHASES)))
    if starved_longer_s > longer_s.sum() / 2:  # most of the time was spent waiting for a core
        return [_LateCause("starved", every_phase)]
    # A phase is alike if it is longer by about the same factor as all phases together:
    # longer_s / usual_s > _ALIKE * (longer_s.sum() / usual_s.sum()). Multiplied out, because a phase may take no time.
    is_alike = longer_s * usual_s.sum() > _ALIKE * longer_s.sum() * usual_s
    if is_alike.sum() >= _LEAST_ALIKE and usual_s[is_alike].sum() > _ALMOST_ALL * usual_s.sum():
        return [_LateCause("slower", every_phase)]
    longest_first = np.argsort(-longer_s, kind="stable").tolist()
    return [
        _LateCause(PHASES[phase], [phase])
        for phase in longest_first
        if longer_s[phase] > _SECOND_CAUSE * longer_s.max()
    ]
