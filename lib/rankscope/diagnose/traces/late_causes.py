"""Why late ranks are late, and what that costs: `described_groups`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .trace import PHASES

Seconds = NDArray[np.float64]
Steps = NDArray[np.bool_]

_ALIKE = 0.6  # a phase takes longer like all phases if it does so by at least this share of their common factor …
_LEAST_ALIKE = 3  # … all phases take longer alike if at least so many do …
_ALMOST_ALL = 0.8  # … which make up this share of a step


class Culprit(NamedTuple):
    """A rank that the others wait for, the phase that it loses most time in, and what that costs per step, in seconds.

    The cause is one of `PHASES`, or "slower" if all phases take longer alike: the clock of its GPU or CPU is slower, or
    it shares its core.

    A step gets shorter by `cost_s` once this culprit is mended and those before it in `Lateness.culprits` are. Of ranks
    that are late in the same steps, mending one alone saves next to nothing, because the others are still waited for.
    So the last of them has nearly all of the cost, and only the sum says what they cost.

    `late_s` is the mean over the steps in which it is late of how much more own time it has than the ranks that are not
    late, and `takes_s` and `usual_s`, by phase, of how much time it and they have.
    """

    rank: int
    cause: str
    cost_s: float
    in_steps: Steps
    late_s: float
    takes_s: Seconds
    usual_s: Seconds


def lower_middle(own_s: Seconds) -> Seconds:
    """Return the middle time of each row, the lower one of two, as half of the ranks may be late."""
    return np.sort(own_s, axis=1)[:, (own_s.shape[1] - 1) // 2]


def described_groups(
    ranks: Sequence[int], phase_s: Seconds, groups: Sequence[Sequence[int]], least_s: float
) -> list[tuple[Culprit, ...]]:
    """Mend one late rank after the other, and return what that shows; `groups` are columns of the late ranks."""
    named = [column for group in groups for column in group]
    usual_s = np.median(np.delete(phase_s, named, axis=1), axis=1)  # steps by phases
    remaining_s = phase_s.copy()
    described = []
    for group in groups:
        culprits = []
        for column in group:
            longer_s = phase_s[:, column] - usual_s
            late_s = longer_s.sum(axis=1)
            in_steps = late_s >= min(late_s.max(), np.clip(late_s.max() / 2, least_s / 2, 2 * least_s))
            takes_s = phase_s[in_steps, column].mean(axis=0)
            usual_then_s = usual_s[in_steps].mean(axis=0)
            # the median, because a single step with a disturbance of its own must not decide
            cause = _cause(np.maximum(np.median(longer_s[in_steps], axis=0), 0.0), usual_then_s)
            before_s = remaining_s.sum(axis=2).max(axis=1)  # the own time of the last rank, by step
            remaining_s[:, column] = np.minimum(remaining_s[:, column], usual_s)
            cost_s = float((before_s - remaining_s.sum(axis=2).max(axis=1)).mean())
            mean_late_s = float(late_s[in_steps].mean())
            culprits.append(Culprit(ranks[column], cause, cost_s, in_steps, mean_late_s, takes_s, usual_then_s))
        described.append(tuple(culprits))
    return described


def _cause(longer_s: Seconds, usual_s: Seconds) -> str:
    """Return why a rank takes longer than usual. Arrays are by phase."""
    # A phase is alike if it is longer by about the same factor as all phases together:
    # longer_s / usual_s > _ALIKE * (longer_s.sum() / usual_s.sum()). Multiplied out, because a phase may take no time.
    is_alike = longer_s * usual_s.sum() > _ALIKE * longer_s.sum() * usual_s
    if is_alike.sum() >= _LEAST_ALIKE and usual_s[is_alike].sum() > _ALMOST_ALL * usual_s.sum():
        return "slower"
    return PHASES[longer_s.argmax()]
