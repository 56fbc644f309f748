"""`closest` stops at a good run, and says what it cannot call."""

from __future__ import annotations

import math

from rankscope.pipeline import closest


def test_the_closest_of_all_is_kept_where_none_is_close_enough():
    values = [math.nan, 3.0, -2.0, 4.0]
    found = iter(values)
    assert closest(lambda: next(found), lambda value: value, within=1.0, tries=len(values)) == -2.0
