"""`simulate_step`: one training step under DDP, the backward and the allreduces of its buckets side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..timeline import Span, Timeline
from ..values.checks import of_type, several, truth, whole
from .cost import Cost, costs_s
from .launches import Buckets, Launches, default_launches, launches
from .local_step import FREE, MOST_ACCUMULATION, Contention, LocalStep, Seconds


class LastBackward(NamedTuple):
    """The last micro-batch from the start of its backward: when that ends, and what is done when for each bucket."""

    backward_s: float
    allreduces: list[tuple[float, float]]
    unpacked: list[tuple[float, float]]

    @property
    def end_s(self) -> float:
        return self.unpacked[-1][1] if self.unpacked else self.backward_s

    @property
    def wait_s(self) -> float:
        """Seconds after the backward in which the rank waits for an allreduce."""
        return self.end_s - self.backward_s - sum(stop_s - start_s for start_s, stop_s in self.unpacked)


def simulate_step(
    local: LocalStep, cost: Cost, *, bucket_cap_mb: float | None = None, buckets: Buckets | None = None,
    contention: Contention = FREE, accumulation: int = 1, overlap: bool = True,
) -> Timeline:  # fmt: skip
    """Return what one rank does in a step of `accumulation` micro-batches; the others do the same at the same time.

    Lane "compute" has a forward and a backward for each micro-batch (their item), waiting for allreduces, unpacking
    (item: its bucket), and the optimizer; lane "allreduce" a span for each bucket, by its place in launch order. All
    micro-batches but the last run under ``no_sync`` and communicate nothing.

    A bucket is launched when all its gradients are ready and all earlier ones were launched, and its allreduce, of
    ``cost(bytes)`` seconds where nothing holds it up, starts when those before it have ended. While one goes on beside
    the backward or beside unpacking, each of the two is slower by its factor in `contention`. Without `overlap` all
    buckets are launched at the end of the backward. After it, each is waited for and unpacked in turn.

    `buckets`, lists of places in ``local.parameters``, are by default those of DDP with `bucket_cap_mb`: see
    `default_buckets`. `cost` takes an array of sizes: see `allreduce_cost`. Raises ValueError for buckets that do not
    hold every parameter once, and for costs that no allreduce has.

    >>> local = LocalStep.modelled([4 << 20] * 4, backward_s=0.4)
    >>> step = simulate_step(local, lambda num_bytes: num_bytes / (40 << 20), bucket_cap_mb=8)
    >>> [(span.item, round(span.start_s, 3), round(span.stop_s, 3)) for span in step.select(lane="allreduce")]
    [(0, 0.4, 0.6), (1, 0.6, 0.8)]
    >>> round(step.makespan_s, 3), round(step.overlap_s("backward", "allreduce"), 3)
    (0.8, 0.2)
    """
    of_type("local", local, LocalStep)
    if buckets is not None and bucket_cap_mb is not None:
        raise ValueError(f"bucket_cap_mb must be None where buckets are given, got {bucket_cap_mb!r}")
    launched = default_launches(local, bucket_cap_mb) if buckets is None else launches(local, buckets)
    last, (first_s, spans) = last_backward(local, launched, cost, contention, overlap), first_ones(local, accumulation)
    spans += [Span(0, lane, kind, item, first_s + start, first_s + stop) for lane, kind, item, start, stop in
              _last_spans(local, last, accumulation - 1)]  # fmt: skip
    return Timeline.of(spans)


def step_seconds(
    local: LocalStep,
    cost: Cost,
    caps_mb: Sequence[float | None],
    *,
    contention: Contention = FREE,
    accumulation: int = 1,
    overlap: bool = True,
) -> Seconds:
    """Return for each cap the makespan of `simulate_step`, without making the timelines.

    >>> local = LocalStep.modelled([4 << 20] * 4, backward_s=0.4)
    >>> step_seconds(local, lambda num_bytes: 0.001 + num_bytes / (80 << 20), [4, 8, 16]).round(3)
    array([0.651, 0.701, 0.801])
    """
    of_type("local", local, LocalStep)
    others_s = first_ones(local, accumulation)[0] + local.optimizer_s
    each = (default_launches(local, cap) for cap in several("caps_mb", caps_mb, "caps"))
    return np.array([others_s + last_backward(local, launched, cost, contention, overlap).end_s for launched in each])


def _last_spans(local: LocalStep, last: LastBackward, micro: int) -> Iterator[tuple[str, str, int, float, float]]:
    """Lane, kind, item, start and stop of the last micro-batch and all that follows, from its backward's start."""
    yield "compute", "forward", micro, -local.forward_s, 0.0
    yield "compute", "backward", micro, 0.0, last.backward_s
    ended_s = last.backward_s
    for item, (start_s, stop_s) in [*enumerate(last.unpacked), (-1, (last.end_s, last.end_s))]:
        if start_s > ended_s and (stop_s > start_s or item == -1):
            yield "compute", "wait", -1, ended_s, start_s
        if stop_s > start_s:
            yield "compute", "unpack", item, start_s, stop_s
            ended_s = stop_s
    for item, times_s in enumerate(last.allreduces):
        yield "allreduce", "allreduce", item, *times_s
    if local.optimizer_s:
        yield "compute", "optimizer", -1, last.end_s, last.end_s + local.optimizer_s


