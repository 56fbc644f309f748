"""`run`: steps under `fully_shard` on real ranks, and what other ways to shard would take there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ...ranks import Recording, launch, record
from ...timeline import Timeline
from ..losses import Loss, Optimizer, checked_loss
from .observed import Sharding, observe_rank
from .step import COLLECTIVES, CollectiveCall, Cost, Step, Work

_COMPUTING = "computing"  # the kind of all works but collectives
_WARM_UP = 3  # steps in which memory is allocated that later ones use again


class Run(NamedTuple):
    """Steps on real ranks: their recording, and the step that was observed on each rank after it, by rank."""

    recording: Recording
    observed: tuple[Step, ...]

    @property
    def collectives(self) -> list[CollectiveCall]:
        """The recorded collectives of rank 0 in the first step, in the order of issue."""
        calls = []
        for span, num_bytes in zip(*self.recording, strict=True):
            if span.rank == span.item == 0 and span.kind in COLLECTIVES:
                calls.append(CollectiveCall(span.kind, int(num_bytes)))
        return calls

    @property
    def step_s(self) -> float:
        """The median step in seconds, each as long as on its slowest rank."""
        return float(np.median(self._seconds(lane="step").max(axis=0)))

    @property
    def timeline(self) -> Timeline:
        """All ranks in the step of median length: passes on lane "compute", and every collective."""
        steps_s = self._seconds(lane="step").max(axis=0)
        return self.recording.timeline.select(item=int(steps_s.argsort()[steps_s.size // 2]))

    def cost(self) -> Cost:
        """Return the cost of works on these ranks, for a step that is sharded in another way and does not overlap.

        A collective takes as long for each byte as those of its kind have taken here, on the rank that came last and so
        did not wait in it. Everything else shares the rest of the median step, in proportion to its operations and
        bytes; what follows a collective on its stream is part of it. Predict with
        ``step.timeline(cost, overlap=False)``. The cost raises KeyError for a collective of a kind that these ranks did
        not run.
        """
        amounts: dict[str, float] = {}  # of all works of each kind in a step
        for work in self.observed[0].works:
            if _amount(work):
                amounts[_kind(work)] = amounts.get(_kind(work), 0.0) + _amount(work)
        seconds = {kind: float(np.median(self._seconds(kind=kind).min(axis=0))) for kind in amounts}
        seconds[_COMPUTING] = self.step_s - sum(seconds.values())
        rates = {kind: seconds[kind] / amount for kind, amount in amounts.items()}

        def cost(work: Work) -> float:
            return rates[_kind(work)] * _amount(work)

        return cost

    def _seconds(self, **selected: Any) -> NDArray[np.float64]:
        """Return the seconds that the selected spans take together, as an array of shape (ranks, steps)."""
        spans = self.recording.timeline
        seconds = np.zeros((len(self.observed), spans.item.max() + 1))
        chosen = spans.select(**selected)
        np.add.at(seconds, (chosen.rank, chosen.item), chosen.stop_s - chosen.start_s)
        return seconds


def _kind(work: Work) -> str:
    if work.kind in COLLECTIVES:
        return work.kind
    return _COMPUTING


def _amount(work: Work) -> float:
    """A collective's bytes; of all else, the bytes that a core moves meanwhile, about one for ten operations."""
    if work.kind in COLLECTIVES:
        return work.num_bytes
    if work.lane in COLLECTIVES:
        return 0.0
    return max(work.flops / 10, work.num_bytes)


def run(
    module: nn.Module,
    loss: Loss,
    *,
    num_ranks: int = 2,
    optimizer: Optimizer | None = None,
    num_steps: int = 10,
    timeout_s: float = 60.0,
    **sharding: Any,
) -> Run:
    """Train a module under `fully_shard` on real CPU ranks, and record its steps and its live bytes.

    `sharding` are the other arguments of `observe`. Each rank calls ``loss(module)``, which may read its batch by
    ``torch.distributed.get_rank()``. Raises ValueError as `observe` does, and for `num_steps` below 1; RankError if a
    rank fails, dies, or has not ended after `timeout_s`.
    """
    checked = Sharding(num_ranks, **sharding).checked(module, loss)

    def make_step() -> Callable[[], None]:
        checked.apply(module)
        optimizing = None
        if optimizer is not None:
            optimizing = optimizer(module.parameters())

        def step() -> None:
            checked_loss(loss(module)).backward()  # type: ignore[no-untyped-call]
            if optimizing is not None:
                optimizing.step()
            module.zero_grad()

        return step

    recording = record(make_step, num_ranks, num_steps, _WARM_UP, timeout_s=timeout_s)
    observed = launch(observe_rank, num_ranks, (module, loss, checked, optimizer), timeout_s=timeout_s)
    return Run(recording, tuple(observed))
