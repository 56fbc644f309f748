"""The number of items that wait between two kinds of work, over time: the fill of a queue, from any timeline."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..common.checks import of_type, one_of
from ..timeline import Timeline


def queue_fill(
    timeline: Timeline, after: str, before: str, rank: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Count the items in the queue between the kinds `after` and `before` over time.

    Returns the times at which the number changes, in seconds of the timeline, and the number that holds from each time
    onwards. An item whose worker is "blocked" is still with its worker. If an item has several spans of a kind, it
    leaves `after` at the end of the last and enters `before` at the start of the first. Spans without an item do not
    count, nor do spans in `before` of items that have none in `after`. Raises ValueError if the timeline does not have
    one of the kinds.

    >>> from rankscope.pipeline import Pipeline, Stage, simulate
    >>> spans = simulate(Pipeline([Stage("read", 1.0), Stage("train", 3.0)]), 4)
    >>> times_s, number = queue_fill(spans, "read", "train")
    >>> [(float(time), int(count)) for time, count in zip(times_s, number)]
    [(2.0, 1), (3.0, 2), (7.0, 1), (10.0, 0)]
    """
    spans = of_type("timeline", timeline, Timeline).select(rank=rank)
    work_before = spans.select(kind=one_of("after and before", after, timeline.kinds))
    work_after = spans.select(kind=one_of("after and before", before, timeline.kinds))
    with_worker = spans.select(kind=[after, "blocked"])
    # Workers of other stages may be blocked, too, so only the lanes of `after` count.
    with_worker = with_worker.take(np.flatnonzero(np.isin(with_worker.lane, work_before.lane)))
    items, arrived_s = _latest(with_worker.item, with_worker.stop_s)
    items_taken, taken_s = _earliest(work_after.item, work_after.start_s)
    _, index_in_items, index_in_taken = np.intersect1d(items, items_taken, assume_unique=True, return_indices=True)
    left_s = np.maximum(taken_s[index_in_taken], arrived_s[index_in_items])  # an item cannot leave before it arrives
    all_changes_s = np.concatenate([arrived_s, left_s])
    all_changes = np.concatenate([np.ones(arrived_s.size, int), -np.ones(left_s.size, int)])
    times_s, index_of_time = np.unique(all_changes_s, return_inverse=True)
    change = np.bincount(index_of_time, weights=all_changes, minlength=times_s.size).astype(np.int64)  # at each time
    fill = np.cumsum(change)
    return times_s[change != 0], fill[change != 0]


def _latest(items: NDArray[np.int64], times_s: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the different items, sorted, and the last time of each; -1 is no item."""
    has_item = items != -1
    different_items, indices = np.unique(items[has_item], return_inverse=True)
    latest_s = np.full(different_items.size, -np.inf)
    np.maximum.at(latest_s, indices, times_s[has_item])
    return different_items, latest_s


def _earliest(items: NDArray[np.int64], times_s: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the different items, sorted, and the first time of each; -1 is no item."""
    different_items, minus_earliest_s = _latest(items, -times_s)
    return different_items, -minus_earliest_s
