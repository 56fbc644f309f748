"""`fit_contention`: how much computing and communicating slow each other down, from steps in which both went on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from .buckets import Buckets
from .cost import Cost, Seconds
from .step import Contention, LocalStep, last_backward, launches

_MOST = 32.0  # the largest factor that is tried
_STARTS = np.geomspace(1.02, 31.0, 7)  # of each factor: the errors have kinks where an allreduce ends with the backward


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

    >>> from rankscope.train.ddp import simulate
    >>> local = LocalStep.modelled([4 << 20] * 8, backward_s=0.4)
    >>> cost = lambda num_bytes: num_bytes / 100e6
    >>> buckets = Buckets([[7, 6], [5, 4], [3, 2], [1, 0]])
    >>> step = simulate(local, cost, buckets=buckets, contention=Contention(1.3, 2.0))
    >>> seen = OverlappedStep(buckets, step.select(kind="backward").busy_s, step.end_s)
    >>> fitted = fit_contention([seen], local, cost)
    >>> round(fitted.compute, 2), round(fitted.communication, 2)
    (1.3, 2.0)
    """
    from scipy.optimize import least_squares  # here: without scipy, everything else works

    seen = [(step, launches(local, step.buckets)) for step in steps]
    if not any(launched.launch_s[:1].min(initial=local.backward_s) < local.backward_s for _, launched in seen):
        raise ValueError("steps must have one whose allreduces start before the backward ends, and have none")
    around_s = local.forward_s + local.optimizer_s

    def errors(factors: Seconds) -> list[float]:
        found = []
        for step, launched in seen:
            last = last_backward(local, launched, cost, Contention(*factors))
            found.append((last.backward_s - step.backward_s) / step.step_s)
            found.append((around_s + last.end_s - step.step_s) / step.step_s)
        return found

    fits = [least_squares(errors, start, bounds=(1.0, _MOST)) for start in product(_STARTS, repeat=2)]
    return Contention(*min(fits, key=lambda fit: fit.cost).x)
