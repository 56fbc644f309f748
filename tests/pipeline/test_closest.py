"""`closest` stops at a good run, and says what it cannot call."""

from __future__ import annotations

import math

import pytest

from rankscope.pipeline import closest


def test_the_closest_of_all_is_kept_where_none_is_close_enough():
    values = [math.nan, 3.0, -2.0, 4.0]
    found = iter(values)
    assert closest(lambda: next(found), lambda value: value, within=1.0, tries=len(values)) == -2.0


@pytest.mark.parametrize(
    ("functions", "message"),
    [((None, abs), "measure must be a function, got None"), ((float, 0.1), "off must be a function, got 0.1")],
)
def test_bad_input_is_named(functions, message):
    with pytest.raises(ValueError, match=message):
        closest(*functions, within=0.1)
