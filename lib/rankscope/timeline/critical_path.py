"""The critical path: the chain of spans that a timeline's end has waited for."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from ..values.checks import number, of_type
from .spans import Timeline

Places = NDArray[np.int64]


def critical_path(timeline: Timeline, tolerance_s: float = 1e-9) -> Timeline:
    """Return the chain of spans that ends with the last one, first span first.

    A span waits for what its lane did before (the lane was busy) and for what was done to its item before, on any
    lane (the work was not there yet); the path goes back to whichever of these ended last, at or before the span's
    start, the one on the own lane where they ended together. It stops at a span that waited for nothing. Gaps on the
    path are waiting that no span explains; spans of `WAITS` are left out. Items are told apart by rank; -1 is no item.

    >>> from rankscope.timeline import Span
    >>> spans = [Span(0, "read", "read", 0, 0.0, 2.0), Span(0, "gpu", "step", 0, 2.0, 3.0),
    ...          Span(0, "read", "read", 1, 2.0, 4.0), Span(0, "gpu", "step", 1, 4.0, 5.0)]
    >>> [(span.kind, span.item) for span in critical_path(Timeline.of(spans))]
    [('read', 0), ('read', 1), ('step', 1)]
    """
    number("tolerance_s", tolerance_s, 0)
    timeline = of_type("timeline", timeline, Timeline).work()
    if not len(timeline):
        return timeline
    order = np.lexsort((timeline.start_s, timeline.stop_s))  # by end: a predecessor is a bisection away
    lanes = _groups(timeline, timeline.lane, order)
    items = _groups(timeline, timeline.item, order)
    span, path = int(order[-1]), []
    while True:
        path.append(span)
        rank, limit_s = int(timeline.rank[span]), float(timeline.start_s[span]) + tolerance_s
        groups = [lanes[rank, int(timeline.lane[span])]]
        if timeline.item[span] != -1:
            groups.append(items[rank, int(timeline.item[span])])
        before = [_last_before(timeline, *group, limit_s, span) for group in groups]
        found = [place for place in before if place is not None]
        if not found:
            return timeline.take(np.array(path[::-1]))
        span = max(found, key=lambda place: timeline.stop_s[place])


def _groups(timeline: Timeline, key: Places, order: Places) -> dict[tuple[int, int], tuple[Places, list[float]]]:
    """The spans of each (rank, key), ordered by their end, and those ends."""
    groups = timeline.grouped(key, order)
    return {(int(timeline.rank[g[0]]), int(key[g[0]])): (g, timeline.stop_s[g].tolist()) for g in groups}


def _last_before(timeline: Timeline, group: Places, stops: list[float], limit_s: float, span: int) -> int | None:
    """The span of the group that ends last, at or before the limit, and comes before `span` by start, end and place."""

    def rank(place: int) -> tuple[float, float, int]:
        return float(timeline.start_s[place]), float(timeline.stop_s[place]), place

    for place in reversed(group[: bisect_right(stops, limit_s)]):
        if rank(int(place)) < rank(span):
            return int(place)
    return None
