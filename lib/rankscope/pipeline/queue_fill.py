"""How many items wait between two kinds of work, over time: what a queue holds, read from any timeline."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..checks import one_of
from ..timeline import Timeline


def queue_fill(
    timeline: Timeline, after: str, before: str, rank: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return times, and from each on the number of items that are past kind `after` and not yet in kind `before`.

    An item whose worker is "blocked" is still with its worker. The times are those at which the number changes, in
    seconds of the timeline. Raises ValueError for a kind that the timeline does not have.

    >>> from rankscope.pipeline import Pipeline, Stage, simulate
    >>> spans = simulate(Pipeline([Stage("read", 1.0), Stage("train", 3.0)]), 4)
    >>> times_s, number = queue_fill(spans, "read", "train")
    >>> [(float(time), int(count)) for time, count in zip(times_s, number)]
    [(2.0, 1), (3.0, 2), (7.0, 1), (10.0, 0)]
    """
    here = timeline.select(rank=rank)
    first, second = (here.select(kind=one_of("after and before", kind, timeline.kinds)) for kind in (after, before))
    if "blocked" in timeline.kinds:
        blocked = here.select(kind="blocked")
        own = np.isin(blocked.lane, first.lane)
        arrivals = _latest(
            np.concatenate([first.item, blocked.item[own]]), np.concatenate([first.stop_s, blocked.stop_s[own]])
        )
    else:
        arrivals = _latest(first.item, first.stop_s)
    changes_s = np.concatenate([arrivals, second.start_s])
    steps = np.concatenate([np.ones(arrivals.size, int), -np.ones(len(second), int)])
    times_s, places = np.unique(changes_s, return_inverse=True)
    change = np.bincount(places, weights=steps, minlength=times_s.size).astype(np.int64)
    return times_s[change != 0], np.cumsum(change)[change != 0]


def _latest(items: NDArray[np.int64], stop_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each different item the last of its times."""
    _, places = np.unique(items, return_inverse=True)
    latest = np.full(places.max(initial=-1) + 1, -np.inf)
    np.maximum.at(latest, places, stop_s)
    return latest
