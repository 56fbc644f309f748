"""`job`: the time of a training job on other ranks, from one measured step and a table of allreduces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ...common.checks import number, whole
from .architectures import architecture_step
from .cost import Cost, Seconds, costs_s, no_allreduce
from .step import Launches, LocalStep, default_buckets, last_backward, launches

if TYPE_CHECKING:
    from .buckets import Parameters

_BISECTIONS = 60  # after so many halvings, the interval is smaller than a float can resolve


class Interval(NamedTuple):
    """Seconds between full overlap and none; `expected` is for the overlap of DDP's buckets with the backward."""

    low: float
    expected: float
    high: float


class Job(msgspec.Struct, frozen=True):
    """A training job: the times of a step and of an epoch, as `ddp.job` predicts them.

    `allreduce_s` is the total time of the allreduces of one step, hidden or not.
    """

    step_s: Interval
    allreduce_s: float

    def epoch_s(self, num_samples: int, samples_per_step: int, start_s: float = 0.0) -> Interval:
        """Return the seconds of one epoch of training: `start_s`, then the steps.

        `samples_per_step` counts all ranks: ranks × batch size. A smaller last step counts by its share. `start_s` is
        the time before the first step of an epoch, for example to start the workers of a DataLoader.

        >>> epoch_s = job([4_000_000], 0.3, lambda num_bytes: 0.01).epoch_s(1_281_167, samples_per_step=4096)
        >>> [round(seconds, 1) for seconds in epoch_s]
        [93.8, 97.0, 97.0]
        """
        num_steps = whole("num_samples", num_samples, 1) / whole("samples_per_step", samples_per_step, 1)
        start_s = number("start_s", start_s, 0)
        return Interval(*(start_s + num_steps * step_s for step_s in self.step_s))


def job(
    model: str | Parameters | Sequence[int] | LocalStep,
    step_s: float,
    allreduce_s: Cost,
    *,
    measured_allreduce_s: Cost = no_allreduce,
    bucket_cap_mb: float | None = None,
) -> Job:
    """Return the times of a data-parallel job on the ranks of `allreduce_s`, from a step measured on one or more ranks.

    `step_s` is that measured step, with the same batch per rank. `allreduce_s` takes a number of bytes and returns the
    time of one allreduce in seconds, such as ``ddp.cost(profile)`` or an interpolated table. If `step_s` was measured
    on several ranks, it already includes allreduces, and `measured_allreduce_s` returns their times.

    `model` determines the bytes of each gradient and when it is ready: the name of a known model ("ResNet-50",
    "GPT-2", "LLaMA-7B", "small CNN"), a module, the bytes of each gradient in the order of definition, or a measured
    `LocalStep`. Only the proportions of its times count; they are scaled to `step_s`. Buckets are DDP's.

    The step's `low` and `high` assume full overlap (every allreduce hidden) and none (every allreduce waited for), both
    in the measured step and in the predicted one. In `expected`, the buckets overlap the backward pass, as in
    `ddp.simulate`. Computing is assumed to take as long as measured; time in which ranks wait for each other's data is
    not included.

    Raises ValueError if the name is unknown or the measured allreduces take longer than the step.

    >>> predicted = job("ResNet-50", 0.330, lambda num_bytes: num_bytes / 10e9)
    >>> [round(seconds, 4) for seconds in predicted.step_s], round(predicted.allreduce_s, 4)
    ([0.33, 0.331, 0.3402], 0.0102)
    """
    step_s = number("step_s", step_s, above=0)
    local = _local_step(model)
    if not _computing_s(local):
        raise ValueError(f"model must be a step that takes time, got {model!r}")
    launched = launches(local, default_buckets(local, bucket_cap_mb))
    num_bytes = launched.num_bytes.astype(float)
    measured_costs_s = costs_s(measured_allreduce_s, num_bytes)
    predicted_costs_s = costs_s(allreduce_s, num_bytes)
    measured_total_s = float(measured_costs_s.sum())
    predicted_total_s = float(predicted_costs_s.sum())
    if measured_total_s >= step_s:
        measured_allreduces = f"the {measured_total_s:.3g} s of allreduces measured with it"
        raise ValueError(f"step_s must be longer than {measured_allreduces}, got {step_s}")

    # The time of the step without any wait, which is the same on other ranks.
    computing_s = step_s
    if measured_total_s:  # otherwise the measured step had no waits
        computing_s = _without_waits_s(local, launched, measured_costs_s, step_s)
    expected_s = _with_waits_s(local, launched, predicted_costs_s, computing_s)
    with_full_overlap_s = step_s  # no allreduce adds to either step
    without_overlap_s = step_s - measured_total_s + predicted_total_s
    # If the predicted allreduces are faster than the measured ones, the step without overlap is the shorter one.
    predictions_s = (with_full_overlap_s, expected_s, without_overlap_s)
    return Job(Interval(min(predictions_s), expected_s, max(predictions_s)), predicted_total_s)


def _local_step(model: str | Parameters | Sequence[int] | LocalStep) -> LocalStep:
    """Return the model's step; only the proportions of its times mean anything, so the speeds here are arbitrary."""
    if isinstance(model, LocalStep):
        return model
    if isinstance(model, str):
        return architecture_step(model, num_samples=1, flops_per_s=1.0)
    return LocalStep.modelled(model, backward_s=1.0)


def _computing_s(local: LocalStep) -> float:
    return local.forward_s + local.backward_s + local.optimizer_s + local.unpack_s


def _with_waits_s(local: LocalStep, launched: Launches, bucket_costs_s: Seconds, computing_s: float) -> float:
    """Return the seconds of a step that computes for `computing_s`, including the waits for the buckets' allreduces.

    `local` has only the proportions of the computing. To keep its times, the allreduces are divided by the factor
    between the two, and the resulting wait is multiplied by it.
    """
    factor = computing_s / _computing_s(local)
    scaled_costs_s = bucket_costs_s / factor
    backward = last_backward(local, launched, lambda num_bytes: scaled_costs_s)  # one for each bucket, in this order
    return computing_s + factor * backward.wait_s


def _without_waits_s(local: LocalStep, launched: Launches, bucket_costs_s: Seconds, step_s: float) -> float:
    """Return the computing time of a step that takes `step_s` including the waits for allreduces, by bisection.

    It lies between `step_s`, if all allreduces are hidden, and `step_s` less all of them. The longer a step computes,
    the longer it takes.
    """
    low_s = step_s - float(bucket_costs_s.sum())
    high_s = step_s
    for _ in range(_BISECTIONS):
        middle_s = (low_s + high_s) / 2
        if _with_waits_s(local, launched, bucket_costs_s, middle_s) > step_s:
            high_s = middle_s
        else:
            low_s = middle_s
    return high_s
