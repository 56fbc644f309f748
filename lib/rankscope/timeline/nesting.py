"""The spans of a lane on threads on which they nest: of two slices that cross, Perfetto drops one."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Nested(NamedTuple):
    """Of each span the thread of its lane, from 0 on, and its times, moved by no more than the resolution."""

    place: NDArray[np.int64]
    start: NDArray[np.float64]
    stop: NDArray[np.float64]


def nested(
    lane: NDArray[np.integer[Any]], start: NDArray[np.float64], stop: NDArray[np.float64], resolution: float
) -> Nested:
    """Place spans so that each two on one thread are apart, or one is inside the other.

    The slices of a thread must be so
    (https://perfetto.dev/docs/faq#why-are-overlapping-events-in-json-traces-not-displayed-correctly-). Spans that cross
    by no more than the `resolution` of the times stay together, and the later one is moved by as much.

    >>> lane = np.zeros(3, np.int64)
    >>> nested(lane, np.array([0.0, 4.0, 9.5]), np.array([10.0, 12.0, 11.0]), 1.0)
    Nested(place=array([0, 1, 0]), start=array([ 0.,  4., 10.]), stop=array([10., 12., 11.]))
    """
    result = Nested(np.zeros(lane.size, np.int64), start.copy(), stop.copy())
    threads_of: dict[int, list[_Thread]] = {}  # by lane
    outer_first = np.lexsort((-stop, start))
    columns = (outer_first, lane[outer_first], start[outer_first], stop[outer_first])
    for index, lane_of_span, begin, end in zip(*(column.tolist() for column in columns), strict=True):
        threads = threads_of.setdefault(lane_of_span, [])
        place = 0
        while place < len(threads) and not threads[place].has_room(begin, end, resolution):
            place += 1
        if place == len(threads):
            threads.append(_Thread())
        result.place[index] = place
        result.start[index], result.stop[index] = threads[place].add(begin, end)
    return result


class _Thread:
    """The slices of a thread so far: the ends of those that are open, the outermost first, and when the next may start.

    Spans come in the order of their starts. Slices are moved, so the next span may start before the slice around it, or
    before the end of one that is no longer open.
    """

    def __init__(self) -> None:
        self._open_stops: list[float] = []
        self._next_start = -math.inf

    def has_room(self, start: float, stop: float, resolution: float) -> bool:
        """Close the slices that have ended; return whether a span is inside those still open, up to the resolution."""
        while self._open_stops and self._open_stops[-1] <= start + resolution:
            self._next_start = max(self._next_start, self._open_stops.pop())
        return not self._open_stops or stop <= self._open_stops[-1] + resolution

    def add(self, start: float, stop: float) -> tuple[float, float]:
        """Return the start and stop of the slice of a span for which there is room."""
        slice_start = max(start, self._next_start)
        slice_stop = max(stop, slice_start)
        if self._open_stops:
            slice_stop = min(slice_stop, self._open_stops[-1])
        self._open_stops.append(slice_stop)
        self._next_start = slice_start
        return slice_start, slice_stop
