"""`recommend`: the predicted step for each bucket cap, and which cap to set."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import NamedTuple

import msgspec

from ...common.checks import number, of_type, several, whole
from ...common.units import percent_words, times_in_one_unit
from ...common.words import count_of
from ...networks import Cost
from .bucketing import MIB, Buckets
from .local import Contention, LocalStep
from .model import FREE, last_backward

_NEAR = 1.01  # steps within this factor of each other: the model cannot resolve smaller differences
_MOST_BUCKETS = 100  # of the caps that are tried: more could hide no more than another hundredth of the gradients
_FINEST = 1.02  # the least factor between two caps that are tried


class CapCandidate(NamedTuple):
    """The predicted step with a cap in MiB (None is DDP's default); `wait_s` of it is spent waiting for allreduces."""

    bucket_cap_mb: float | None
    num_buckets: int
    step_s: float
    wait_s: float

    @property
    def name(self) -> str:
        return "25 MiB (default)" if self.bucket_cap_mb is None else f"{self.bucket_cap_mb:g} MiB"


class Recommendation(msgspec.Struct, frozen=True, dict=True):
    """The candidates by rising cap, DDP's default, and the step without communication.

    A step consists of `alone_s`, the time by which allreduces slow computing down, and the time spent waiting for them.
    """

    candidates: tuple[CapCandidate, ...]
    default: CapCandidate
    alone_s: float

    @cached_property
    def shortest(self) -> CapCandidate:
        """The candidate with the shortest step."""
        return min((self.default, *self.candidates), key=lambda candidate: candidate.step_s)

    @cached_property
    def chosen(self) -> CapCandidate:
        """The fewest buckets within 1 % of the shortest step that save 1 % of the default's, else DDP's default."""
        longest_s = min(_NEAR * self.shortest.step_s, self.default.step_s / _NEAR)
        near = [candidate for candidate in self.candidates if candidate.step_s <= longest_s < self.default.step_s]
        return min(near, key=lambda candidate: (candidate.num_buckets, candidate.step_s), default=self.default)

    @property
    def bucket_cap_mb(self) -> float | None:
        """The recommended argument for DistributedDataParallel; None is its default."""
        return self.chosen.bucket_cap_mb

    def __str__(self) -> str:
        """The advice, the buckets and the wait, and the shortest step if that is another one, in a line each."""
        chosen = self.chosen
        shortest = self.shortest
        default_time, time, shortest_time, wait = times_in_one_unit(
            self.default.step_s, chosen.step_s, shortest.step_s, chosen.wait_s
        )
        if chosen is self.default:
            advice = f"keep the default bucket_cap_mb: {time} per step; no cap saves more than 1 %"
        else:
            call = f"use DistributedDataParallel(module, bucket_cap_mb={chosen.bucket_cap_mb:g})"
            gain = percent_words(1 - chosen.step_s / self.default.step_s, 1)
            advice = f"{call}: {time} per step, {gain} less than the default's {default_time}"
        lines = [advice, f"{count_of(chosen.num_buckets, 'bucket')}, for which the rank waits {wait} per step"]
        if shortest is not chosen:
            lines.append(f"shortest: {shortest_time} with {count_of(shortest.num_buckets, 'bucket')}, {shortest.name}")
        return "\n".join(lines)

    __repr__ = __str__  # for a notebook, which shows the last value of a cell


def recommend(
    local: LocalStep,
    cost: Cost,
    *,
    caps_mb: Iterable[float] | None = None,
    contention: Contention = FREE,
    accumulation: int = 1,
    overlap: bool = True,
) -> Recommendation:
    """Predict the step for each cap and for DDP's default, and recommend the fewest buckets within 1 % of the shortest.

    `local` comes from `ddp.measure_local_step`, on as many ranks as share a machine, or from `LocalStep.modelled`.
    `cost` comes from `ddp.cost`. By default, `caps_mb` are powers of two, and a cap for each way to fill up to about
    100 buckets, unless it differs from the one before by less than 2 %. The other arguments are those of
    `ddp.simulate`.

    There is a best cap only because allreduces overlap the backward pass. Without overlap, one bucket is never slower:

    >>> from rankscope.cluster import Link
    >>> from rankscope.train.ddp import cost
    >>> local = LocalStep.modelled([1 << 20] * 64, backward_s=0.064)
    >>> ring = cost(Link(alpha_s=50e-6, bytes_per_s=2e9), num_ranks=8)
    >>> print(recommend(local, ring))
    use DistributedDataParallel(module, bucket_cap_mb=8): 104 ms per step, 12.5 % less than the default's 119 ms
    8 buckets, for which the rank waits 8.32 ms per step
    >>> recommend(local, ring, overlap=False).chosen.num_buckets
    1

    Raises ValueError if a cap is below 0 or `ddp.simulate` rejects an argument.
    """
    of_type("local", local, LocalStep)
    num_passes = whole("accumulation", accumulation, 1)
    if caps_mb is None:
        ways = _ways_to_fill(local)
    else:
        ways = {number("caps_mb", cap, 0): local.buckets(cap) for cap in several("caps_mb", caps_mb, "caps")}
    # The part of a step that no cap can change: all before the last backward, and the optimizer.
    rest_s = num_passes * local.forward_s + (num_passes - 1) * local.backward_s + local.optimizer_s

    def candidate(cap: float | None, buckets: Buckets) -> CapCandidate:
        last = last_backward(local, buckets, cost, contention, overlap)
        return CapCandidate(cap, len(buckets), rest_s + last.end_s, last.wait_s)

    alone_s = rest_s + local.backward_s + local.unpack_s
    candidates = tuple([candidate(cap, ways[cap]) for cap in sorted(ways)])
    return Recommendation(candidates, candidate(None, local.buckets()), alone_s)


@lru_cache(maxsize=16)  # they do not depend on the network
def _ways_to_fill(local: LocalStep) -> dict[float, Buckets]:
    """Return the buckets of caps in MiB: of powers of two from 1 to the first that holds all gradients, and of each way
    to fill buckets, the shortest number with which they are the same.
    """
    caps = [1.0]
    while caps[-1] * MIB < local.num_bytes:
        caps.append(2 * caps[-1])
    ways = {cap: local.buckets(cap) for cap in caps}
    cap_bytes = max(local.num_bytes // _MOST_BUCKETS, 1)
    while True:
        buckets = local.buckets(cap_bytes / MIB)
        bucket_bytes = [sum(local.gradients[index].num_bytes for index in bucket) for bucket in buckets]
        full_bytes = min([num_bytes for num_bytes in bucket_bytes if num_bytes >= cap_bytes], default=0)
        if not full_bytes:  # no bucket reaches this cap, nor a larger one
            return ways
        ways[_short_mb(cap_bytes, full_bytes)] = buckets
        cap_bytes = max(full_bytes + 1, math.ceil(_FINEST * cap_bytes))


def _short_mb(low_bytes: int, high_bytes: int) -> float:
    """Return the number of MiB from `low_bytes` to `high_bytes` with the fewest decimals.

    >>> _short_mb(7 * MIB + 1, 8 * MIB), _short_mb(200_000, 220_000)
    (8.0, 0.2)
    """
    for decimals in range(9):
        scale = 10.0**decimals
        cap_mb = math.ceil(low_bytes / MIB * scale) / scale
        if low_bytes <= int(cap_mb * MIB) <= high_bytes:
            return cap_mb
    return low_bytes / MIB
