"""`fit_contention`: how much computing and communicating slow each other down, fitted to measured steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .buckets import Buckets
from .cost import Cost
from .step import Contention, LocalStep, last_backward, launches

_MOST = 32.0  # the largest factor that is tried
# Where the search for each factor starts, within its bounds of 1 and `_MOST`. It needs several starts, because the
# errors have kinks where an allreduce ends together with the backward.
_STARTS = np.geomspace(1.02, 31.0, 7)


class OverlappedStep(NamedTuple):
    """The buckets of a step of one micro-batch, the seconds of its backward, and of the whole step."""

    buckets: Buckets
    backward_s: float
    step_s: float


def fit_contention(steps: Sequence[OverlappedStep], local: LocalStep, cost: Cost) -> Contention:
    """Return the contention with which the model comes nearest to these steps of one micro-batch.

    The errors of the backward and of the whole step have the same weight, each as a share of the step. How much longer
    the backward takes shows how communicating affects computing, and the rest of the step shows how computing affects
    communicating. So one step is enough, and a machine has one contention for each number of ranks and network,
    whatever is trained at whatever cap.

    Raises ValueError if no allreduce can have run during the backward, as with a single bucket.

    >>> from rankscope.train.ddp import simulate
    >>> local = LocalStep.modelled([4 << 20] * 8, backward_s=0.4)
    >>> cost = lambda num_bytes: num_bytes / 100e6
    >>> buckets = Buckets([[7, 6], [5, 4], [3, 2], [1, 0]])
    >>> step = simulate(local, cost, buckets=buckets, contention=Contention(1.3, 2.0))
    >>> observed = OverlappedStep(buckets, step.select(kind="backward").busy_s, step.end_s)
    >>> fitted = fit_contention([observed], local, cost)
    >>> round(fitted.compute, 2), round(fitted.communication, 2)
    (1.3, 2.0)
    """
    from scipy.optimize import least_squares  # here: without scipy, everything else works

    launched = [launches(local, step.buckets) for step in steps]
    first_launches_s = []
    for step_launches in launched:
        first_launches_s += step_launches.launch_s[:1].tolist()  # of no bucket if the step has none
    if not any(launch_s < local.backward_s for launch_s in first_launches_s):
        raise ValueError("steps must have one whose allreduces start before the backward ends, and have none")
    around_s = local.forward_s + local.optimizer_s  # the parts of a step that no allreduce can slow down

    def errors(factors: NDArray[np.float64]) -> list[float]:
        """Return two errors for each step, as shares of it: of its last backward, and of the whole step."""
        shares = []
        for step, step_launches in zip(steps, launched, strict=True):
            last = last_backward(local, step_launches, cost, Contention(*factors))
            shares.append((last.backward_s - step.backward_s) / step.step_s)
            shares.append((around_s + last.end_s - step.step_s) / step.step_s)
        return shares

    starts = product(_STARTS, repeat=2)  # pairs of factors: for computing and for communicating
    fits = [least_squares(errors, start, bounds=(1.0, _MOST)) for start in starts]
    best = min(fits, key=lambda fit: fit.cost)
    return Contention(*best.x)
