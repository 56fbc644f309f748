"""`compare`: the points of two profiles, next to each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..common.checks import of_type
from .points import NAMED, Point
from .profile import Profile

if TYPE_CHECKING:
    import pandas as pd


def compare(before: Profile, after: Profile) -> pd.DataFrame:
    """Return a row for each point of either profile: those of `before` first, then those only in `after`.

    `ratio` is the time in `after` divided by that in `before`. `has_spread` says that both have at least `LEAST_CLEAN`
    iterations: without them their noise is not known, so nobody can tell whether they differ. `beyond_noise` says that
    they have them and that their interquartile ranges do not overlap. `only_in` is "before" or "after" for a point that
    one profile lacks (its ratio is nan), else "". Raises ValueError if an argument is not a Profile.
    """
    import pandas as pd

    old = {point.key: point for point in of_type("before", before, Profile).points}
    new = {point.key: point for point in of_type("after", after, Profile).points}
    keys = dict.fromkeys([*old, *new])  # each once
    rows = [_ComparedPoint(old.get(key), new.get(key)) for key in keys]
    frame = pd.DataFrame(_operations([row.either for row in rows]))
    frame["before_s"] = [row.before.median_s if row.before else math.nan for row in rows]
    frame["after_s"] = [row.after.median_s if row.after else math.nan for row in rows]
    frame["ratio"] = frame.after_s / frame.before_s
    frame["has_spread"] = [row.has_spread for row in rows]
    frame["beyond_noise"] = [row.is_beyond_noise for row in rows]
    frame["only_in"] = [row.only_in for row in rows]
    return frame


class _ComparedPoint(NamedTuple):
    """The points with the same key of two profiles; one of them may be missing."""

    before: Point | None
    after: Point | None

    @property
    def either(self) -> Point:
        point = self.before or self.after
        assert point is not None
        return point

    @property
    def has_spread(self) -> bool:
        return self.before is not None and self.after is not None and self.before.has_spread and self.after.has_spread

    @property
    def is_beyond_noise(self) -> bool:
        if self.before is None or self.after is None or not self.has_spread:
            return False
        return self.before.differs(self.after)

    @property
    def only_in(self) -> str:
        if self.after is None:
            return "before"
        return "after" if self.before is None else ""


def _operations(points: Sequence[Point]) -> dict[str, list[Any]]:
    """Return the columns of a table that say what was measured."""
    columns: dict[str, list[Any]] = {"what": [point.what for point in points]}
    for name in NAMED:
        columns[name] = [point.options.get(name) for point in points]
    columns["options"] = [_builder_words(point) for point in points]
    columns["num_bytes"] = [point.num_bytes for point in points]
    return columns


def _builder_words(point: Point) -> str:
    """Return the arguments of the algorithm's builder as one string."""
    words = []
    for name, value in sorted(point.builder_options.items()):
        shown = "×".join(map(str, value)) if isinstance(value, tuple) else value
        words.append(f"{name}={shown}")
    return ", ".join(words)