def first_ones(local: LocalStep, accumulation: int) -> tuple[float, list[Span]]:
    """Return when the last micro-batch's backward starts, and the spans of those before it, under ``no_sync``."""
    start_s, spans = 0.0, []
    for item in range(whole("accumulation", accumulation, 1, MOST_ACCUMULATION) - 1):
        middle_s = start_s + local.forward_s
        spans += [Span(0, "compute", "forward", item, start_s, middle_s)]
        start_s = middle_s + local.backward_s
        spans += [Span(0, "compute", "backward", item, middle_s, start_s)]
    return start_s + local.forward_s, spans


def last_backward(
    local: LocalStep, launched: Launches, cost: Cost, contention: Contention = FREE, overlap: bool = True
) -> LastBackward:
    """Return what `simulate_step` says from the start of the last backward to the optimizer."""
    costs = costs_s(cost, launched.num_bytes.astype(float)).tolist()
    slow = of_type("contention", contention, Contention)
    launch_s = launched.launch_s.tolist() if truth("overlap", overlap) else [local.backward_s] * len(costs)
    backward_s, starts, stops, left = _beside_backward(launch_s, costs, local.backward_s, slow)
    unpack_s = (launched.num_bytes * (local.unpack_s / max(local.num_bytes, 1))).tolist()
    later, unpacked = _beside_unpacking(backward_s, left, unpack_s, slow)
    stops += later
    starts += stops[len(starts) - 1 : -1]  # the others follow on one another
    return LastBackward(backward_s, list(zip(starts, stops, strict=True)), unpacked)


def _beside_backward(
    launch_s: list[float], costs: list[float], backward_s: float, slow: Contention
) -> tuple[float, list[float], list[float], list[float]]:
    """When the backward ends, when allreduces start and stop until then, and the seconds that the others still take."""
    now, done, starts, stops = 0.0, 0.0, list[float](), list[float]()  # done: of the backward, in its own seconds
    for place, (launch, alone_s) in enumerate(zip(launch_s, costs, strict=True)):
        if launch > done:  # until then nothing is on the wire
            now, done = now + (launch - done), launch
        starts.append(now)
        held_s, left_s = alone_s * slow.communication, (backward_s - done) * slow.compute
        if held_s >= left_s:  # the backward ends first
            rest_s = (held_s - left_s) / slow.communication
            return now + left_s, starts, stops, [rest_s, *costs[place + 1 :]]
        now, done = now + held_s, min(done + held_s / slow.compute, backward_s)
        stops.append(now)
    return now + (backward_s - done), starts, stops, []


def _beside_unpacking(
    now: float, left: list[float], unpack_s: list[float], slow: Contention
) -> tuple[list[float], list[tuple[float, float]]]:
    """When the last allreduces stop, all launched by now, and from when to when each bucket is unpacked, in turn."""
    stops, unpacked = list[float](), []
    num_before = len(unpack_s) - len(left)
    for place, work_s in enumerate(unpack_s):
        while num_before + len(stops) <= place:
            now += left[len(stops)]
            stops.append(now)
        start = now
        while work_s and len(stops) < len(left):
            rest_s, held_s = left[len(stops)], work_s * slow.compute
            if held_s < rest_s * slow.communication:
                now, work_s, left[len(stops)] = now + held_s, 0.0, rest_s - held_s / slow.communication
            else:
                now, work_s = now + rest_s * slow.communication, work_s - rest_s * slow.communication / slow.compute
                stops.append(now)
        now += max(work_s, 0.0)
        unpacked.append((start, now))
    return stops, unpacked
