"""What the pictures of a profile show, read back from the artists."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from rankscope import figures
from rankscope.box import Profile
from rankscope.box.link_facts import stated
from rankscope.box.profile import Point
from rankscope.cluster import Cluster, Link
from rankscope.collectives import build, simulate
from rankscope.common.units import bytes_words

from ...figures.shown import bars, heights, labels, named
from ...figures.shown import points as drawn_points
from .. import made

LINK = Link(5e-3, 12.5e6)
SIZES = [2**power for power in range(10, 21)]
ALGORITHMS = ["ring", "recursive_doubling", "flat"]


def point(what: str, num_bytes: int, seconds: float, **options: Any) -> Point:
    """Eight iterations from 0.98 to 1.05 times as long; their median is `seconds`."""
    spread = seconds * np.array([0.98, 0.99, 1.0, 1.0, 1.0, 1.0, 1.02, 1.05])
    return Point(what, num_bytes, tuple(spread.tolist()), (True,) * 8, options)


def profile(scale: float = 1.0) -> Profile:
    """Four nodes whose ranks take `scale` times what is predicted."""
    points = [point("together", 2**power, LINK.seconds(2**power), link="inter") for power in range(8, 24)]
    cluster = Cluster.uniform(4, LINK)
    for size, name in product(SIZES, ALGORITHMS):
        seconds = scale * simulate(build("allreduce", name, 4), size, cluster, executor=True).makespan_s
        points.append(point("allreduce", size, seconds, algorithm=name, in_place=True))
    points += [point("allreduce", size, 0.1, algorithm="native", in_place=True) for size in SIZES]
    provenance = {"name": "made up", "date": "2026-11-21", "backend": "gloo", "num_ranks": 4, "num_nodes": 4}
    return Profile(provenance | {"ranks_per_node": [1] * 4}, {}, tuple(points))


def medians_s(of: Profile, algorithm: str) -> np.ndarray:
    return np.array([p.median_s for p in of.select("allreduce", algorithm=algorithm)])


@pytest.mark.parametrize("scale", [1.0, 1.1, 0.8])
def test_residuals_are_those_of_the_prediction(scale: float) -> None:
    ax = figures.profile(profile(scale), "residuals")
    expected = 100 * (1 / scale - 1)
    for name in ALGORITHMS:
        assert heights(ax, name) == pytest.approx([expected] * len(SIZES), abs=0.3)
    assert "native" not in labels(ax)
    low, high = ax.get_ylim()
    assert low == -high
    assert high > abs(expected)


def test_a_size_of_0_is_left_out() -> None:
    """Its marker on a logarithmic axis left no room for the axes, and no residual of its algorithm was drawn."""
    one = profile()
    nothing = point("allreduce", 0, 1e-3, algorithm="ring", in_place=True)
    ax = figures.profile(Profile(one.provenance, {}, (*one.points, nothing)), "residuals", algorithms=["ring"])
    ax.figure.canvas.draw()
    assert drawn_points(ax, "ring")[:, 0].min() == SIZES[0]


# ---- copies

FACTS = stated(4)
COPIED = [2**power for power in range(12, 27, 2)]
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
    for method in ("pinned", "pageable", "pin_on_the_fly"):
        seconds = [FACTS.seconds(size, direction, method) for size in sizes]
        assert heights(ax, f"{method}, predicted") == pytest.approx(sizes / seconds / 1e9)
    assert not [label for label in labels(ax) if "measured" in label]
    half = FACTS.start_s * FACTS.bytes_per_s(direction)
    assert f"half of the link: {bytes_words(half)}" in named(ax)


def test_markers_are_medians_with_their_quartiles(measured: Profile) -> None:
    ax = figures.copies(FACTS, measured)
    for method, times in SLOWER.items():
        memory = method.removesuffix("_non_blocking")
        predicted, seen = (heights(ax, f"{memory}, {kind}") for kind in ("predicted", "measured"))
        assert seen == pytest.approx(predicted / times, rel=1e-5)
        ends = bars(ax, f"{memory}, measured")
        assert ends == pytest.approx(np.stack([seen / 1.02, seen / 0.98], axis=1), rel=1e-4)
    drawn = labels(figures.copies(None, measured))
    assert drawn == ["pinned, measured", "pageable, measured", "pin_on_the_fly, measured"]
