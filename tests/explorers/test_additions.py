"""Explorers offer what users register later, builders that cannot be hashed included."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from rankscope import explorers
from rankscope.collectives import ALGORITHMS, Algorithm, Schedule
from rankscope.collectives.builders import bidirectional, rings
from rankscope.explorers.explorer import explorer_of
from rankscope.sampling.kinds import SAMPLERS


class Unhashable:
    """A builder that is equal by its contents, and so cannot be a key."""

    def __init__(self, build: Callable[..., Schedule]) -> None:
        self.build = build

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unhashable)

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, num_ranks: int) -> Schedule:
        return self.build(num_ranks)


def test_a_sampler_that_is_registered_later_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    explorer = explorer_of(explorers.samplers)
    with pytest.raises(ValueError, match="sampler must be one of"):
        explorer.at(sampler="mine")
    monkeypatch.setitem(SAMPLERS, "mine", replace(SAMPLERS["torch"], title="my own sampler"))
    assert ("my own sampler", "mine") in explorer.settings[0].options
    pictures, report = explorer.html(explorer.at(sampler="mine"))
    assert "<svg" in pictures
    assert report == explorer.html(explorer.at())[1]
    assert ("my own sampler", "mine") in explorers.samplers().controls["sampler"].options


@pytest.mark.parametrize("name", ["allreduce", "player"])
def test_a_builder_that_cannot_be_hashed_is_shown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(build: Callable[..., Schedule]) -> Algorithm:
        return Algorithm(Unhashable(build))

    explorer = explorer_of(getattr(explorers, name))
    monkeypatch.setitem(ALGORITHMS["allreduce"], "mine", entry(rings.ring))
    now = explorer.at(algorithm="mine")
    assert "6 steps" in explorer.html(explorer.at(algorithm="mine", num_nodes=1))[1]
    before = explorer.html(now)
    monkeypatch.setitem(ALGORITHMS["allreduce"], "mine", entry(bidirectional.bidirectional_ring))
    assert explorer.html(now) != before  # although both are equal: what was kept is of the other one
