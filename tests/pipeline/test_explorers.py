"""The explorers of one's own pipeline and of a recorded loader say what the models and the recording say."""

from __future__ import annotations

import pytest
from msgspec.structs import asdict
from torch.utils.data import DataLoader

from rankscope import explorers
from rankscope.explorers import EXPLORERS
from rankscope.panel.explorer import Explorer
from rankscope.pipeline import Pipeline, Stage, advise, record_dataloader, simulate

from .explorer_cases import OWN, recorded


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


def test_a_recorded_loader_is_compared_with_what_advise_predicts() -> None:
    loader = recorded()
    explorer = EXPLORERS["loader"].make(loader)
    advice = advise(loader, num_workers=[0, 3], prefetch_factors=[5])
    epoch = loader.timeline().select(item=range(30))
    for settings in ({"num_workers": 0}, {"num_workers": 3, "prefetch_factor": 5, "in_order": False}):
        (row,) = [row for row in advice.rows if settings.items() <= asdict(row.settings).items()]
        assert title(explorer, **settings) == (
            f"{30 / row.predicted_s:.3g} batches/s predicted, {30 / epoch.makespan_s:.3g} recorded"
        )
    assert title(explorer, step_ms=1000).startswith("1 batches/s")
    for wrong in (DataLoader(range(3)), loader.profile()):
        with pytest.raises(ValueError, match="record_dataloader"):
            explorers.loader(wrong)
    with pytest.raises(ValueError, match="no batch"):
        explorers.loader(record_dataloader(DataLoader(range(3))))
