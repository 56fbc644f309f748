"""What the picture of copies shows, read back from the artists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rankscope import figures
from rankscope.box import Profile
from rankscope.box.link_facts import stated
from rankscope.box.points import Point
from rankscope.common.units import bytes_words

from ...figures.shown import bars, heights, labels, named
from .. import made

FACTS = stated(4)
COPIED = [2**power for power in range(12, 27, 2)]
NAMES = {"pinned_non_blocking": "pinned", "pageable": "pageable", "pin_on_the_fly": "new pinned"}
SLOWER = {"pinned_non_blocking": 1.1, "pageable": 1.5, "pin_on_the_fly": 3.0}


def copy_of(num_bytes: int, seconds: float, **options: Any) -> Point:
    """Nine iterations from 0.96 to 1.04 times as long; their median is `seconds`."""
    given = {"direction": "h2d", "pieces": 1, "both": False} | options
    return Point("transfer", num_bytes, tuple(seconds * np.linspace(0.96, 1.04, 9)), (True,) * 9, given)


@pytest.fixture(scope="module")
def measured() -> Profile:
    """Copies that take so many times what the facts allow, by method."""
    copies = [
        copy_of(size, times * FACTS.seconds(size, "h2d", method), method=method)
        for method, times in SLOWER.items()
        for size in COPIED
    ]
    return made.profile(copies)


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_without_a_profile_lines_are_predicted_and_nothing_is_called_measured(direction: str) -> None:
    ax = figures.copies(FACTS, direction=direction)
    sizes = 2.0 ** np.arange(10, 31)
    for method in SLOWER:
        seconds = [FACTS.seconds(size, direction, method) for size in sizes]
        assert heights(ax, f"{NAMES[method]}, predicted") == pytest.approx(sizes / seconds / 1e9)
    assert not [label for label in labels(ax) if "measured" in label]
    half = FACTS.start_s * FACTS.bytes_per_s(direction)
    assert f"half of the link: {bytes_words(half)}" in named(ax)


def test_markers_are_medians_with_their_quartiles(measured: Profile) -> None:
    ax = figures.copies(FACTS, measured)
    for method, times in SLOWER.items():
        predicted, seen = (heights(ax, f"{NAMES[method]}, {kind}") for kind in ("predicted", "measured"))
        assert seen == pytest.approx(predicted / times, rel=1e-5)
        ends = bars(ax, f"{NAMES[method]}, measured")
        assert ends == pytest.approx(np.stack([seen / 1.02, seen / 0.98], axis=1), rel=1e-4)
