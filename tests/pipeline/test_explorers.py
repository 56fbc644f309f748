"""The explorer of one's own pipeline says what the model says."""

from __future__ import annotations

import pytest

from rankscope import explorers
from rankscope.explorers import EXPLORERS
from rankscope.panel.explorer import Explorer
from rankscope.pipeline import Pipeline, Stage, simulate

from .explorer_cases import OWN


def title(explorer: Explorer, **settings: int) -> str:
    return explorer.draw(explorer.at(**settings))[0].title


def test_an_own_pipeline_is_simulated_with_the_workers_and_the_queues_that_are_set() -> None:
    explorer = EXPLORERS["pipeline"].make(OWN)
    assert explorer.at()[:-1] == (9, 20, 1, 2, 1)
    for workers, packers in ((9, 1), (9, 3), (3, 8)):
        changed = OWN.changed("fetch shard", num_workers=workers).changed("pack", num_workers=packers)
        rate = 40 / simulate(changed, 40, seed=4).makespan_s
        words = title(explorer, num_workers_fetch_shard=workers, num_workers_pack=packers, seed=4)
        assert words == f"{changed.bottleneck} is the bottleneck: {rate:.1f} batches/s"
    for wrong in ([Stage("read", 1.0)], Stage("read", 1.0)):
        with pytest.raises(ValueError, match="must be a Pipeline"):
            explorers.pipeline(wrong)
    assert "service_s" in explorers.pipeline(Pipeline([Stage("read", fn=len)])).shown.value
