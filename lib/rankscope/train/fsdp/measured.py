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
        return self.recording.timeline.select(item=int(np.argsort(steps_s)[steps_s.size // 2]))

    def cost(self, other: Run | None = None) -> Cost:
        """Return the cost of works on these ranks, for a step that is sharded in another way and does not overlap.

        A collective takes as long for each byte as those of its kind have taken here, on the rank that came last and so
        did not wait in it. `other` is a run whose collectives have other sizes, such as one that wraps the root alone:
        with it, a collective also takes a time for each call, such that both runs agree. Everything else shares the
        rest of the median step, in proportion to its operations and bytes; what follows a collective on its stream is
        part of it. Predict with ``step.timeline(cost, overlap=False)``.
        """
        rates = {}
        computing_s = self.step_s
        for kind in {call.kind for call in self.collectives}:
            num_calls, num_bytes, kind_s = self._total(kind)
            call_s = 0.0
            if other is not None:
                others_calls, others_bytes, others_s = other._total(kind)
                determinant = num_calls * others_bytes - others_calls * num_bytes
                if determinant:  # else calls have the same size on average
                    call_s = (kind_s * others_bytes - others_s * num_bytes) / determinant
                call_s = min(max(call_s, 0.0), kind_s / num_calls)
            rates[kind] = call_s, (kind_s - num_calls * call_s) / num_bytes
            computing_s -= kind_s
        rate = computing_s / sum(map(_effort, self.observed[0].works))

        def cost(work: Work) -> float:
            if work.kind not in rates:
                return rate * _effort(work)
            call_s, byte_s = rates[work.kind]
            return call_s + byte_s * work.num_bytes

        return cost

    def _total(self, kind: str) -> tuple[int, int, float]:
        """Return how many collectives of a kind a step has, their bytes, and the median of their seconds."""
        sizes = [call.num_bytes for call in self.collectives if call.kind == kind]
        return len(sizes), sum(sizes), float(np.median(self._seconds(kind=kind).min(axis=0)))

    def _seconds(self, **selected: Any) -> NDArray[np.float64]:
        """Return the seconds that the selected spans take together, as an array of shape (ranks, steps)."""
        spans = self.recording.timeline
        seconds = np.zeros((len(self.observed), spans.item.max() + 1))
        chosen = spans.select(**selected)
        np.add.at(seconds, (chosen.rank, chosen.item), chosen.stop_s - chosen.start_s)
        return seconds


def _effort(work: Work) -> float:
    """How long a work takes compared with others: a core does about ten operations for each byte that it moves."""
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
