"""What an allreduce costs, from a table, a recorded profile and a link."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rankscope.box import Profile
from rankscope.cluster import Cluster, Link
from rankscope.collectives import build, simulate
from rankscope.networks import CostTable
from rankscope.train.ddp import cost

SLOW = Path(__file__).parents[3] / "notebooks" / "profiles" / "emulated_100mbit_5ms_4_ranks.json"
LINK = Link(alpha_s=5e-6, bytes_per_s=10e9)


def test_between_its_points_a_table_is_a_line_and_beyond_them_more_bytes_never_take_less() -> None:
    table = CostTable((100, 200, 400), (1.0, 3.0, 5.0))
    assert table([100, 150, 300, 50, 0, 600]).tolist() == [1.0, 2.0, 4.0, 0.0, 0.0, 7.0]
    falling = CostTable((100, 200, 400), (3.0, 1.0, 0.5))
    assert falling([0, 50, 400, 800]).tolist() == [3.0, 3.0, 0.5, 0.5]


def test_a_profile_says_what_it_measured_and_for_other_ranks_what_it_predicts() -> None:
    slow = Profile.load(SLOW)
    points = slow.select("allreduce", algorithm="native")
    predicted_s = cost(slow)([point.num_bytes for point in points])
    np.testing.assert_array_equal(predicted_s, [point.median_s for point in points])
    sizes = [1 << 10, 1 << 20]
    expected = [slow.predict("allreduce", "ring", size, num_ranks=6).makespan_s for size in sizes]
    np.testing.assert_allclose(cost(slow, num_ranks=6)(sizes), expected)


def test_a_link_says_what_the_simulation_does() -> None:
    sizes = np.array([0, 1 << 13, 1 << 20])
    uniform = Cluster.uniform(8, LINK)
    expected = [simulate(build("allreduce", "ring", 8), int(size), uniform).makespan_s for size in sizes]
    np.testing.assert_allclose(cost(LINK, num_ranks=8)(sizes), expected, rtol=1e-12)
