"""`recommend`: the predicted step for each bucket cap, and which cap to set."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

import attrs

from ...common.checks import count_of, number, of_type, several
from ...common.units import times_in_one_unit
from .buckets import CAP_MB
from .cost import Cost
from .step import FREE, Contention, LocalStep, backward_begin_s, default_buckets, last_backward, launches

DEFAULT_CAPS_MB = (1.0, 2.0, 4.0, 8.0, 16.0, 25.0, 32.0, 64.0, 128.0, 256.0, 512.0)
_WORTH = 0.01  # of a step's time: smaller than what the model can resolve


class CapCandidate(NamedTuple):
    """The predicted step with a cap in MiB, None being DDP's default; `wait_s` of it the rank waits for allreduces."""

    bucket_cap_mb: float | None
    num_buckets: int
    step_s: float
    wait_s: float


@attrs.frozen
class Recommendation:
    """The candidates by rising cap, DDP's default, and the step without communication.

    A step takes `alone_s`, the time by which allreduces slow computing down, and waiting for them. `chosen` is the
    smallest cap within 1 % of the best one, which leaves least to wait for at the end; or the default, if no cap saves
    1 % of its step.
    """

    candidates: tuple[CapCandidate, ...]
    default: CapCandidate
    alone_s: float

    @cached_property
    def chosen(self) -> CapCandidate:
        enough_s = min((one.step_s for one in self.candidates), default=0.0) * (1 + _WORTH)
        worth_s = self.default.step_s * (1 - _WORTH)
        good = (one for one in self.candidates if one.step_s <= enough_s and one.step_s < worth_s)
        return next(good, self.default)

    @property
    def bucket_cap_mb(self) -> float | None:
        """What to give to DistributedDataParallel; None is its default."""
        return self.chosen.bucket_cap_mb

    @property
    def gain(self) -> float:
        """The share of the default's step that the recommended cap is predicted to save."""
        return 1 - self.chosen.step_s / self.default.step_s if self.default.step_s else 0.0

    @property
    def neighbours(self) -> tuple[CapCandidate, ...]:
        """The candidates with the next smaller and the next larger cap, DDP's default counting as its 25 MiB."""
        cap = CAP_MB if self.bucket_cap_mb is None else self.bucket_cap_mb
        smaller = [one for one in self.candidates if one.bucket_cap_mb is not None and one.bucket_cap_mb < cap]
        larger = [one for one in self.candidates if one.bucket_cap_mb is not None and one.bucket_cap_mb > cap]
        return (*smaller[-1:], *larger[:1])

    def __str__(self) -> str:
        chosen = self.chosen
        seconds = (self.default.step_s, chosen.step_s, chosen.wait_s, *(each.step_s for each in self.neighbours))
        default, step, wait, *near = times_in_one_unit(*seconds)
        if chosen.bucket_cap_mb is None:
            first = f"keep the default bucket_cap_mb: {default} per step, and no cap is predicted to save 1 % of it"
        else:
            what = f"write DistributedDataParallel(module, bucket_cap_mb={chosen.bucket_cap_mb:g})"
            first = f"{what}: {step} per step, {self.gain:.1%} less than the default's {default}"
        buckets = count_of(chosen.num_buckets, "bucket")
        waits = f"{wait} of the step waiting for them, {chosen.wait_s / (chosen.step_s or 1):.0%}"
        pairs = zip(self.neighbours, near, strict=True)
        neighbours = ", ".join(f"{each.bucket_cap_mb:g} MiB {time}" for each, time in pairs)
        return "\n".join([first, f"{buckets}, {waits}", f"neighbours: {neighbours or 'nothing'}"])


def recommend(
    local: LocalStep,
    cost: Cost,
    *,
    caps_mb: Iterable[float] = DEFAULT_CAPS_MB,
    contention: Contention = FREE,
    accumulation: int = 1,
    overlap: bool = True,
) -> Recommendation:
    """Return the predicted step of each cap and of DDP's default, and which to take: see `Recommendation`.

    `local` is what `ddp.measure_local_step` measures or `LocalStep.modelled` models, on as many ranks as share a
    machine; `cost` is from `ddp.cost`. The other arguments are those of `ddp.simulate`.

    There is a best cap only because allreduces overlap the backward. Without overlap, one bucket never loses:

    >>> from rankscope.cluster import Link
    >>> from rankscope.train.ddp import cost
    >>> local = LocalStep.modelled([1 << 20] * 64, backward_s=0.064)
    >>> ring = cost(Link(alpha_s=50e-6, bytes_per_s=2e9), num_ranks=8)
    >>> print(recommend(local, ring))
    write DistributedDataParallel(module, bucket_cap_mb=8): 104 ms per step, 12.5% less than the default's 119 ms
    8 buckets, 8.32 ms of the step waiting for them, 8%
    neighbours: 4 MiB 106 ms, 16 MiB 111 ms
    >>> recommend(local, ring, overlap=False).chosen.num_buckets
    1

    Raises ValueError for caps below 0, and as `ddp.simulate` does.
    """
    of_type("local", local, LocalStep)
    caps = sorted({number("caps_mb", cap, 0) for cap in several("caps_mb", caps_mb, "caps")})
    others_s = backward_begin_s(local, accumulation) + local.optimizer_s

    def candidate(cap: float | None, cost: Cost = cost) -> CapCandidate:
        launched = launches(local, default_buckets(local, cap))
        last = last_backward(local, launched, cost, contention, overlap)
        return CapCandidate(cap, len(launched.launch_s), others_s + last.end_s, last.wait_s)

    alone_s = candidate(None, lambda num_bytes: 0.0).step_s
    return Recommendation(tuple(map(candidate, caps)), candidate(None), alone_s)
