"""The panel of a pipeline of one's own."""

from __future__ import annotations

from rankscope.pipeline import simulate
from tests.pipeline.explorer_cases import CASES, OWN


def test_an_own_pipeline_is_simulated_with_the_workers_and_the_queues_that_are_set() -> None:
    explorer = CASES["pipeline of yours"].made()
    now = explorer.at(seed=4, workers_0=3, queue_0=1, workers_1=2)
    changed = OWN.changed("fetch shard", num_workers=3, capacity=1).changed("pack", num_workers=2)
    rate = 40 / simulate(changed, 40, seed=4).makespan_s
    assert explorer.draw(now)[0].title == f"fetch shard is the bottleneck: {rate:.1f} items/s"
