"""The spans of a lane on threads on which they nest: of two slices that cross, Perfetto drops one."""

from __future__ import annotations

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
    threads_of: dict[int, list[list[float]]] = {}  # by lane: of each thread the ends of open spans, the outermost first
    outer_first = np.lexsort((-stop, start))
    columns = (outer_first, lane[outer_first], start[outer_first], stop[outer_first])
    for index, lane_of_span, begin, end in zip(*(column.tolist() for column in columns), strict=True):
        threads = threads_of.setdefault(lane_of_span, [])
        slice_start = begin
        place = 0
        while place < len(threads):
            open_stops = threads[place]
            slice_start = begin
            while open_stops and open_stops[-1] <= begin + resolution:
                slice_start = max(slice_start, open_stops.pop())  # after what has ended
            if not open_stops or end <= open_stops[-1] + resolution:
                break
            place += 1
        if place == len(threads):
            threads.append([])
            slice_start = begin
        open_stops = threads[place]
        slice_stop = max(end, slice_start)
        if open_stops:
            slice_stop = min(slice_stop, open_stops[-1])
        result.place[index] = place
        result.start[index] = slice_start
        result.stop[index] = slice_stop
        open_stops.append(slice_stop)
    return result
