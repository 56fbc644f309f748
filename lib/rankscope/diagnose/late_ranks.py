"""Which ranks the others wait for, in which phase, and the cost: `lateness`, the rule behind every verdict.

Lateness is judged by the noise of the ranks that are not late, the calm ones. Late ranks would hide in their own noise:
two that share the lateness each make the other look like a usual fluctuation.
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
_AS_LATE = 0.5  # of the median of a rank's late steps: what counts as equally late, on it and on calm ranks
_CHANCE = 0.05  # a rank is late by chance if calm ranks would be late as often with this probability …
_CHANCE_OF_SIGN = 0.005  # … and if one rank out of two would be later than the other so often
_SAME_CAUSE = 0.7  # of a rank's late steps, where these are fewer than half of all
_SECOND_CAUSE = 0.4  # of the first cause's time: then a second one is named
_ALIKE = 0.6  # a phase takes longer in proportion if it takes this share of what is proportional …
_ALMOST_ALL = 0.8  # … and such phases make up this share of a step
_UNBALANCED = 0.15  # of a step: no job in which a rank waits longer for other ranks is balanced


class Culprit(NamedTuple):
    """A rank that the others wait for, the phase that it loses its time in, and what that costs per step, in seconds.

    The cause is one of `PHASES`; or "starved" if most of the time was spent waiting for a core; or "slower" if all
    phases take longer alike and nothing else is known: the clock of its GPU or CPU is slower, or it shares its core.
    """

    rank: int
    cause: str
    cost_s: float


class LateRank(NamedTuple):
    """A late rank: its column, the steps in which it is late, and its culprits, one for each cause.

    `usual_s`, steps by phases, is the median of the calm ranks. `starved_s` is how much longer than they it waited for
    a core, the mean over the steps in which it is late.
    """

    place: int
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
        first_group = self.groups[0] if self.groups else ()
        late = [rank.place for rank in first_group]
        calm = np.setdiff1d(np.arange(num_ranks), late)
        if calm.size < 2:  # a calm rank has no other one to be compared with
            late_s = np.asarray(own_s - median_of_others(own_s))
        else:
            late_s = np.zeros(own_s.shape)
            late_s[:, calm] = own_s[:, calm] - median_of_others(own_s[:, calm])
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
      `LEAST_S`, and more than `SHARE_OF_STEP` of a step.

    Of those that hold, the one with the fewest late ranks counts that explains as much as any other. Then the late
    ranks are taken to be as fast as the calm ones, and the rest is judged again.

    The causes of a rank are the phase that takes longest in comparison with the calm ranks, in the mean of its late
    steps without the worst, and each other one that takes `_SECOND_CAUSE` of that. A cost is what the last rank would
    arrive earlier if that phase took as long as on the calm ranks, once those before it in the list are mended: costs
    add up, and of ranks that are late together the last one has nearly all of it.
    """
    step_s = float(np.median(window_s)) if window_s.size else 0.0
    left_s = phase_s.astype(float)
    starved_s = np.zeros(window_s.shape) if starved_s is None else starved_s
    groups = list[tuple[LateRank, ...]]()
    named = set[int]()
    while len(ranks) > 1 and len(left_s):
        late, calm = _divided(left_s, step_s)
        if named.issuperset(late):
            break
        usual_s = np.median(left_s[:, calm], axis=1)
        usual_starved_s = np.median(starved_s[:, calm], axis=1)
        group = []
        for place, in_steps in late.items():
            if place not in named:
                starved_longer_s = float((starved_s[:, place] - usual_starved_s)[in_steps].mean())
                culprits = _mended(left_s, int(ranks[place]), place, in_steps, usual_s, starved_longer_s)
                group.append(LateRank(place, in_steps, usual_s, starved_longer_s, culprits))
            left_s[:, place] = np.minimum(left_s[:, place], usual_s)
        named.update(late)
        groups.append(tuple(group))
    return Lateness(tuple(ranks), window_s, phase_s, tuple(groups))


