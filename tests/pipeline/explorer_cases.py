"""The explorers of `pipeline`, for the battery in `tests/explorers/test_every_explorer.py`."""

from __future__ import annotations

from torch.utils.data import DataLoader

from rankscope.pipeline import record_dataloader
from rankscope.pipeline.dataloader.measured import RecordedLoader
from tests.explorers.cases import Case


def recorded() -> RecordedLoader:
    """A loader of which an epoch was recorded, and the first batch of another one."""
    loader = record_dataloader(DataLoader(range(60), batch_size=2))
    assert len(list(loader)) == 30
    next(iter(loader))
    return loader


CASES = {
    "pipeline": Case("pipeline"),
    "loader": Case("loader", start={"num_workers": 2}),
    "loader of yours": Case("loader", (recorded(),), {"num_workers": 3}),
    "parts": Case("parts", start={"queue_size": 1}),
}
