"""`recommend`: the predicted step for each bucket cap, and which cap to set."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

import msgspec

from ...common.checks import number, of_type, several
from ...common.units import percent_words, times_in_one_unit
from ...common.words import count_of
from .buckets import CAP_MB
from .cost import Cost, no_allreduce
from .step import FREE, Contention, LocalStep, backward_begin_s, default_buckets, last_backward, launches

DEFAULT_CAPS_MB = (1.0, 2.0, 4.0, 8.0, 16.0, 25.0, 32.0, 64.0, 128.0, 256.0, 512.0)
_WORTH = 0.01  # of a step's time: the model cannot resolve smaller differences


class CapCandidate(NamedTuple):
    """The predicted step with a cap in MiB (None is DDP's default); `wait_s` of it is spent waiting for allreduces."""

    bucket_cap_mb: float | None
    num_buckets: int
    step_s: float
    wait_s: float


class Recommendation(msgspec.Struct, frozen=True, dict=True):
    """The candidates by rising cap, DDP's default, and the step without communication.

    A step consists of `alone_s`, the time by which allreduces slow computing down, and the time spent waiting for them.
    `chosen` is DDP's default if no cap saves more than 1 % of its step, else the one with the fewest buckets of those
    that save as much and are within 1 % of the shortest step.
    """

    candidates: tuple[CapCandidate, ...]
    default: CapCandidate
    alone_s: float

    @cached_property
    def chosen(self) -> CapCandidate:
        """The recommended candidate; of several with the fewest buckets, the one with the shortest step."""
        shortest_s = min(candidate.step_s for candidate in (self.default, *self.candidates))
        longest_s = shortest_s * (1 + _WORTH)
        if self.default.step_s <= longest_s:
            return self.default
        worthwhile_s = min(longest_s, self.default.step_s * (1 - _WORTH))
        near = [candidate for candidate in self.candidates if candidate.step_s <= worthwhile_s]
        if not near:  # the shortest step saves almost 1 %, and no other one does
            return self.default
        return min(near, key=lambda candidate: (candidate.num_buckets, candidate.step_s))

    @property
    def bucket_cap_mb(self) -> float | None:
        """The argument for DistributedDataParallel; None is its default."""
        return self.chosen.bucket_cap_mb

    @property
    def gain(self) -> float:
        """The share of the default's step that the recommended cap is predicted to save."""
        if not self.default.step_s:
            return 0.0
        return 1 - self.chosen.step_s / self.default.step_s

    @property
    def neighbours(self) -> tuple[CapCandidate, ...]:
        """The candidates with the next smaller and the next larger cap, as far as there are such candidates.

        DDP's default counts as its 25 MiB.
        """
        cap_mb = CAP_MB if self.bucket_cap_mb is None else self.bucket_cap_mb
        smaller = []
        larger = []
        for candidate in self.candidates:
            if candidate.bucket_cap_mb is None:  # for the type: only `default`, which is not among them, has none
                continue
            if candidate.bucket_cap_mb < cap_mb:
                smaller.append(candidate)
            elif candidate.bucket_cap_mb > cap_mb:
                larger.append(candidate)
        return (*smaller[-1:], *larger[:1])  # slices, because there may be none on a side

    def __str__(self) -> str:
        """The advice, the buckets of the chosen cap, and the step with neighbouring caps, in a line each."""
        chosen = self.chosen
        neighbours_s = [candidate.step_s for candidate in self.neighbours]
        seconds = (self.default.step_s, chosen.step_s, chosen.wait_s, *neighbours_s)
        default, step, wait, *neighbour_steps = times_in_one_unit(*seconds)

        if chosen.bucket_cap_mb is None:
            advice = f"keep the default bucket_cap_mb: {default} per step; none of the caps tried saves 1 %"
        else:
            call = f"use DistributedDataParallel(module, bucket_cap_mb={chosen.bucket_cap_mb:g})"
            saved = percent_words(self.gain, digits=1)
            advice = f"{call}: {step} per step, {saved} less than the default's {default}"
        wait_share = 0.0
        if chosen.step_s:
            wait_share = chosen.wait_s / chosen.step_s
        count = count_of(chosen.num_buckets, "bucket")
        them = "it" if chosen.num_buckets == 1 else "them"
        buckets = f"{count}; each step waits for {them} for {wait}, {percent_words(wait_share)} of its time"
        neighbours = "nothing"
        if self.neighbours:
            pairs = zip(self.neighbours, neighbour_steps, strict=True)
            neighbours = ", ".join(f"{candidate.bucket_cap_mb:g} MiB {time}" for candidate, time in pairs)
        return "\n".join([advice, buckets, f"nearby caps: {neighbours}"])


def recommend(
    local: LocalStep,
    cost: Cost,
    *,
    caps_mb: Iterable[float] = DEFAULT_CAPS_MB,
    contention: Contention = FREE,
    accumulation: int = 1,
    overlap: bool = True,
) -> Recommendation:
    """Predict the step for each cap and for DDP's default, and recommend a cap; see `Recommendation`.

    `local` comes from `ddp.measure_local_step`, on as many ranks as share a machine, or from `LocalStep.modelled`.
    `cost` comes from `ddp.cost`. The other arguments are those of `ddp.simulate`.

    There is a best cap only because allreduces overlap the backward pass. Without overlap, one bucket is never slower:

    >>> from rankscope.cluster import Link
    >>> from rankscope.train.ddp import cost
    >>> local = LocalStep.modelled([1 << 20] * 64, backward_s=0.064)
    >>> ring = cost(Link(alpha_s=50e-6, bytes_per_s=2e9), num_ranks=8)
    >>> print(recommend(local, ring))
    use DistributedDataParallel(module, bucket_cap_mb=8): 104 ms per step, 12.5 % less than the default's 119 ms
    8 buckets; each step waits for them for 8.32 ms, 8 % of its time
    nearby caps: 4 MiB 106 ms, 16 MiB 111 ms
    >>> recommend(local, ring, overlap=False).chosen.num_buckets
    1

    Raises ValueError if a cap is below 0 or `ddp.simulate` rejects an argument.
    """
    of_type("local", local, LocalStep)
    caps = sorted({number("caps_mb", cap, 0) for cap in several("caps_mb", caps_mb, "caps")})
    # The part of a step that no cap can change: all before the last backward, and the optimizer.
    rest_of_step_s = backward_begin_s(local, accumulation) + local.optimizer_s

    def candidate(cap: float | None, cost: Cost) -> CapCandidate:
        launched = launches(local, default_buckets(local, cap))
        last = last_backward(local, launched, cost, contention, overlap)
        return CapCandidate(cap, len(launched.launch_s), rest_of_step_s + last.end_s, last.wait_s)

    return Recommendation(
        candidates=tuple(candidate(cap, cost) for cap in caps),
        default=candidate(None, cost),
        alone_s=candidate(None, no_allreduce).step_s,
    )
