"""Which ranks the others wait for, in which phase, and the cost: `lateness`, the rule behind every verdict.

The latest rank is taken out of the job, one after the other, as long as chance does not explain it: how often it is
late is compared with how often the ranks that are left are. Steps of a slow spell are no independent evidence, so the
steps of a job whose ranks are slow for some steps in a row, or whose speed wanders, count for fewer (`_chance`). Ranks
are named once they cost enough, and more than the noise of the others.

`python -m tests.benchmarks.late_ranks` counts the wrong verdicts on made-up jobs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from .late_causes import Culprit, Seconds, described_groups, lower_middle

SHARE_OF_STEP = 0.1  # late ranks must cost this share of a step …
LEAST_S = 0.004  # … and these seconds
_SUSPICIOUS = 0.5  # a job is not balanced in which ranks that are not named seem to cost this share of that
_CHANCE = 0.04
_CHANCE_LAST = 0.001  # for a lead, whatever it costs
_TERMS = 20_000  # of a series
_ROUNDING = 0.01  # of the seconds above: what varies by less is as good as constant
_UNBALANCED = 0.15  # of a step: a job in which a rank waits longer for other ranks is not balanced


class Suspicion(NamedTuple):
    """Ranks that may be late and are not named, the latest first, and what they cost per step."""

    late: tuple[Culprit, ...]
    cost_s: float
    is_chance: bool  # else they cost too little


class Lateness(msgspec.Struct, frozen=True, eq=False):
    """Who is late in a job. Times have a row per step and a column per rank; `phase_s` has a last axis for `PHASES`.

    `groups` are ranks that are late next to each other; a later group would be late once those before it are mended.
    """

    ranks: tuple[int, ...]
    window_s: Seconds
    phase_s: Seconds
    groups: tuple[tuple[Culprit, ...], ...]
    suspicion: Suspicion | None = None

    @property
    def culprits(self) -> list[Culprit]:
        """All culprits, in the order in which to mend them."""
        return [culprit for group in self.groups for culprit in group]

    @property
    def step_s(self) -> float:
        """The mean seconds of a step."""
        return mean(self.window_s)

    @property
    def own_s(self) -> Seconds:
        """The own time of each rank in each step."""
        return np.asarray(self.phase_s.sum(axis=2))

    @property
    def late_s(self) -> Seconds:
        """How much more own time each rank has in each step than the middle one of the ranks that are not late."""
        named = [self.ranks.index(culprit.rank) for culprit in self.culprits]
        return self.own_s - lower_middle(np.delete(self.own_s, named, axis=1))[:, None]

    @property
    def waits_s(self) -> Seconds:
        """Seconds that each rank waits for the last one in each step, communication not included."""
        return np.asarray(self.own_s.max(axis=1, keepdims=True, initial=0.0) - self.own_s)

    @property
    def longest_wait_s(self) -> float:
        """Seconds per step that the rank that waits longest waits for other ranks."""
        return float(self.waits_s.mean(axis=0).max()) if self.waits_s.size else 0.0

    @property
    def often_last(self) -> tuple[int, int] | None:
        """The rank that is last in most steps, and in how many; None if that may be chance among equal ranks."""
        own_s = self.own_s
        num_steps, num_ranks = own_s.shape
        if num_steps < 2:
            return None
        times_last = np.bincount(own_s.argmax(axis=1), minlength=num_ranks)
        most = int(times_last.max())
        spell = _spell(own_s - lower_middle(own_s)[:, None], LEAST_S)
        chance = num_ranks * incomplete_beta(most / spell, (num_steps - most) / spell + 1, 1 / num_ranks)
        return (self.ranks[int(times_last.argmax())], most) if chance < _CHANCE_LAST else None

    @property
    def is_balanced(self) -> bool:
        """Whether nobody is late, and no rank waits for others for a large share of a step."""
        is_calm = not self.groups and self.suspicion is None
        return is_calm and self.longest_wait_s <= _UNBALANCED * self.step_s


def mean(values: Seconds) -> float:
    return float(values.mean()) if values.size else 0.0


def lateness(ranks: Sequence[int], window_s: Seconds, phase_s: Seconds) -> Lateness:
    """Judge own times, steps by ranks by `PHASES`: take out the latest ranks until chance explains them.

    Of ranks that are late together or in turn, the first alone saves little, so they are named together.
    """
    own_s = phase_s.sum(axis=2)
    median_step_s = float(np.median(window_s)) if window_s.size else 0.0
    least_s = max(LEAST_S, SHARE_OF_STEP * median_step_s)
    rest = list(range(len(ranks)))
    groups: list[list[int]] = []
    pending: list[int] = []  # late, and not yet named
    saved_s = further_s = 0.0
    is_chance = False
    while len(rest) > 1 and len(own_s) > 1 and not is_chance:
        over_s = own_s[:, rest] - lower_middle(own_s[:, rest])[:, None]
        latest = int(np.clip(over_s, least_s / 2, 1.5 * least_s).sum(axis=0).argmax())
        is_chance = _chance(over_s, latest, least_s) > _CHANCE
        if is_chance and pending:  # those that chance does not explain cost too little
            is_chance = False
            break
        pending.append(rest.pop(latest))
        earlier_s = own_s.max(axis=1) - own_s[:, rest].max(axis=1)
        # without the worst step, which may be an accident
        further_s = float((earlier_s.sum() - earlier_s.max()) / (len(earlier_s) - 1)) - saved_s
        noise_s = own_s[:, rest].max(axis=1) - np.median(own_s[:, rest], axis=1)
        if not is_chance and further_s >= max(least_s, noise_s.mean()):
            groups.append(pending)
            pending = []
            saved_s += further_s
    is_suspicious = bool(pending) and further_s >= _SUSPICIOUS * least_s
    described = described_groups(ranks, phase_s, [*groups, pending] if is_suspicious else groups, least_s)
    suspicion = Suspicion(described.pop(), further_s, is_chance or further_s >= least_s) if is_suspicious else None
    return Lateness(tuple(ranks), window_s, phase_s, tuple(described), suspicion)


def _chance(over_s: Seconds, latest: int, least_s: float) -> float:
    """Return how likely a rank that is like the others is late as often as the latest one is.

    A rank is late in a step if it is later than half of what it must cost, or than half of its second latest step:
    whichever says more. The others say how likely that is, by Laplace's rule of succession plus 1.5 standard errors, as
    they may be few.
    """
    num_steps = len(over_s)
    # what is hardly late, or very late, says nothing of spells
    spell = _spell(np.clip(over_s, least_s / 2, 2 * least_s), least_s)
    second_latest_s = np.sort(over_s[:, latest])[-2]
    chances = []
    for threshold_s in (least_s / 2, max(least_s, second_latest_s) / 2):
        is_late = over_s > threshold_s
        num_late = is_late[:, latest].sum() / spell
        if num_late == 0:
            return 1.0
        late_others = (is_late.sum() - is_late[:, latest].sum()) / spell
        all_others = num_steps * (over_s.shape[1] - 1) / spell
        share = min((late_others + 1 + 1.5 * np.sqrt(late_others)) / (all_others + 2), 1.0)
        chances.append(incomplete_beta(num_late, num_steps / spell - num_late + 1, share))
    return min(chances)


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b): the binomial distribution, of any positive numbers.

    A series of positive terms (https://dlmf.nist.gov/8.17.E8). It is scipy's `betainc`, which no web page has.
    """
    if x >= 1.0:
        return 1.0
    if x > (a + 1.0) / (a + b + 2.0):  # where the other tail is shorter
        return 1.0 - incomplete_beta(b, a, 1.0 - x)
    first = math.lgamma(a + b) - math.lgamma(a + 1.0) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    places = np.arange(_TERMS)
    ratios = (a + b + places) / (a + 1.0 + places) * x
    return math.exp(first) * (1.0 + float(ratios.cumprod().sum()))


def _spell(over_s: Seconds, least_s: float) -> float:
    """Return how many steps count as one, because slow spells last.

    It follows from von Neumann's ratio, which is 2 if all steps are independent, and the smaller the longer spells last
    (https://doi.org/10.1214/aoms/1177731677).
    """
    rounding_s2 = (_ROUNDING * least_s) ** 2
    change_s2 = (np.diff(over_s, axis=0) ** 2).mean() + 2 * rounding_s2
    ratio = change_s2 / (over_s.var(axis=0).mean() + rounding_s2)
    return float(np.clip((2 / ratio) ** 2, 1.0, len(over_s)))
