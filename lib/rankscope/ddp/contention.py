"""`fit_contention`: how much computing and communicating hold each other up, from steps in which both went on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..timeline import Timeline
from ..values.checks import number, of_type, several
from .cost import Cost
from .launches import bucket_places, launches
from .local_step import Contention, LocalStep
from .overlap import last_backward

MOST = 32.0  # by which either holds up the other
_PLACES, _CUTS, _GOLDEN = 65, 22, (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class OverlappedStep:
    """What a step of one micro-batch with these buckets, places of parameters in launch order, took, and its backward.

    >>> OverlappedStep(((1,), (0,)), backward_s=0.4, step_s=0.3)
    Traceback (most recent call last):
    ValueError: step_s must be a finite number of at least 0.4, got 0.3
    """

    buckets: tuple[tuple[int, ...], ...]
    backward_s: float
    step_s: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "buckets", bucket_places(self.buckets))
        object.__setattr__(self, "backward_s", number("backward_s", self.backward_s, 0))
        object.__setattr__(self, "step_s", number("step_s", number("step_s", self.step_s, self.backward_s), above=0))

    @classmethod
    def of(cls, timeline: Timeline, buckets: Sequence[Sequence[int]]) -> OverlappedStep:
        """Return those of a timeline, as `simulate_step` gives it; ValueError unless it has one backward."""
        backward = of_type("timeline", timeline, Timeline).select(kind="backward")
        if len(backward) != 1:
            raise ValueError(f"timeline must have one backward, that of the only micro-batch, got {len(backward)}")
        return cls(bucket_places(buckets), backward.busy_s, timeline.end_s)


def fit_contention(steps: Sequence[OverlappedStep], local: LocalStep, cost: Cost) -> Contention:
    """Return the contention with which the model comes nearest to these steps of one micro-batch.

    Backward and whole step count alike, their errors as shares of the step: how much longer the backward takes says
    what communicating does to computing, and the rest of the step what computing does to communicating. So one step is
    enough, and a machine has one contention for each number of ranks and network, whatever is trained at whatever cap.

    Raises ValueError where no allreduce can have run during the backward, as with one bucket, which says nothing.

    >>> from rankscope.ddp.overlap import simulate_step
    >>> local = LocalStep.modelled([4 << 20] * 8, backward_s=0.4)
    >>> cost = lambda num_bytes: num_bytes / 100e6
    >>> buckets = [[7, 6], [5, 4], [3, 2], [1, 0]]
    >>> step = simulate_step(local, cost, buckets=buckets, contention=Contention(1.3, 2.0))
    >>> fitted = fit_contention([OverlappedStep.of(step, buckets)], local, cost)
    >>> round(fitted.compute, 2), round(fitted.communication, 2)
    (1.3, 2.0)
    """
    of_type("local", local, LocalStep)
    seen = [
        (of_type("steps", step, OverlappedStep), launches(local, step.buckets))
        for step in several("steps", steps, "OverlappedStep values")
    ]
    if not any(launched.launch_s[:1].min(initial=local.backward_s) < local.backward_s for _, launched in seen):
        raise ValueError("steps must have one whose allreduces start before the backward ends, and have none")
    around_s = local.forward_s + local.optimizer_s

    def error(compute: float, communication: float) -> float:
        total = 0.0
        for step, launched in seen:
            last = last_backward(local, launched, cost, Contention(compute, communication))
            total += (last.backward_s - step.backward_s) ** 2 / step.step_s**2
            total += (around_s + last.end_s - step.step_s) ** 2 / step.step_s**2
        return total

    def communication_of(compute: float) -> float:
        return _golden(lambda communication: error(compute, communication), 0.0, math.log(MOST))

    compute = _least(lambda compute: error(compute, communication_of(compute)))
    return Contention(compute, communication_of(compute))


def _least(error: Callable[[float], float]) -> float:
    """Where from 1 to `MOST` an error is least: by golden section round each place that is better than its neighbours.

    There may be several: the error has kinks where an allreduce just ends with the backward.
    """
    places = np.linspace(0.0, math.log(MOST), _PLACES).tolist()
    errors = [math.inf, *(error(math.exp(place)) for place in places), math.inf]
    low = [n for n in range(_PLACES) if errors[n + 1] <= min(errors[n], errors[n + 2])]
    found = [_golden(error, places[max(n - 1, 0)], places[min(n + 1, _PLACES - 1)]) for n in low]
    return min(found, key=error)


def _golden(error: Callable[[float], float], low: float, high: float) -> float:
    """Where between two logarithms an error with one minimum is least."""
    for _ in range(_CUTS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, right) if error(math.exp(left)) <= error(math.exp(right)) else (left, high)
    return math.exp((low + high) / 2)
