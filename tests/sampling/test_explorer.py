"""The explorer of samplers shows what the library assigns and audits."""

from __future__ import annotations

import re
from functools import partial
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace
from torch.utils.data import DistributedSampler

from rankscope import explorers
from rankscope.drawing.drawing import to_svg
from rankscope.explorers import EXPLORERS
from rankscope.sampling import assign, audit
from rankscope.sampling.audits.own_sampler import OwnSampler
from rankscope.sampling.explorer import epochs
from rankscope.sampling.kinds import SAMPLERS as KINDS
from rankscope.sampling.picture import draw_assignment
from tests.explorers.cases import Case, report, svg

from .explorer_cases import Counting, in_batches

SAMPLERS = Case("samplers").made()


def test_samplers_draws_the_epoch_and_compares_it_with_the_one_before() -> None:
    assert svg(SAMPLERS) == to_svg(draw_assignment(assign(50, 4).with_loader(4)))
    assert [one.epoch for one in epochs(SAMPLERS.at())] == [0]
    assert [one.epoch for one in epochs(SAMPLERS.at(epoch=3))] == [2, 3]
    assert [one.epoch for one in epochs(SAMPLERS.at(epoch=2, forget_set_epoch=True))] == [0, 0]
    assert "of epoch 1" in svg(SAMPLERS, epoch=2, forget_set_epoch=True)
    assert "of epoch 1" not in svg(SAMPLERS, epoch=2)


def test_samplers_takes_a_million_samples() -> None:
    now = SAMPLERS.at(size=10**6, num_ranks=24)
    assert audit(epochs(now)).duplicates == 8
    assert report(SAMPLERS, size=10**6, num_ranks=24)[0].startswith("rank 0 reads 41667 samples")
    assert "8 of 1,000,000 samples are read twice" in svg(SAMPLERS, size=10**6, num_ranks=24)


def test_drop_last_may_have_an_effect_although_ranks_divide_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was disabled there, as if every sampler dealt single samples."""
    torch = KINDS["torch"]

    def in_batches_of_five(recipe: Any) -> Any:
        reads = torch.reads(recipe)
        if not recipe.drop_last:
            return reads
        return reads._replace(indices=tuple(indices[: indices.size // 5 * 5] for indices in reads.indices))

    monkeypatch.setitem(KINDS, "fives", replace(torch, reads=in_batches_of_five))
    panel = explorers.samplers(sampler="fives", size=48)
    assert not panel.controls["drop_last"].disabled
    before = panel.shown.value
    panel.controls["drop_last"].value = True
    assert panel.shown.value != before


@pytest.mark.parametrize("own", [partial(DistributedSampler, seed=0), in_batches])
def test_torchs_own_class_is_shown_as_the_built_in_one(own: Any) -> None:
    explorer = EXPLORERS["samplers"].make(own)
    assert "seed" not in {setting.name for setting in explorer.settings}
    for settings in ({}, {"size": 3, "num_ranks": 8}, {"epoch": 3}):
        assert re.sub("(DistributedSampler|in_batches): ", "", svg(explorer, **settings)) == svg(SAMPLERS, **settings)


def test_an_own_sampler_may_count_its_epochs() -> None:
    counting = [Counting(range(23), 3, rank) for rank in range(3)]
    expected = [[list(sampler) for sampler in counting] for _ in range(5)]
    name, epochs = OwnSampler(Counting).epochs(epoch=4, size=23, num_ranks=3, batch_size=5)
    assert "set_epoch" in name
    assert [[indices.tolist() for indices in one.ranks] for one in epochs] == expected[-2:]


def test_what_is_no_sampler_of_a_rank_is_refused() -> None:
    for own in ("torch", [], lambda rank, world_size: [], lambda size, rank, world_size, window: []):
        with pytest.raises(ValueError, match="sampler of your own|dataset|window"):
            EXPLORERS["samplers"].make(own)
    for first in (0, 1):  # the rank from which on none ends
        endless = explorers.samplers(lambda size, rank, world_size, first=first: count() if rank >= first else [rank])
        assert f"rank {first}" in endless.shown.value
