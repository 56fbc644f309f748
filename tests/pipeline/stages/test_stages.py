"""Stages, pipelines and service times as values: their times and bounds."""

from __future__ import annotations

import pytest

from rankscope.pipeline import Lognormal
from rankscope.pipeline.service import draw


@pytest.mark.parametrize("cv", [0.0, 0.8])
def test_lognormal_times_have_the_mean_and_spread_they_name(cv: float) -> None:
    service = Lognormal(0.2, cv)
    times = draw("it", service, 200_000, 7)
    assert times.mean() == pytest.approx(0.2, rel=0.02)
    assert times.std() == pytest.approx(0.2 * cv, rel=0.05)
    assert (draw("it", service, 10, 7) == times[:10]).all(), "more items must not change the first ones"
    assert cv == 0 or (draw("it", service, 10, 8) != times[:10]).any()
