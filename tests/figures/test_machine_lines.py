"""What the pictures of a profile show, read back from the artists."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from rankscope import figures
from rankscope.cluster import Cluster, Link
from rankscope.collectives import build, simulate_executor
from rankscope.machine import Point, Profile

LINK = Link(5e-3, 12.5e6)
SIZES = [2**power for power in range(10, 21)]
ALGORITHMS = ["ring", "recursive_doubling", "flat"]


def point(what: str, num_bytes: int, seconds: float, clean: int = 8, **options: str | bool) -> Point:
    """Eight iterations from 0.98 to 1.05 times as long, so many of them clean; their median is `seconds`."""
    spread = seconds * np.array([0.98, 0.99, 1.0, 1.0, 1.0, 1.0, 1.02, 1.05])
    return Point(what, num_bytes, tuple(spread.tolist()), (True,) * clean + (False,) * (8 - clean), options)


def profile(scale: float = 1.0, native: bool = True, clean: int = 8) -> Profile:
    """Four nodes whose ranks take `scale` times what is predicted."""
    points = [point("together", 2**power, LINK.seconds(2**power), link="inter") for power in range(8, 24)]
    cluster = Cluster.uniform(4, LINK)
    for size, name in product(SIZES, ALGORITHMS):
        seconds = scale * simulate_executor(build("allreduce", name, 4), size, cluster).makespan_s
        points.append(point("allreduce", size, seconds, clean, algorithm=name, in_place=True))
    if native:
        points += [point("allreduce", size, 0.1, algorithm="native", in_place=True) for size in SIZES]
    provenance = {"name": "made up", "date": "2026-11-21", "backend": "gloo", "num_ranks": 4, "num_nodes": 4}
    return Profile(provenance | {"ranks_per_node": [1] * 4}, {}, tuple(points))


def line(ax: Axes, label: str) -> np.ndarray:
    """The y of the line, or of the markers, with this label."""
    handles, labels = ax.get_legend_handles_labels()
    found = handles[labels.index(label)]
    return np.asarray((found[0] if hasattr(found, "lines") else found).get_ydata(), dtype=float)


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def test_busbw_is_in_the_links_units_and_predicted_beside_measured() -> None:
    ax = figures.profile(profile())
    sizes = np.array(SIZES)
    took_s = np.array([p.median_s for p in profile().select("allreduce", algorithm="ring")])
    shown = [text.get_text() for text in ax.texts]
    assert {"native", "recursive_doubling"} <= set(shown)
    doubling_s = np.array([p.median_s for p in profile().select("allreduce", algorithm="recursive_doubling")])
    assert line(ax, "recursive_doubling, measured") == pytest.approx(1.5 * sizes / doubling_s / 1e6)
    assert line(ax, "recursive_doubling, predicted") == pytest.approx(
        line(ax, "recursive_doubling, measured"), rel=1e-3
    )
    assert ax.get_ylabel() == "bus bandwidth (busbw) [MB/s]"
    assert line(ax, "link") == pytest.approx([12.5, 12.5], rel=0.01)
    assert "one link: 12.5 MB/s" in shown
    only = figures.profile(profile(), algorithms=["ring"])
    assert line(only, "ring, measured") == pytest.approx(1.5 * sizes / took_s / 1e6)
    assert [text.get_text() for text in only.texts].count("native") == 0


def test_busbw_titles_what_was_measured() -> None:
    ring = profile().select("allreduce", SIZES[-1], algorithm="ring")[0]
    ax = figures.profile(profile(native=False))
    share = 1.5 * SIZES[-1] / ring.median_s / 12.5e6
    assert ax.get_title("left") == f"ring gets {share:.0%} of a link's bandwidth"


@pytest.mark.parametrize("scale", [1.0, 1.1, 0.8])
def test_residuals_are_those_of_the_prediction(scale: float) -> None:
    ax = figures.profile(profile(scale), "residuals")
    expected = 100 * (1 / scale - 1)
    for name in ALGORITHMS:
        assert line(ax, name) == pytest.approx([expected] * len(SIZES), abs=0.3)
    words = ax.get_title("left")
    assert words.startswith("Prediction against measurement: half within ")
    assert float(words.split(" within ")[1].split(" %")[0]) == pytest.approx(abs(expected), abs=0.3)
    assert "native" not in ax.get_legend_handles_labels()[1]
    low, high = ax.get_ylim()
    assert low == -high
    assert high > abs(expected)


@pytest.mark.parametrize(("clean", "filled"), [(8, True), (5, True), (2, False)])
def test_markers_with_few_clean_iterations_are_hollow(clean: int, filled: bool) -> None:
    ax = figures.profile(profile(clean=clean), "residuals", algorithms=["ring"])
    fills = {str(one.get_markerfacecolor()) for one in ax.lines if one.get_marker() not in ("None", None, "")}
    assert (fills != {"none"}) is filled


def test_wrong_input() -> None:
    with pytest.raises(ValueError, match="collective must be one that this profile has points of, got 'gather'"):
        figures.profile(profile(), collective="gather")
    with pytest.raises(ValueError, match="algorithms must be some of .*, got 'star'"):
        figures.profile(profile(), "residuals", algorithms=["star"])
    for view in ("busbw", "residuals"):
        with pytest.raises(ValueError, match="algorithms must be some of .*, got none"):
            figures.profile(profile(), view, algorithms=[])
    of_native = Profile(profile().provenance, {}, profile().select("allreduce", algorithm="native"))
    with pytest.raises(ValueError, match="profile must have points of allreduce that can be predicted"):
        figures.profile(of_native, "residuals")
    with pytest.raises(ValueError, match="profile must be a Profile"):
        figures.profile("box")  # type: ignore[arg-type]
