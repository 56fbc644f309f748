"""The panel of a pipeline of one's own."""

from __future__ import annotations

from rankscope.common.units import three_digits
from rankscope.pipeline import Pipeline, Stage
from tests.explorers.cases import Case
from tests.pipeline.explorer_cases import CASES, OWN

from .simpy_reference import reference


def test_an_own_pipeline_runs_with_the_workers_and_the_queues_that_are_set() -> None:
    explorer = CASES["pipeline of yours"].made()
    changed = OWN.changed("fetch shard", num_workers=3, capacity=1).changed("pack", num_workers=2)
    rate = 39 / max(left for _, _, left in reference(changed, 39, 4).values())
    title = explorer.draw(explorer.at(seed=4, workers_0=3, queue_0=1, workers_1=2))[0].title
    assert title == f"fetch shard limits the loop to {three_digits(rate)} batches/s"


def test_a_rate_below_one_batch_per_second_has_digits() -> None:
    explorer = Case("pipeline", (Pipeline([Stage("fetch", 40.0)]),)).made()
    (drawing,) = explorer.draw(explorer.at())
    assert drawing.title.endswith("0.025 batches/s")
    assert "usual 0.025/s" in drawing.deck
