"""The panel of a pipeline of one's own."""

from __future__ import annotations

from tests.pipeline.explorer_cases import CASES, OWN

from .simpy_reference import reference


def test_an_own_pipeline_runs_with_the_workers_and_the_queues_that_are_set() -> None:
    explorer = CASES["pipeline of yours"].made()
    changed = OWN.changed("fetch shard", num_workers=3, capacity=1).changed("pack", num_workers=2)
    rate = 39 / max(left for _, _, left in reference(changed, 39, 4).values())
    title = explorer.draw(explorer.at(seed=4, workers_0=3, queue_0=1, workers_1=2))[0].title
    assert title == f"fetch shard is the bottleneck: {rate:.1f} batches/s"
