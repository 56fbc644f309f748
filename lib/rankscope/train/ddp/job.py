"""`job`: what a training job takes on other ranks, from one measured step and a table of allreduces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import attrs

from ...common.checks import number, whole
from .architectures import architecture_step
from .cost import Cost, Seconds, costs_s
from .step import LocalStep, default_buckets, last_backward, launches

if TYPE_CHECKING:
    from .buckets import Parameters

_BISECTIONS = 60  # halves of a step until what is left is below the digits of a float
NOTHING: Cost = lambda num_bytes: 0.0  # noqa: E731  # the allreduce of one GPU


class Interval(NamedTuple):
    """Seconds: `expected` as DDP overlaps allreduces with the backward, between full overlap and none at all."""

    low: float
    expected: float
    high: float


@attrs.frozen
class Job:
    """A training job: one step, and what an epoch takes. `ddp.job` makes it.

    `allreduce_s` is what the allreduces of one step take, one after the other, whether hidden or not.
    """

    step_s: Interval
    allreduce_s: float

    def epoch_s(self, num_samples: int, samples_per_step: int, start_s: float = 0.0) -> Interval:
        """Return the seconds of one epoch of training: `start_s`, then the steps.

        `samples_per_step` counts all ranks: ranks × batch size. A last, smaller step counts by its share. `start_s` is
        what an epoch takes before its first step, such as starting the workers of a DataLoader; a step does not tell.

        >>> epoch_s = job([4_000_000], 0.3, lambda num_bytes: 0.01).epoch_s(1_281_167, samples_per_step=4096)
        >>> [round(one, 1) for one in epoch_s]
        [93.8, 97.0, 97.0]
        """
        steps = whole("num_samples", num_samples, 1) / whole("samples_per_step", samples_per_step, 1)
        return Interval(*(number("start_s", start_s, 0) + steps * step_s for step_s in self.step_s))


def job(
    model: str | Parameters | Sequence[int] | LocalStep,
    step_s: float,
    allreduce_s: Cost,
    *,
    measured_allreduce_s: Cost = NOTHING,
    bucket_cap_mb: float | None = None,
) -> Job:
    """Return what a data-parallel job takes on the ranks of `allreduce_s`, from a step measured on fewer or on one.

    `step_s` is that measured step, with the same batch per rank. `allreduce_s` takes a number of bytes and returns the
    seconds of one allreduce: ``ddp.cost(profile)``, or an interpolated table. If `step_s` was measured on several
    ranks, it already includes allreduces: `measured_allreduce_s` returns the seconds of those.

    `model` says how many bytes of gradients there are, and when each is ready: the name of a known model
    ("ResNet-50", "GPT-2", "LLaMA-7B", "small CNN"), a module, the bytes of each gradient in the order of definition,
    or a measured `LocalStep`. Only the proportions of its times count; they are scaled to `step_s`. Buckets are DDP's.

    The step's `low` and `high` assume full overlap (every allreduce hidden) and none (every allreduce waited for), both
    in the measured step and in the predicted one. `expected` lets the buckets overlap the backward, as `ddp.simulate`
    does. Computing is assumed to take as long as it did: ranks that wait for each other's data are not in it.

    Raises ValueError for a name that is not known, and if the measured allreduces take longer than the step.

    >>> found = job("ResNet-50", 0.330, lambda num_bytes: num_bytes / 10e9)
    >>> [round(one, 4) for one in found.step_s], round(found.allreduce_s, 4)
    ([0.33, 0.331, 0.3402], 0.0102)
    """
    step_s, local = number("step_s", step_s, above=0), _local(model)
    alone_s = local.forward_s + local.backward_s + local.optimizer_s + local.unpack_s
    if not alone_s:
        raise ValueError(f"model must be a step that takes time, got {model!r}")
    launched = launches(local, default_buckets(local, bucket_cap_mb))
    before, after = (costs_s(cost, launched.num_bytes.astype(float)) for cost in (measured_allreduce_s, allreduce_s))
    had_s, has_s = float(before.sum()), float(after.sum())
    if had_s >= step_s:
        raise ValueError(f"step_s must be longer than the {had_s:.3g} s of allreduces measured with it, got {step_s}")

    def with_waits_s(compute_s: float, costs: Seconds) -> float:
        scale = compute_s / alone_s  # a slower step with the same allreduces is the same step with faster ones
        return compute_s + scale * last_backward(local, launched, lambda num_bytes: costs / scale).wait_s

    low, high = step_s - had_s, step_s  # between them lies what computing takes
    for _ in range(_BISECTIONS if had_s else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if with_waits_s(middle, before) > step_s else (middle, high)
    expected_s, none_s = with_waits_s(high, after), step_s - had_s + has_s
    return Job(Interval(min(step_s, expected_s, none_s), expected_s, max(step_s, expected_s, none_s)), has_s)


def _local(model: str | Parameters | Sequence[int] | LocalStep) -> LocalStep:
    """The model's step, with times of any length."""
    if isinstance(model, LocalStep):
        return model
    return architecture_step(model, 1, 1.0) if isinstance(model, str) else LocalStep.modelled(model, backward_s=1.0)
