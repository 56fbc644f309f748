"""The critical path: the chain of spans that a timeline's end has waited for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .spans import Timeline

Places = NDArray[np.int64]


def critical_path(timeline: Timeline, tolerance_s: float = 1e-9) -> Timeline:
    """Return the chain of spans that ends with the last one, first span first.

    A span waits for what its lane did before (the lane was busy) and for what was done to its item before, on any
    lane (the work was not there yet); the path goes back to whichever of these ended last, at or before the span's
    start, the one on the own lane where they ended together. It stops at a span that waited for nothing. Gaps on the
    path are waiting that no span explains. Items are told apart by rank; -1 is no item.

    >>> from rankscope.timeline import Span
    >>> spans = [Span(0, "read", "read", 0, 0.0, 2.0), Span(0, "gpu", "step", 0, 2.0, 3.0),
    ...          Span(0, "read", "read", 1, 2.0, 4.0), Span(0, "gpu", "step", 1, 4.0, 5.0)]
    >>> [(span.kind, span.item) for span in critical_path(Timeline.of(spans))]
    [('read', 0), ('read', 1), ('step', 1)]
    """
    if not len(timeline):
        return timeline
    order = np.argsort(timeline.stop_s, kind="stable")  # by end: a predecessor is a bisection away
    lanes = _groups(timeline, timeline.lane, order)
    items = _groups(timeline, timeline.item, order)
    path = [int(order[-1])]
    while True:
        span = path[-1]
        rank, start_s = int(timeline.rank[span]), timeline.start_s[span]
        groups = [lanes[rank, int(timeline.lane[span])]]
        if timeline.item[span] != -1:
            groups.append(items[rank, int(timeline.item[span])])
        before = [_last_before(timeline, group, start_s + tolerance_s, path[-1]) for group in groups]
        found = [place for place in before if place is not None]
        if not found:
            break
        path.append(max(found, key=lambda place: timeline.stop_s[place]))
    return timeline.take(np.array(path[::-1]))


def _groups(timeline: Timeline, key: Places, order: Places) -> dict[tuple[int, int], Places]:
    """The spans of each (rank, key), ordered by their end."""
    ranks, keys = timeline.rank[order], key[order]
    sorting = np.lexsort((keys, ranks))  # stable: keeps the order of ends
    ranks, keys, places = ranks[sorting], keys[sorting], order[sorting]
    cuts = np.flatnonzero((np.diff(ranks) != 0) | (np.diff(keys) != 0)) + 1
    groups = np.split(places, cuts)
    return {(int(timeline.rank[group[0]]), int(key[group[0]])): group for group in groups}


def _last_before(timeline: Timeline, group: Places, limit_s: float, span: int) -> int | None:
    """The span of the group that ends last, at or before the limit, and begins before `span` does."""
    place = int(np.searchsorted(timeline.stop_s[group], limit_s, side="right")) - 1
    while place >= 0:
        found = int(group[place])
        if timeline.start_s[found] < timeline.start_s[span]:
            return found
        place -= 1
    return None
