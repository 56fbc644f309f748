"""What the picture of a recommendation shows, read back from the artists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from rankscope import figures
from rankscope.cluster import Link
from rankscope.ddp.local_step import Contention, LocalStep
from rankscope.ddp.recommend import Recommendation, recommend_bucket_cap


def recommendation(rate: float = 2e9, **options: Any) -> Recommendation:
    local = LocalStep.modelled([1 << 20] * 64, backward_s=0.064, unpack_s=0.004)
    return recommend_bucket_cap(local, Link(50e-6, rate), num_ranks=8, contention=Contention(1.3, 1.2), **options)


def artist(ax: Axes, label: str) -> Any:
    handles, labels = ax.get_legend_handles_labels()
    return handles[labels.index(label)]


def points(ax: Axes, label: str) -> np.ndarray:
    """x and y of the line or the markers with this label, a row a point."""
    found = artist(ax, label)
    return np.asarray((found[0] if hasattr(found, "lines") else found).get_xydata(), dtype=float)


def area(ax: Axes, label: str, cap: float) -> tuple[float, float]:
    """From where to where an area reaches at a cap."""
    corners = artist(ax, label).get_paths()[0].vertices
    y = corners[np.isclose(corners[:, 0], cap), 1]
    return float(y.min()), float(y.max())


def test_the_curve_is_the_predicted_step_and_the_areas_are_its_parts() -> None:
    found = recommendation()
    ax = figures.bucket_caps(found)
    curve = points(ax, "step, predicted")
    expected = np.array([(one.bucket_cap_mb, one.step_s * 1e3) for one in found.candidates], dtype=float)
    np.testing.assert_allclose(curve, expected)
    assert ax.get_ylabel() == "step [ms]"
    assert (ax.get_xscale(), ax.get_ylim()[0]) == ("log", 0.0)
    assert [label.get_text() for label in ax.get_xticklabels()][:4] == ["1", "2", "4", "8"]
    two = found.candidates[2]
    assert area(ax, "computing alone", 4) == pytest.approx((0, found.alone_s * 1e3))
    assert area(ax, "held up by allreduces", 4) == pytest.approx((found.alone_s * 1e3, (two.step_s - two.wait_s) * 1e3))
    assert area(ax, "waiting for allreduces", 4) == pytest.approx(((two.step_s - two.wait_s) * 1e3, two.step_s * 1e3))


def test_default_and_recommended_are_marked_and_named() -> None:
    found = recommendation()
    ax = figures.bucket_caps(found)
    np.testing.assert_allclose(points(ax, "DDP's default, predicted"), [(25, found.default.step_s * 1e3)])
    np.testing.assert_allclose(points(ax, "recommended"), [(4, found.chosen.step_s * 1e3)])
    assert f"{found.bucket_cap_mb:g} MiB" in [text.get_text() for text in ax.texts]
    assert ax.get_title(loc="left") == f"With 4 MiB a step is predicted to take {found.gain:.1%} less than by default"
    free = figures.bucket_caps(recommendation(rate=1e15))
    assert "recommended" not in free.get_legend_handles_labels()[1]
    assert free.get_title(loc="left") == "No cap is predicted to be worth leaving the default for"


def test_measured_steps_stand_at_their_cap_with_their_quartiles() -> None:
    _, ax = plt.subplots()
    measured = {8.0: [0.10, 0.12, 0.14, 0.16, 0.5], 64: [0.2, 0.2], None: [0.3, 0.4]}
    assert figures.bucket_caps(recommendation(), measured, ax, title="mine") is ax
    assert ax.get_title(loc="left") == "mine"
    np.testing.assert_allclose(points(ax, "measured: median and quartiles"), [(8, 140), (64, 200)])
    np.testing.assert_allclose(points(ax, "DDP's default, measured"), [(25, 350)])
    bars = artist(ax, "measured: median and quartiles").lines[2][0].get_segments()
    np.testing.assert_allclose(bars[0], [(8, 120), (8, 160)])
    assert ax.get_ylim()[1] > 375


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            (recommendation(caps_mb=[8]),),
            r"recommendation must have at least two caps above 0 to be drawn, got \[8.0\]",
        ),
        ((recommendation(caps_mb=[0, 8]),), "recommendation must have at least two caps above 0"),
        ((recommendation(), {8: []}), "measured must have at least one step for each cap, got none for 8"),
        ((recommendation(), {8: [-1]}), "measured must be a finite number of at least 0, got -1"),
        ((recommendation(), {-8: [1]}), "a cap of measured must be a finite number above 0, got -8"),
        (([1, 2],), "recommendation must be a Recommendation"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        figures.bucket_caps(*arguments)
