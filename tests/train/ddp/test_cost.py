"""What an allreduce costs, from a table and a link."""

from __future__ import annotations

import numpy as np

from rankscope.cluster import Cluster, Link
from rankscope.collectives import build, simulate
from rankscope.networks import CostTable
from rankscope.train.ddp import cost

LINK = Link(alpha_s=5e-6, bytes_per_s=10e9)


def test_between_its_points_a_table_is_a_line_and_beyond_them_more_bytes_never_take_less() -> None:
    table = CostTable((100, 200, 400), (1.0, 3.0, 5.0))
    assert table([100, 150, 300, 50, 0, 600]).tolist() == [1.0, 2.0, 4.0, 1.0, 1.0, 7.0]
    falling = CostTable((100, 200, 400), (3.0, 1.0, 0.5))
    assert falling([0, 50, 400, 800]).tolist() == [3.0, 3.0, 0.5, 1.0]


def test_a_link_says_what_the_simulation_does() -> None:
    sizes = np.array([0, 1 << 13, 1 << 20])
    uniform = Cluster.uniform(8, LINK)
    expected = [simulate(build("allreduce", "ring", 8), int(size), uniform).makespan_s for size in sizes]
    np.testing.assert_allclose(cost(LINK, num_ranks=8)(sizes), expected, rtol=1e-12)
