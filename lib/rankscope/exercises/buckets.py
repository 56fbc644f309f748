"""Exercises of notebook 09: DDP's buckets and overlap."""

from __future__ import annotations

from typing import Any

from ..ddp import Contention, LocalStep, simulate
from ..ddp.step import default_buckets
from .answers import Check, is_number

_MIB = 1 << 20


def _num_buckets(answer: Any) -> str | None:
    """How many buckets ten gradients of 4 MiB make with a cap of 10 MiB."""
    right = len(default_buckets(LocalStep.modelled([4 * _MIB] * 10, backward_s=1.0), bucket_cap_mb=10))
    if is_number(answer) and answer == right:
        return None
    return f"a bucket closes once it holds its cap or more, and a gradient is never split: that gives not {answer!r}"


def _largest_cap(answer: Any) -> str | None:
    """The largest whole cap that leaves at most 4.5 ms exposed of 60 layers of 1 MiB, 1 ms a MiB on the wire."""
    if not is_number(answer) or not 1 <= answer <= 60 or answer != int(answer):
        return f"a whole number of MiB from 1 to 60 is asked for, got {answer!r}"
    if (wait_s := _wait_s(answer)) > 0.0045:
        return f"with {answer} MiB the rank waits {wait_s * 1e3:.1f} ms"
    larger = next((cap for cap in range(int(answer) + 1, 61) if _wait_s(cap) <= 0.0045), None)
    return f"with {answer} MiB it waits {wait_s * 1e3:.1f} ms, but so little with a larger one, too" if larger else None


def _wait_s(cap_mb: float) -> float:
    local = LocalStep.modelled([_MIB] * 60, backward_s=0.100)
    return simulate(local, lambda num_bytes: num_bytes / _MIB * 1e-3, bucket_cap_mb=cap_mb).select(kind="wait").busy_s


def _useless_overlap(answer: Any) -> str | None:
    """The factor, alike for both, from which on overlap gains nothing."""
    if not is_number(answer) or not 1 <= answer <= 100:
        return f"a factor from 1 to 100 is asked for, got {answer!r}"
    local = LocalStep.modelled([_MIB] * 40, backward_s=0.100)

    def step_ms(overlap: bool) -> float:
        held = Contention(float(answer), float(answer))
        cost = 20e-6  # of each bucket, whatever its bytes: the last one's, which nothing can hide, is next to nothing
        return simulate(local, lambda _: cost, bucket_cap_mb=1, contention=held, overlap=overlap).makespan_s * 1e3

    beside, apart = step_ms(True), step_ms(False)
    if abs(beside - apart) < 0.01 * 40 * 20e-3:
        return None
    return f"with {answer} a step takes {beside:.2f} ms with overlap, and {apart:.2f} ms without"


EXERCISES: dict[str, Check] = {
    "09.1": _num_buckets,
    "09.2": _largest_cap,
    "09.3": _useless_overlap,
}
