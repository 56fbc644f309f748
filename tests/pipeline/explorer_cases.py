"""The explorers of `pipeline`, for the battery in `tests/explorers/test_every_explorer.py`."""

from __future__ import annotations

from torch.utils.data import DataLoader

from rankscope.pipeline import Lognormal, Pipeline, Stage, record_dataloader
from rankscope.pipeline.dataloader.measured import RecordedLoader
from tests.explorers.cases import Case

OWN = Pipeline([Stage("fetch shard", Lognormal(0.1, 0.5), num_workers=9), Stage("pack", [0.01, 0.02, 0.03] * 13)])


def recorded() -> RecordedLoader:
    """A loader of which an epoch was recorded, and the first batch of another one."""
    loader = record_dataloader(DataLoader(range(60), batch_size=2))
    assert len(list(loader)) == 30
    next(iter(loader))
    return loader


CASES = {
    "pipeline": Case("pipeline"),
    "pipeline of yours": Case("pipeline", (OWN,)),
    "loader": Case("loader", start={"num_workers": 2}),
    "loader of yours": Case("loader", (recorded(),), {"num_workers": 3}),
    "parts": Case("parts", start={"queue_size": 1}),
}
