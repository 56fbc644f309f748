"""The panel of a recorded loader."""

from __future__ import annotations

import pytest
from msgspec.structs import asdict
from torch.utils.data import DataLoader

from rankscope import explorers
from rankscope.common.units import three_digits
from rankscope.pipeline import advise, record_dataloader
from tests.explorers.cases import Case
from tests.pipeline.explorer_cases import recorded


def test_it_says_what_advise_predicts() -> None:
    loader = recorded()
    explorer = Case("loader", (loader,)).made()
    advice = advise(loader, num_workers=[0, 3], prefetch_factors=[5])
    for settings in ({"num_workers": 0}, {"num_workers": 3, "prefetch_factor": 5, "in_order": False}):
        (row,) = [row for row in advice.rows if settings.items() <= asdict(row.settings).items()]
        title = explorer.draw(explorer.at(**settings))[0].title
        assert title.startswith(f"{three_digits(30 / row.predicted_s)} batches/s")
    deck = explorer.draw(explorer.at())[0].deck
    assert deck.startswith("Doubtful") == bool(advise(loader).doubt)
    assert explorers.loader(loader.profile()).controls["num_workers"].value == 0
    for wrong in (DataLoader(range(3)), record_dataloader(DataLoader(range(3)))):
        with pytest.raises(ValueError, match=r"record_dataloader|no batch"):
            explorers.loader(wrong)
