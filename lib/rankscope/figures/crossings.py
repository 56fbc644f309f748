"""Where drawn lines cross: which of them is the lowest, and from where on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_SAME = 1e-9  # lines as close as this, in logarithms, are one


class Change(NamedTuple):
    """From `x` on, where the lines are at `y`, line `leader` is the lowest."""

    x: float
    y: float
    leader: int


def lowest(x: Floats, y: Floats) -> tuple[int, list[Change]]:
    """Return the lowest line at the left, and each change of it, for lines that are straight on logarithmic axes.

    `y` has a row a line, all above 0. Of lines that coincide the one that led keeps the lead, else the first has it.

    >>> first, changes = lowest(np.array([1.0, 100.0]), np.array([[1.0, 100.0], [10.0, 10.0]]))
    >>> first, [(round(change.x, 9), round(change.y, 9), change.leader) for change in changes]
    (0, [(10.0, 10.0, 1)])
    """
    across, down = np.log(x), np.log(y)
    first = leader = int((down[:, 0] <= down[:, 0].min() + _SAME).argmax())
    changes: list[Change] = []
    for place in range(x.size - 1):
        left, rise = down[:, place], down[:, place + 1] - down[:, place]
        part = 0.0
        while (step := _overtaken(left, rise, leader, part)) is not None:
            part, leader = step
            at = across[place] + part * (across[place + 1] - across[place])
            changes.append(Change(float(np.exp(at)), float(np.exp(left[leader] + part * rise[leader])), leader))
    return first, changes


def _overtaken(left: Floats, rise: Floats, leader: int, part: float) -> tuple[float, int] | None:
    """The next part of the interval in which a line gets below the leader, and which; None if none does."""
    above = np.maximum(left - left[leader] + part * (rise - rise[leader]), 0)
    faster = rise[leader] - rise > _SAME
    if not faster.any():
        return None
    wait = np.full(left.size, np.inf)
    wait[faster] = above[faster] / (rise[leader] - rise[faster])
    soonest = np.flatnonzero(wait <= wait.min() + _SAME)
    after = part + float(wait.min())
    return (after, int(soonest[rise[soonest].argmin()])) if after < 1 - _SAME else None
