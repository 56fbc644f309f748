"""`recommend`: how to wrap, reshard and prefetch a module so that it fits, and the step is fast."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import nn

from ...common.checks import number
from ...common.units import decimal_words, times_in_one_unit
from ..losses import Loss
from .observed import observe
from .step import Cost

_WORTH = 0.01  # of a step's time: smaller differences do not justify more memory
_WAYS: tuple[dict[str, Any], ...] = (
    {"reshard_after_forward": True},
    {"reshard_after_forward": False},
    {"reshard_after_forward": True, "prefetch": 2},
)
NOT_COUNTED = "not counted: the allocator's reserve, CUDA's context, NCCL's buffers, the optimizer's temporary tensors"


class Candidate(NamedTuple):
    """The arguments of `observe` for a way to shard, its predicted step, and a rank's memory at its peak, by term."""

    settings: dict[str, Any]
    step_s: float
    wait_s: float
    peak: dict[str, int]

    @property
    def peak_bytes(self) -> int:
        return sum(self.peak.values())

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())


class Recommendation(NamedTuple):
    """The candidates, the fastest first, for so many bytes of memory."""

    candidates: tuple[Candidate, ...]
    memory_bytes: float

    @property
    def chosen(self) -> Candidate | None:
        """The lowest peak of those that fit and are within 1 % of the fastest of them; None if none fits."""
        fitting = [one for one in self.candidates if one.peak_bytes <= self.memory_bytes]
        worth = [one for one in fitting if one.step_s <= (1 + _WORTH) * fitting[0].step_s]
        return min(worth, key=lambda one: one.peak_bytes, default=None)

    def __str__(self) -> str:
        memory = decimal_words(self.memory_bytes)
        lines = [f"nothing fits into {memory}"]
        if self.chosen is not None:
            lines = [f"use {self.chosen}"]
        for one in self.candidates:
            step, wait = times_in_one_unit(one.step_s, one.wait_s)
            fits = "fits" if one.peak_bytes <= self.memory_bytes else "does not fit"
            lines.append(f"{step}, {wait} exposed, {decimal_words(one.peak_bytes)} of {memory}, {fits}: {one}")
        return "\n".join([*lines, NOT_COUNTED])


def recommend(
    module: nn.Module,
    loss: Loss,
    cost: Cost,
    *,
    memory_bytes: float,
    wraps: Iterable[Iterable[str]] = ((), ("*",)),
    **settings: Any,
) -> Recommendation:
    """Observe several ways to shard a module, and compare their times and their peaks of memory.

    Each of `wraps`, which are the root alone and each child by default, is tried with and without resharding, and with
    prefetching. `cost` is that of `Step.timeline`, and `settings` are the other arguments of `observe`, the same for
    all. The peaks include the activations of ``loss(module)``, and the states of an optimizer if `settings` have one.

    Raises ValueError and RuntimeError as `observe` does.
    """
    memory_bytes = number("memory_bytes", memory_bytes, above=0)
    found = []
    for wrap in wraps:
        for way in _WAYS:
            tried = {"wrap": list(wrap), **way}
            step = observe(module, loss, **tried, **settings)
            spans = step.timeline(cost)
            found.append(Candidate(tried, spans.makespan_s, spans.select(kind="wait").busy_s, step.peak))
    found.sort(key=lambda candidate: (candidate.step_s, candidate.peak_bytes))
    return Recommendation(tuple(found), memory_bytes)
