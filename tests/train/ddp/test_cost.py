"""What an allreduce costs, from a recorded profile and from a link."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rankscope.box import Profile
from rankscope.cluster import Cluster, Link
from rankscope.collectives import build, simulate
from rankscope.train.ddp.cost import CostTable, cost

PROFILES = Path(__file__).parents[3] / "notebooks" / "profiles"
LINK = Link(alpha_s=5e-6, bytes_per_s=10e9)


@pytest.fixture(scope="module")
def slow() -> Profile:
    return Profile.load(PROFILES / "emulated_100mbit_5ms_4_ranks.json")


def test_between_its_points_a_table_is_a_line_and_beyond_them_it_goes_on() -> None:
    table = CostTable((100, 200, 400), (1.0, 3.0, 5.0))
    assert table([100, 200, 400]).tolist() == [1.0, 3.0, 5.0]
    assert table([150, 300]).tolist() == [2.0, 4.0]
    assert table([50, 0]).tolist() == [0.0, 0.0]  # the line to the left reaches 0 at 50
    assert table(600) == 7.0


def test_beyond_the_ends_more_bytes_never_take_less() -> None:
    table = CostTable((100, 200, 400), (3.0, 1.0, 0.5))
    assert table([0, 50, 400, 800]).tolist() == [3.0, 3.0, 0.5, 0.5]


def test_a_profile_says_what_it_measured(slow: Profile) -> None:
    points = slow.select("allreduce", algorithm="native")
    predicted_s = cost(slow)([point.num_bytes for point in points])
    np.testing.assert_array_equal(predicted_s, [point.median_s for point in points])


def test_for_other_ranks_a_profile_says_what_it_predicts(slow: Profile) -> None:
    sizes = [1 << 10, 1 << 16, 1 << 20, 1 << 30]
    expected = [slow.predict("allreduce", "ring", size, num_ranks=6).makespan_s for size in sizes]
    np.testing.assert_allclose(cost(slow, num_ranks=6)(sizes), expected)


def test_a_link_says_what_the_simulation_does() -> None:
    of_link = cost(LINK, num_ranks=8)
    sizes = np.array([0, 1 << 13, 1 << 20])
    uniform = Cluster.uniform(8, LINK)
    expected = [simulate(build("allreduce", "ring", 8), int(size), uniform).makespan_s for size in sizes]
    np.testing.assert_allclose(of_link(sizes), expected, rtol=1e-12)
    assert of_link(1 << 20) == pytest.approx(expected[-1])