def _mended(
    left_s: Seconds, rank: int, place: int, in_steps: Steps, usual_s: Seconds, starved_longer_s: float
) -> tuple[Culprit, ...]:
    """Return the culprits of a late rank; one after the other is mended in `left_s`, and costs what that saves."""
    longer_s = np.maximum(_mean_without_worst((left_s[:, place] - usual_s)[in_steps]), 0.0)
    culprits = []
    for cause, columns in _causes(longer_s, usual_s[in_steps].mean(axis=0), starved_longer_s):
        before_s = left_s.sum(axis=2).max(axis=1)
        left_s[:, place, columns] = np.minimum(left_s[:, place, columns], usual_s[:, columns])
        after_s = left_s.sum(axis=2).max(axis=1)
        culprits.append(Culprit(rank, cause, float((before_s - after_s).mean())))
    return tuple(culprits)


class _RankDivision(NamedTuple):
    """Late ranks with their late steps, and the seconds per step that these explain."""

    cost_s: float
    late_steps: dict[int, Steps]


def _divided(phase_s: Seconds, step_s: float) -> tuple[dict[int, Steps], Ints]:
    """Return the late ranks, the latest first, each with its late steps; and the calm ones.

    `phase_s` has the shape (steps, ranks, phases). With each number of late ranks, the latest so many are divided from
    the others, if `_division` allows it. Of these divisions, the one with the fewest late ranks is returned that
    explains as much as any other.
    """
    own_s = phase_s.sum(axis=2)  # steps by ranks
    behind_first_s = own_s - own_s.min(axis=1, keepdims=True)
    latest_first = np.argsort(-_sum_without_worst(behind_first_s), kind="stable")
    least_s = max(LEAST_S, SHARE_OF_STEP * step_s)
    divisions: list[_RankDivision] = []
    for num_late in range(1, len(latest_first)):
        division = _division(phase_s, own_s, latest_first[:num_late], latest_first[num_late:], least_s)
        if division is not None:
            divisions.append(division)
    if not divisions:
        return {}, latest_first
    most_s = max(division.cost_s for division in divisions)
    chosen = next(division for division in divisions if division.cost_s >= most_s - least_s)
    return chosen.late_steps, latest_first[len(chosen.late_steps) :]


def _division(
    phase_s: Seconds, own_s: Seconds, late_ranks: Ints, calm_ranks: Ints, least_s: float
) -> _RankDivision | None:
    """Return the division into these late ranks, the latest first, and these calm ones; None if it does not hold.

    It holds if the late ranks cost more than `least_s` per step and more than the noise of the calm ranks does, and if
    each of them has steps in which it is late by `_late_steps`.
    """
    # how much earlier the last rank of each step would be if there were only the calm ranks; the mean per step
    earlier_s = own_s.max(axis=1) - own_s[:, calm_ranks].max(axis=1)
    cost_s = float(_sum_without_worst(earlier_s)) / max(len(own_s) - 1, 1)
    # The late rank that is the least late must be late in two steps. Most divisions fail here, and this is fast.
    least_late_s = own_s[:, late_ranks[-1]] - np.median(own_s[:, calm_ranks], axis=1)
    if cost_s <= least_s or (least_late_s > least_s).sum() < 2:
        return None
    calm = _calm(phase_s[:, calm_ranks], least_s)
    if cost_s <= calm.cost_s:
        return None
    late_steps = dict[int, Steps]()
    for place in late_ranks[::-1].tolist():  # the least late first, as it is the most likely to be calm
        in_steps = _late_steps(phase_s[:, place], calm, least_s)
        if not in_steps.any():
            return None
        late_steps[place] = in_steps
    return _RankDivision(cost_s, dict(reversed(late_steps.items())))


class _CalmStatistics(NamedTuple):
    """What is usual on calm ranks, and how noisy they are.

    `usual_s`, steps by phases, and `usual_own_s`, by steps, are medians of these ranks. `noise_s`, steps by ranks, is
    how far each is from the others; of a single one, how far it is from its own median. What is later than `least_s` is
    not noise. `cost_s` is what the noise costs per step.
    """

    usual_s: Seconds
    usual_own_s: Seconds
    noise_s: Seconds
    least_s: float
    cost_s: float


