"""`compare`: what one profile takes against another, point by point, and whether that is more than noise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..values.checks import of_type
from .profile import NAMED, Profile

if TYPE_CHECKING:
    import pandas as pd


def compare(before: Profile, after: Profile) -> pd.DataFrame:
    """Return a row for each point of either profile, in the order of the first and then of the second.

    `ratio` is the time of `after` as a multiple of that of `before`. `beyond_noise` says that their interquartile
    ranges do not overlap. `only_in` is "before" or "after" for a point that the other profile has not, whose ratio is
    not a number, and "" for the rest. Raises ValueError for anything but profiles.
    """
    import pandas as pd

    one = {point.key: point for point in of_type("before", before, Profile).points}
    other = {point.key: point for point in of_type("after", after, Profile).points}
    rows = []
    for key in dict.fromkeys([*one, *other]):
        old, new = one.get(key), other.get(key)
        point = old or new
        assert point is not None
        named = (point.options.get(name) for name in NAMED)
        before_s, after_s = (side.median_s if side else math.nan for side in (old, new))
        beyond_noise = bool(old and new and old.differs(new))
        only_in = "" if old and new else "before" if old else "after"
        times_s = before_s, after_s, after_s / before_s
        rows.append((point.what, *named, point.builder_words, point.num_bytes, *times_s, beyond_noise, only_in))
    columns = ["what", *NAMED, "options", "num_bytes", "before_s", "after_s", "ratio", "beyond_noise", "only_in"]
    return pd.DataFrame(rows, columns=columns)
