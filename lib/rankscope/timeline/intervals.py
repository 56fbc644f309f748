"""Unions and intersections of time intervals, as columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]


def merge(start_s: Times, stop_s: Times) -> tuple[Times, Times]:
    """Return the union of intervals as disjoint intervals in order; those that touch become one.

    >>> start_s, stop_s = merge(np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 6.0]))
    >>> start_s.tolist(), stop_s.tolist()
    ([0.0, 5.0], [3.0, 6.0])
    """
    order = np.argsort(start_s, kind="stable")
    starts, reach = start_s[order], np.maximum.accumulate(stop_s[order])
    opens = np.append(True, starts[1:] > reach[:-1])[: starts.size]
    closes = np.append(opens[1:], True)[: starts.size]
    return starts[opens], reach[closes]


def intersect(one: tuple[Times, Times], other: tuple[Times, Times]) -> tuple[Times, Times]:
    """Return where two unions, as `merge` gives them, both are.

    >>> a, b = (np.array([0.0, 5.0]), np.array([3.0, 6.0])), (np.array([2.0]), np.array([5.5]))
    >>> [times.tolist() for times in intersect(a, b)]
    [[2.0, 5.0], [3.0, 5.5]]
    """
    edges = np.unique(np.concatenate([*one, *other]))
    if edges.size < 2:
        return edges[:0], edges[:0]
    starts, stops = edges[:-1], edges[1:]
    middles = (starts + stops) / 2
    both = _covers(one, middles) & _covers(other, middles)
    return merge(starts[both], stops[both])


def length_s(intervals: tuple[Times, Times]) -> float:
    """Return the seconds that disjoint intervals cover together."""
    return float((intervals[1] - intervals[0]).sum())


def _covers(intervals: tuple[Times, Times], times: Times) -> NDArray[np.bool_]:
    starts, stops = intervals
    if not starts.size:
        return np.zeros(times.size, dtype=bool)
    place = np.searchsorted(starts, times, side="right") - 1
    return (place >= 0) & (times < stops[np.maximum(place, 0)])
