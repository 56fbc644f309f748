"""What real ranks did that had different numbers of batches, and ways to handle it side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..sampling import Assignment, audit
from ..timeline import Span, Timeline
from .uneven import batches_by_rank, gradient_scale, sample_weights, steps_by_rank, uneven_reads

Vector = NDArray[np.float64]
_COLLECTIVE = ("allreduce", "shadow")


class UnevenError(RuntimeError):
    """Real ranks did not do what they were predicted to do."""


class Counts(NamedTuple):
    """What one rank took part in: steps whose gradients it helped to reduce, allreduces of Join's single numbers."""

    gradients: int
    words: int


@dataclass(frozen=True, eq=False)
class UnevenRun:
    """One epoch on real ranks: `epoch` is what they had, `trained` what their completed steps were about.

    `gradients` are those that DDP left after each step, shape (steps, parameters), the same on all ranks that had a
    batch in it; `errors` what each rank's epoch ended with, None where it came to its end.
    """

    epoch: Assignment
    handling: str
    divide_by_initial_world_size: bool
    trained: Assignment
    gradients: Vector
    counts: tuple[Counts, ...]
    errors: tuple[str | None, ...]
    timeline: Timeline

    @property
    def stuck(self) -> tuple[int, ...]:
        """The ranks whose allreduce waited until it timed out."""
        return tuple(rank for rank, error in enumerate(self.errors) if error) if self.handling == "hang" else ()

    def check(self) -> None:
        """Raise UnevenError where reads, steps, allreduces or errors are not as predicted."""
        expected = uneven_reads(self.epoch, self.handling)
        for rank, (found, right) in enumerate(zip(self.trained.ranks, expected.ranks, strict=True)):
            if not np.array_equal(found, right):
                raise UnevenError(f"rank {rank} trained on {found.size} samples, not on the {right.size} predicted")
        own = batches_by_rank(self.epoch)
        num_steps = max(steps_by_rank(own, self.handling))
        if len(self.gradients) != num_steps:
            raise UnevenError(f"there were {len(self.gradients)} steps, not {num_steps}")
        for rank, counts in enumerate(predicted_counts(own, self.handling)):
            helped = self.counts[rank].gradients
            if helped != counts.gradients:
                raise UnevenError(f"rank {rank} helped to reduce {helped} steps' gradients, not {counts.gradients}")
        if len({counts.words for counts in self.counts}) > 1:
            raise UnevenError(f"ranks should exchange as many words each, but: {self.counts}")
        failed = tuple(rank for rank, error in enumerate(self.errors) if error)
        if failed != predicted_errors(own, self.handling):
            raise UnevenError(f"errors came to ranks {failed}, not to {predicted_errors(own, self.handling)}")


def predicted_counts(num_batches: Sequence[int], handling: str) -> tuple[Counts, ...]:
    """Return what each rank takes part in, if the module has no buffers, about which there are words of their own.

    Join asks in each step how many ranks still have a batch and whether gradients are to be reduced, once more when
    none has, and then who has the final model. To throw, it asks a third time, and stops half way.

    >>> predicted_counts([2, 3], "join")
    (Counts(gradients=3, words=8), Counts(gradients=3, words=8))
    """
    num_steps = max(steps_by_rank(num_batches, handling))
    tries = [num_steps + (handling == "hang" and own > num_steps) for own in num_batches]
    if handling == "throw":
        return (Counts(num_steps, 3 * num_steps + 2),) * len(num_batches)
    return tuple(Counts(tried, 2 * num_steps + 2 if handling == "join" else 0) for tried in tries)


def predicted_errors(num_batches: Sequence[int], handling: str) -> tuple[int, ...]:
    """Return the ranks that end with an error: those with batches left where it hangs, all where Join throws."""
    least = min(num_batches)
    if handling == "hang":
        return tuple(rank for rank, own in enumerate(num_batches) if own > least)
    thrown = handling == "throw" and max(num_batches) > least
    return tuple(range(len(num_batches))) if thrown else ()


