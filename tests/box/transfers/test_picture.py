"""What the picture of copies shows, read back from the artists."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope import figures
from rankscope.box.transfers.link_facts import stated
from rankscope.common.units import bytes_words
from tests.figures.shown import heights, named

from .. import made

FACTS = stated(4)
SLOWER = {"pinned": 1.1, "pageable": 1.5, "pin_on_the_fly": 3.0}  # times what the facts allow


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_without_a_profile_lines_are_predicted_and_nothing_is_measured(direction: str) -> None:
    ax = figures.copies(FACTS, direction=direction)
    sizes = 2.0 ** np.arange(10, 31)
    for method in SLOWER:
        seconds = [FACTS.seconds(size, direction, method) for size in sizes]
        assert heights(ax, f"{method}, predicted") == pytest.approx(sizes / seconds / 1e9)
        assert np.isnan(heights(ax, f"{method}, measured")).all()
    half = FACTS.start_s * FACTS.bytes_per_s(direction)
    assert f"predicted half: {bytes_words(half)}" in named(ax)


def test_markers_are_medians() -> None:
    way = {"direction": "h2d", "pieces": 1, "both": False}
    points = [
        made.point("transfer", size, times * FACTS.seconds(size, "h2d", method), method=method, **way)
        for method, times in SLOWER.items()
        for size in [2**power for power in range(8, 27, 2)]
    ]
    ax = figures.copies(FACTS, made.profile(points))
    for method, times in SLOWER.items():
        predicted, seen = (heights(ax, f"{method}, {kind}") for kind in ("predicted", "measured"))
        assert len(seen) == 9  # from 1 KiB on
        assert seen == pytest.approx(predicted / times, rel=1e-5)
