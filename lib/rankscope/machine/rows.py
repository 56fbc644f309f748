"""The points of a profile as a table, with rates and predictions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..collectives import ALGORITHMS
from .points import Key, Point

if TYPE_CHECKING:
    import pandas as pd

    from .profile import Profile

COLUMNS = ("what", "algorithm", "in_place", "link", "options", "num_bytes", "median_s", "iqr_s", "p99_s",
           "num_iterations", "num_clean", "algbw_bytes_per_s", "busbw_bytes_per_s", "predicted_s")  # fmt: skip
NAMED = ("algorithm", "in_place", "link")  # options with columns of their own
_ONCE = ("broadcast", "reduce")
_SHARES = ("reduce_scatter", "allgather", "all_to_all", "scatter", "gather")


def busbw_factor(what: str, num_ranks: int) -> float:
    """Return what makes of bytes per second those that a link of a ring would carry; not a number where nothing does.

    >>> busbw_factor("allreduce", 4), busbw_factor("allgather", 4), busbw_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    share = (num_ranks - 1) / num_ranks
    factors = {"allreduce": 2 * share} | dict.fromkeys(_ONCE, 1.0) | dict.fromkeys(_SHARES, share)
    return factors.get(what, math.nan)


def algbw_bytes_per_s(point: Point) -> float:
    """Return the point's bytes by its median time, not a number where there are none."""
    return point.num_bytes / point.median_s if point.num_bytes else math.nan


def busbw_bytes_per_s(point: Point, num_ranks: int) -> float:
    """Return algbw by `busbw_factor`."""
    return algbw_bytes_per_s(point) * busbw_factor(point.what, num_ranks)


def _own_options(point: Point) -> dict[str, Any]:
    """Return what the builder of the point's algorithm takes."""
    return {name: value for name, value in point.options.items() if name not in NAMED}


def options_words(point: Point) -> str:
    """Return what the builder of the point's algorithm takes as one text."""
    return ", ".join(f"{name}={value}" for name, value in sorted(_own_options(point).items()))


def predictions(profile: Profile) -> dict[Key, float]:
    """Return the seconds that the model has for each point; no entry where it has none.

    Collectives by an algorithm of ALGORITHMS are predicted from the links, messages by the fit of their own kind.
    """
    found: dict[Key, float] = {}
    known: dict[Any, float] = {}
    for point in profile.points:
        algorithm, options = point.options.get("algorithm"), _own_options(point)
        try:
            if point.what in ("together", "ping_pong"):
                found[point.key] = profile.link(str(point.options.get("link")), point.what).seconds(point.num_bytes)
            elif algorithm in ALGORITHMS.get(point.what, {}):
                key = (point.what, algorithm, point.num_bytes, tuple(sorted(options.items())))
                if key not in known:
                    timeline = profile.predict(point.what, str(algorithm), point.num_bytes, **options)
                    known[key] = timeline.makespan_s
                found[point.key] = known[key]
        except ValueError:  # no such link, sizes that are too few, ranks that an algorithm does not exist for
            continue
    return found


def to_frame(profile: Profile, predicted: bool) -> pd.DataFrame:
    """Return a row a point, with the columns `COLUMNS`, the last one where `predicted`."""
    import pandas as pd

    seconds = profile.predicted_s if predicted else {}
    rows = [(*_row(point, profile.num_ranks), seconds.get(point.key, math.nan)) for point in profile.points]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    return frame if predicted else frame.drop(columns="predicted_s")


def _row(point: Point, num_ranks: int) -> tuple[Any, ...]:
    algorithm, in_place, link = (point.options.get(name) for name in NAMED)
    times_s = point.median_s, point.iqr_s, point.p99_s
    counts = len(point.seconds), point.num_clean
    rates = algbw_bytes_per_s(point), busbw_bytes_per_s(point, num_ranks)
    return (point.what, algorithm, in_place, link, options_words(point), point.num_bytes, *times_s, *counts, *rates)