def _calm(phase_s: Seconds, least_s: float) -> _CalmStatistics:
    own_s = phase_s.sum(axis=2)
    usual_own_s = np.median(own_s, axis=1)
    if own_s.shape[1] == 1:
        noise_s = own_s - np.median(own_s, axis=0)
        cost_s = float(np.maximum(noise_s, 0.0).mean())
    else:
        noise_s = own_s - median_of_others(own_s)
        cost_s = float((own_s.max(axis=1) - usual_own_s).mean())
    deviation_s = _SIGMAS_PER_MAD * float(np.median(np.abs(noise_s)))
    return _CalmStatistics(
        np.median(phase_s, axis=1), usual_own_s, noise_s, max(least_s, _NOISES * deviation_s), cost_s
    )


def _late_steps(phase_s: Seconds, calm: _CalmStatistics, least_s: float) -> Steps:
    """Return the steps in which a rank is late; none of them if the noise of the calm ranks explains these.

    `phase_s` is the rank's own time, steps by phases. The noise explains it unless the rank is late so often that calm
    ranks would not be, by Laplace's rule of succession and the binomial distribution. Few late steps must also have the
    same cause. Or the rank must be later than the calm ranks in so many steps that a fair coin would not fall like
    that, which needs no measure of noise.
    """
    late_s = phase_s.sum(axis=1) - calm.usual_own_s
    num_steps = len(late_s)
    in_steps = _equally_late(late_s, calm.least_s)
    num_late = int(in_steps.sum())
    if num_late > 1:
        as_late_s = float(late_s[in_steps].min())
        num_calm = int((calm.noise_s >= as_late_s).sum())
        chance = _binomial_tail(num_late, num_steps, (num_calm + 1) / (calm.noise_s.size + 2))
        largest_phase = (phase_s - calm.usual_s)[in_steps].argmax(axis=1)
        share_of_commonest = np.bincount(largest_phase).max() / num_late
        is_often = num_late > num_steps / 2
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
    ordered = np.take_along_axis(values, order, axis=1)
    place_of = np.argsort(order, axis=1, kind="stable")  # of each rank in that order

    def other(place: int) -> Seconds:
        """The value at a place in the order of the others: those behind the rank itself move up by one."""
        return np.where(place_of > place, ordered[:, [place]], ordered[:, [place + 1]])

    return np.asarray((other((num_others - 1) // 2) + other(num_others // 2)) / 2)


def _binomial_tail(least: int, trials: int, chance: float) -> float:
    """Return the probability that at least so many of the trials succeed, with a chance above 0 and below 1."""
    log_factorial = np.append(0.0, np.cumsum(np.log(np.arange(1, trials + 1))))
    number = np.arange(least, trials + 1)
    log_ways = log_factorial[trials] - log_factorial[number] - log_factorial[trials - number]
    return float(np.exp(log_ways + number * np.log(chance) + (trials - number) * np.log1p(-chance)).sum())


def _sum_without_worst(values: Seconds) -> Seconds:
    """The sum over the first axis without its largest value, unless that is the only one."""
    total = values.sum(axis=0)
    return np.asarray(total - values.max(axis=0) if len(values) > 1 else total)


def _mean_without_worst(longer_s: Seconds) -> Seconds:
    """The mean over steps, the first axis, without the step that is longest in all phases; of all if they are few."""
    if len(longer_s) > 2:
        longer_s = np.delete(longer_s, longer_s.sum(axis=1).argmax(), axis=0)
    return np.asarray(longer_s.mean(axis=0))


def _causes(longer_s: Seconds, usual_s: Seconds, starved_longer_s: float) -> list[tuple[str, list[int]]]:
    """Return why a rank takes longer than usual, and which phases each cause makes longer; arrays are by phase."""
    every_phase = list(range(len(PHASES)))
    if starved_longer_s > longer_s.sum() / 2:
        return [("starved", every_phase)]
    # A phase is alike if it is longer by about the same factor as all phases together. Multiplied out, because a phase
    # may usually take no time.
    is_alike = longer_s * usual_s.sum() > _ALIKE * longer_s.sum() * usual_s
    if is_alike.sum() > 2 and usual_s[is_alike].sum() > _ALMOST_ALL * usual_s.sum():
        return [("slower", every_phase)]
    longest_first = np.argsort(-longer_s, kind="stable").tolist()
    return [(PHASES[place], [place]) for place in longest_first if longer_s[place] > _SECOND_CAUSE * longer_s.max()]
