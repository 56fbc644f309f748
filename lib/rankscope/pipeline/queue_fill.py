"""How many items wait between two kinds of work, over time: what a queue holds, read from any timeline."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..common.checks import of_type, one_of
from ..timeline import Timeline


def queue_fill(
    timeline: Timeline, after: str, before: str, rank: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return times, and from each on the number of items that are past kind `after` and not yet in kind `before`.

    An item whose worker is "blocked" is still with its worker. An item with several spans of a kind is past `after`
    with the last and in `before` with the first; spans without an item are left out, as are those in `before` of items
    that have none in `after`. The times are those at which the number changes, in seconds of the timeline. Raises
    ValueError for a kind that the timeline does not have.

    >>> from rankscope.pipeline import Pipeline, Stage, simulate
    >>> spans = simulate(Pipeline([Stage("read", 1.0), Stage("train", 3.0)]), 4)
    >>> times_s, number = queue_fill(spans, "read", "train")
    >>> [(float(time), int(count)) for time, count in zip(times_s, number)]
    [(2.0, 1), (3.0, 2), (7.0, 1), (10.0, 0)]
    """
    here = of_type("timeline", timeline, Timeline).select(rank=rank)
    first, second = (here.select(kind=one_of("after and before", kind, timeline.kinds)) for kind in (after, before))
    past = here.select(kind=[after, "blocked"])
    past = past.take(np.flatnonzero(np.isin(past.lane, first.lane)))
    items, arrived_s = _latest(past.item, past.stop_s)
    taken, negative_s = _latest(second.item, -second.start_s)
    _, places, others = np.intersect1d(items, taken, assume_unique=True, return_indices=True)
    left_s = np.maximum(-negative_s[others], arrived_s[places])
    changes_s = np.concatenate([arrived_s, left_s])
    steps = np.concatenate([np.ones(arrived_s.size, int), -np.ones(left_s.size, int)])
    times_s, places = np.unique(changes_s, return_inverse=True)
    change = np.bincount(places, weights=steps, minlength=times_s.size).astype(np.int64)
    return times_s[change != 0], np.cumsum(change)[change != 0]


def _latest(items: NDArray[np.int64], times_s: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The different items, without -1, which is none, and for each the last of its times."""
    named = items != -1
    different, places = np.unique(items[named], return_inverse=True)
    latest = np.full(different.size, -np.inf)
    np.maximum.at(latest, places, times_s[named])
    return different, latest
