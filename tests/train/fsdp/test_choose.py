"""`recommend`: the lowest peak within 1 % of the fastest that fits, from steps that were observed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankscope.train import fsdp
from rankscope.train.fsdp.choose import Candidate, Recommendation


def candidate(name: str, step_s: float, peak_bytes: int) -> Candidate:
    return Candidate({"name": name}, step_s, 0.0, {"parameters": peak_bytes})


CANDIDATES = (candidate("fastest", 1.0, 90), candidate("nearly", 1.009, 50), candidate("small", 1.02, 10))


@pytest.mark.parametrize(("memory_bytes", "name"), [(100, "nearly"), (89, "nearly"), (50, "nearly"), (49, "small")])
def test_the_lowest_peak_within_1_percent_of_the_fastest_that_fits(memory_bytes: int, name: str) -> None:
    chosen = Recommendation(CANDIDATES, memory_bytes).chosen
    assert chosen is not None
    assert chosen.settings == {"name": name}


def test_what_fits_nowhere_is_not_chosen() -> None:
    recommendation = Recommendation(CANDIDATES, 9)
    assert recommendation.chosen is None
    assert str(recommendation).count("does not fit") == 3


def loss(model: nn.Module) -> Tensor:
    outputs: Tensor = model(torch.ones(16, 256))
    return outputs.sum()


def test_candidates_are_what_is_observed_and_activations_are_in_them() -> None:
    module = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))).to("meta")
    cost = fsdp.cost(lambda num_bytes: num_bytes / 1e9, flops_per_s=1e10, bytes_per_s=1e11)
    settings: dict[str, Any] = {"num_ranks": 8, "optimizer": torch.optim.Adam}
    advice = fsdp.recommend(module, loss, cost, memory_bytes=3e6, **settings)
    assert len(advice.candidates) == 6
    steps_s = [one.step_s for one in advice.candidates]
    assert steps_s == sorted(steps_s)
    for one in advice.candidates[::3]:
        step = fsdp.observe(module, loss, **one.settings, **settings)
        assert (one.step_s, one.peak_bytes) == (step.timeline(cost).makespan_s, step.peak_bytes)
        assert one.peak["activations"] > 0
        assert one.peak["optimizer_states"] > 0
    chosen = advice.chosen
    assert chosen is not None
    assert chosen.settings == {"wrap": ["*"], "reshard_after_forward": True} or chosen.peak_bytes <= 3e6
    for words in ("not counted", "allocator", "fits", f"use {chosen}"):
        assert words in str(advice)
