"""`fit_contention`: how much computing and communicating slow each other down, from steps in which both went on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from .buckets import Buckets
from .cost import Cost
from .step import Contention, LocalStep, last_backward, launches

_MOST = 32.0  # the largest factor that is tried
_PLACES, _CUTS, _GOLDEN = 65, 22, (math.sqrt(5) - 1) / 2


class OverlappedStep(NamedTuple):
    """The buckets of a step of one micro-batch, the seconds of its backward, and of the whole step."""

    buckets: Buckets
    backward_s: float
    step_s: float


def fit_contention(steps: Sequence[OverlappedStep], local: LocalStep, cost: Cost) -> Contention:
    """Return the contention with which the model comes nearest to these steps of one micro-batch.

    Backward and whole step count alike, their errors as shares of the step: how much longer the backward takes says
    what communicating does to computing, and the rest of the step what computing does to communicating. So one step is
    enough, and a machine has one contention for each number of ranks and network, whatever is trained at whatever cap.

    Raises ValueError if no allreduce can have run during the backward, as with one bucket, which says nothing.

    >>> from rankscope.ddp import simulate
    >>> local = LocalStep.modelled([4 << 20] * 8, backward_s=0.4)
    >>> cost = lambda num_bytes: num_bytes / 100e6
    >>> buckets = Buckets([[7, 6], [5, 4], [3, 2], [1, 0]])
    >>> step = simulate(local, cost, buckets=buckets, contention=Contention(1.3, 2.0))
    >>> seen = OverlappedStep(buckets, step.select(kind="backward").busy_s, step.end_s)
    >>> fitted = fit_contention([seen], local, cost)
    >>> round(fitted.compute, 2), round(fitted.communication, 2)
    (1.3, 2.0)
    """
    seen = [(step, launches(local, step.buckets)) for step in steps]
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
        return _golden(lambda communication: error(compute, communication), 0.0, math.log(_MOST))

    compute = _least(lambda compute: error(compute, communication_of(compute)))
    return Contention(compute, communication_of(compute))


def _least(error: Callable[[float], float]) -> float:
    """Where from 1 to `_MOST` an error is least: a golden section search at each place better than its neighbours.

    There may be several: the error has kinks where an allreduce ends just with the backward.
    """
    places = np.linspace(0.0, math.log(_MOST), _PLACES).tolist()
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
