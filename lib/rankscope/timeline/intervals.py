"""Intervals of time: their union, their intersection, and the threads on which they do not overlap."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from .spans import Ints, Times

Intervals = tuple[Times, Times]  # starts and stops


def merge(start_s: Times, stop_s: Times) -> Intervals:
    """Return the union of intervals as disjoint intervals in order; intervals that touch become one.

    >>> start_s, stop_s = merge(np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 6.0]))
    >>> start_s.tolist(), stop_s.tolist()
    ([0.0, 5.0], [3.0, 6.0])
    """
    order = np.argsort(start_s, kind="stable")
    starts = start_s[order]
    latest_stops = np.maximum.accumulate(stop_s[order])  # of this interval and all that start before it
    last = np.flatnonzero(starts[1:] > latest_stops[:-1])  # before a gap: the next one starts after all have stopped
    return np.append(starts[:1], starts[last + 1]), np.append(latest_stops[last], latest_stops[-1:])


def intersect(first: Intervals, second: Intervals) -> Intervals:
    """Return the intersection of two unions of intervals, which are as `merge` returns them.

    >>> a, b = (np.array([0.0, 5.0]), np.array([3.0, 6.0])), (np.array([2.0]), np.array([5.5]))
    >>> [times.tolist() for times in intersect(a, b)]
    [[2.0, 5.0], [3.0, 5.5]]
    """
    # What lies between the gaps of either of them; the first gap begins at -inf, and the last one ends at inf.
    gap_starts, gap_stops = [], []
    for starts, stops in (first, second):
        gap_starts.append(np.append(-np.inf, stops))
        gap_stops.append(np.append(starts, np.inf))
    starts, stops = merge(np.concatenate(gap_starts), np.concatenate(gap_stops))
    return stops[:-1], starts[1:]


def length_s(intervals: Intervals) -> float:
    """Return the total length of disjoint intervals."""
    starts_s, stops_s = intervals
    return float((stops_s - starts_s).sum())


def threads_of(lane: Ints, start_s: Times, stop_s: Times) -> Ints:
    """Return for each span the first thread of its lane, from 0 on, that is free when it starts.

    Slices of a thread must not cross, or Perfetto drops one of two
    (https://perfetto.dev/docs/faq#why-are-overlapping-events-in-json-traces-not-displayed-correctly-). Times are
    compared in whole nanoseconds, as viewers do.

    >>> threads_of(np.zeros(3, np.int64), np.array([0.0, 4.0, 10.0]), np.array([10.0, 12.0, 11.0])).tolist()
    [0, 1, 0]
    """
    start_ns = np.rint(start_s * 1e9)
    stop_ns = np.rint(stop_s * 1e9)
    free_ns = defaultdict[int, list[float]](list)  # of each lane: when its threads are free again
    thread = np.zeros(lane.size, np.int64)
    for index in np.argsort(start_ns, kind="stable").tolist():
        thread[index] = first_free(free_ns[lane[index]], start_ns[index], stop_ns[index])
    return thread


def first_free(free: list[float], start: float, stop: float) -> int:
    """Return the first place that is free at a start, and note when it is free again; add one if none is."""
    place = 0
    while place < len(free) and free[place] > start:
        place += 1
    free[place : place + 1] = [stop]
    return place
