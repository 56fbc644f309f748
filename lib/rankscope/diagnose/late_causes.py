"""Why late ranks are late, and what that costs: `described_groups`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .trace import PHASES

Seconds = NDArray[np.float64]
Steps = NDArray[np.bool_]

_SECOND_CAUSE = 0.4  # a phase is a further cause if it loses this share of the time that the first cause loses
_ALIKE = 0.6  # a phase takes longer like all phases if it does so by at least this share of their common factor …
_LEAST_ALIKE = 3  # … all phases take longer alike if at least so many do …
_ALMOST_ALL = 0.8  # … which make up this share of a step


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


def lower_middle(own_s: Seconds) -> Seconds:
    """Return the middle time of each row, the lower one of two, as half of the ranks may be late."""
    return np.sort(own_s, axis=1)[:, (own_s.shape[1] - 1) // 2]


def described_groups(
    ranks: Sequence[int], phase_s: Seconds, groups: Sequence[Sequence[int]], least_s: float
) -> list[tuple[LateRank, ...]]:
    """Mend one late rank after the other, and return what that shows. A cost is the mean over all steps."""
    named = [column for group in groups for column in group]
    usual_s = np.median(np.delete(phase_s, named, axis=1), axis=1)  # steps by phases
    remaining_s = phase_s.copy()

    def mended(column: int, phases: Sequence[int]) -> float:
        """Give a rank the usual time in these phases, and return the seconds per step that this saves."""
        before_s = remaining_s.sum(axis=2).max(axis=1)  # the own time of the last rank, by step
        remaining_s[:, column, phases] = np.minimum(remaining_s[:, column, phases], usual_s[:, phases])
        return float((before_s - remaining_s.sum(axis=2).max(axis=1)).mean())

    def described(column: int) -> LateRank:
        longer_s = phase_s[:, column] - usual_s
        late_s = longer_s.sum(axis=1)
        in_steps = late_s >= min(late_s.max(), np.clip(late_s.max() / 2, least_s / 2, 2 * least_s))
        # the median, because a single step with a disturbance of its own must not decide
        typical_s = np.maximum(np.median(longer_s[in_steps], axis=0), 0.0)
        takes_s = phase_s[in_steps, column].mean(axis=0)
        usual_then_s = usual_s[in_steps].mean(axis=0)
        culprits = []
        for cause, phases in _causes(typical_s, usual_then_s):
            culprits.append(Culprit(ranks[column], cause, mended(column, phases)))
        mended(column, range(len(PHASES)))
        return LateRank(column, in_steps, float(late_s[in_steps].mean()), takes_s, usual_then_s, tuple(culprits))

    return [tuple(described(column) for column in group) for group in groups]


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