def settled(timeline: Timeline) -> Timeline:
    """Split each allreduce where the last rank came to it: before, those that were earlier wait.

    A rank waits with zeros in hand, too, so that of a shadow only what follows the last rank's coming is one.
    """
    last_s: dict[int, float] = {}
    for span in timeline:
        if span.kind in _COLLECTIVE:
            last_s[span.item] = max(span.start_s, last_s.get(span.item, span.start_s))
    rows = []
    for span in timeline:
        if span.kind in _COLLECTIVE and span.start_s < last_s[span.item] <= span.stop_s:
            rows.append(span._replace(kind="wait", stop_s=last_s[span.item]))
            span = span._replace(start_s=last_s[span.item])
        rows.append(span)
    return _joined(Timeline.of(rows))


def _joined(timeline: Timeline) -> Timeline:
    """Waits of one rank that follow each other at once are one."""
    rows: list[Span] = []
    for span in sorted(timeline, key=lambda one: (one.rank, one.start_s)):
        if span.kind == "wait" and rows and rows[-1][:4] == span[:4]:
            rows[-1] = rows[-1]._replace(stop_s=span.stop_s)
        else:
            rows.append(span)
    return Timeline.of(rows).named((), ("step", *_COLLECTIVE, "wait"))


@dataclass(frozen=True, eq=False)
class Handled:
    """One way to handle an uneven epoch: what it did to the samples, and the gradient of the whole epoch.

    Gradients are sums over the steps, divided by the sum of all weights, so that they compare with that of a mean.
    """

    name: str
    run: UnevenRun
    predicted: Vector
    exact: Vector
    rounding: float

    @property
    def lost(self) -> int:
        return audit(self.run.trained).dropped

    @property
    def repeated(self) -> int:
        return audit(self.run.trained).duplicates

    @property
    def weights(self) -> Vector:
        """How much each sample counts, 1 where it counts as in the mean over all."""
        weights = sample_weights(self.run.epoch, self.run.handling, self.run.divide_by_initial_world_size)
        return np.asarray(weights * weights.size / weights.sum())

    @property
    def measured(self) -> Vector:
        """The gradient of the epoch as the ranks had it."""
        run = self.run
        scale = gradient_scale(batches_by_rank(run.epoch), run.handling, run.divide_by_initial_world_size)
        return np.asarray(run.gradients.sum(axis=0) / scale.sum())

    @property
    def bias(self) -> float:
        """How far the measured gradient is from that of the mean loss over all samples, as a share of its length."""
        return _apart(self.measured, self.exact)

    @property
    def predicted_bias(self) -> float:
        return _apart(self.predicted, self.exact)

    def check(self) -> None:
        """Raise UnevenError where the run, its samples or its gradient are not as predicted."""
        self.run.check()
        off = _apart(self.measured, self.predicted)
        if not off <= self.rounding:
            raise UnevenError(f"{self.name}: the gradient is {off:.2g} from the predicted one")


@dataclass(frozen=True, eq=False)
class UnevenComparison:
    """Ways to handle one uneven epoch, side by side; ``str()`` is the table.

    `bias` is how far the epoch's gradient is from the exact one of the mean loss, as a share of that one's length.
    """

    handled: tuple[Handled, ...]

    def __getitem__(self, name: str) -> Handled:
        return {one.name: one for one in self.handled}[name]

    def check(self) -> None:
        """Raise UnevenError where anything is not as predicted; see `Handled.check`."""
        for one in self.handled:
            one.check()

    def __str__(self) -> str:
        wide = max(len(one.name) for one in self.handled)
        rows = [f"{'':{wide}}  lost  repeated  a sample counts   bias, predicted and found"]
        for one in self.handled:
            counts = f"{one.weights.min():.2f} to {one.weights.max():.2f} times"
            bias = f"{one.predicted_bias:6.2%} {one.bias:6.2%}"
            rows.append(f"{one.name:{wide}} {one.lost:5} {one.repeated:9}  {counts:>18} {bias:>15}")
        return "\n".join(rows)


def _apart(one: Vector, other: Vector) -> float:
    return float(np.linalg.norm(one - other) / (np.linalg.norm(other) or 1.0))
