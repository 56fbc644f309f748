"""`simulate`: one rank's training step under DDP, its computing and the allreduces of its buckets meanwhile."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

import numpy as np

from ...common.checks import function, number, of_type, optional, whole
from ...networks import Cost
from ...timeline import Span, Tape, Timeline
from .bucketing import Buckets
from .local import Contention, LocalStep

FREE = Contention()
NO_ITEM = -1  # the item of a span that belongs to no micro-batch and no bucket, such as a wait


def simulate(
    local: LocalStep,
    cost: Cost,
    *,
    bucket_cap_mb: float | None = None,
    buckets: Iterable[Iterable[int]] | None = None,
    contention: Contention = FREE,
    accumulation: int = 1,
    overlap: bool = True,
) -> Timeline:
    """Simulate a step of `accumulation` micro-batches and return one rank's timeline. All ranks do the same.

    Lane "compute" has a forward and a backward span for each micro-batch (their item), then spans in which the rank
    waits for allreduces, unpacks a bucket (its item), and runs the optimizer. Lane "allreduce" has one span per bucket;
    its item is the bucket's index in launch order. All micro-batches except the last run under ``no_sync`` and do not
    communicate.

    A bucket is launched when all its gradients are ready and all earlier buckets are launched. Its allreduce takes
    ``cost(bytes)`` seconds by itself and starts when all earlier ones have ended. While an allreduce runs at the same
    time as the backward pass or unpacking, each is slower by its factor in `contention`. If `overlap` is false, all
    buckets are launched at the end of the backward pass. After it, the rank waits for buckets and unpacks them in turn.

    `buckets` are lists of numbers of ``local.gradients``, by default `LocalStep.buckets` with `bucket_cap_mb`. `cost`
    receives an array of sizes; see `ddp.cost`. Raises ValueError if the buckets do not contain every gradient once, or
    if a cost is negative or not finite.

    >>> local = LocalStep.modelled([4 << 20] * 4, backward_s=0.4)
    >>> step = simulate(local, lambda num_bytes: num_bytes / (40 << 20), bucket_cap_mb=8)
    >>> [(span.item, round(span.start_s, 3), round(span.stop_s, 3)) for span in step.select(lane="allreduce")]
    [(0, 0.4, 0.6), (1, 0.6, 0.8)]
    >>> round(step.makespan_s, 3), round(step.overlap_s("backward", "allreduce"), 3)
    (0.8, 0.2)
    """
    of_type("local", local, LocalStep)
    optional("bucket_cap_mb", bucket_cap_mb, number, 0)
    used = local.buckets(bucket_cap_mb)
    if buckets is not None:
        if bucket_cap_mb is not None:
            raise ValueError(f"bucket_cap_mb must be None where buckets are given, got {bucket_cap_mb!r}")
        used = tuple(map(tuple, buckets))
        if () in used or sorted(chain(*used)) != list(range(len(local.gradients))):
            raise ValueError(f"buckets must hold each of {len(local.gradients)} gradients once, got {used!r}")
    last = last_backward(local, used, cost, contention, overlap)
    tape = Tape()
    num_passes = whole("accumulation", accumulation, 1)
    for micro in range(num_passes - 1):
        tape.add(0, "compute", "forward", micro, local.forward_s)
        tape.add(0, "compute", "backward", micro, local.backward_s)
    begin_s = tape.add(0, "compute", "forward", num_passes - 1, local.forward_s)
    free_s = tape.add(0, "compute", "backward", num_passes - 1, last.backward_s)
    for bucket, (start_s, stop_s) in enumerate(last.unpacked):
        if stop_s > start_s:
            if begin_s + start_s > free_s:
                tape.wait(0, "compute", "wait", NO_ITEM, begin_s + start_s)
            free_s = tape.wait(0, "compute", "unpack", bucket, begin_s + stop_s)
    if begin_s + last.end_s > free_s:  # without time to unpack, the wait for all buckets is one span
        tape.wait(0, "compute", "wait", NO_ITEM, begin_s + last.end_s)
    if local.optimizer_s:
        tape.add(0, "compute", "optimizer", NO_ITEM, local.optimizer_s)
    for bucket, (start_s, stop_s) in enumerate(last.allreduces):
        tape.spans.append(Span(0, "allreduce", "allreduce", bucket, begin_s + start_s, begin_s + stop_s))
    return Timeline.of(tape.spans)


# ---- the last backward pass, during which buckets are reduced


class LastBackward(NamedTuple):
    """The last micro-batch, in seconds from the start of its backward, which ends at `backward_s`.

    `allreduces` and `unpacked` have the start and the stop of each bucket's allreduce and of its unpacking.
    """

    backward_s: float
    allreduces: list[tuple[float, float]]
    unpacked: list[tuple[float, float]]

    @property
    def end_s(self) -> float:
        """When the last bucket is unpacked, or the end of the backward if there are no buckets."""
        return self.unpacked[-1][1] if self.unpacked else self.backward_s

    @property
    def wait_s(self) -> float:
        """How many seconds the rank waits for allreduces after the backward."""
        return self.end_s - self.backward_s - sum(stop_s - start_s for start_s, stop_s in self.unpacked)


def last_backward(
    local: LocalStep, buckets: Buckets, cost: Cost, contention: Contention = FREE, overlap: bool = True
) -> LastBackward:
    """Return the part of `simulate` from the start of the last backward to the optimizer."""
    of_type("contention", contention, Contention)
    ready_s = np.nan_to_num(local.ready_s).tolist()  # nobody waits for a gradient that never comes
    num_bytes = []
    launch_s = []
    launched_s = 0.0 if overlap else local.backward_s
    for bucket in buckets:
        launched_s = max(launched_s, *[ready_s[index] for index in bucket])
        launch_s.append(launched_s)
        num_bytes.append(sum([local.gradients[index].num_bytes for index in bucket]))
    sizes = np.array(num_bytes, dtype=float)
    seconds = np.asarray(function("cost", cost, "of bytes, such as ddp.cost makes")(sizes), dtype=float)
    if not (np.isfinite(seconds) & (seconds >= 0)).all():
        raise ValueError(f"cost must give finite seconds of at least 0, got {seconds}")
    costs_s = np.broadcast_to(seconds, sizes.shape).tolist()
    # Each bucket takes a share of the time for unpacking in proportion to its bytes, which may all be 0.
    unpack_s_per_byte = local.unpack_s / max(sum(num_bytes), 1)
    work_s = [local.backward_s, *[size * unpack_s_per_byte for size in num_bytes]]
    return _overlapped(work_s, costs_s, launch_s, contention)


def _overlapped(
    work_s: list[float], allreduce_s: list[float], launch_s: list[float], contention: Contention
) -> LastBackward:
    """Work through a list of works while the allreduces run one after the other.

    The first work is the backward, the next ones unpack bucket 0, bucket 1, and so on. All seconds given are without
    contention. `launch_s` has the seconds of the backward after which each bucket is launched. The loop goes from event
    to event: the launch of a bucket, the end of an allreduce, or the end of a work.
    """
    num_buckets = len(allreduce_s)
    now_s = 0.0
    work_done_s = 0.0  # the part of the current work that is done, in seconds without contention
    allreduce_left_s = 0.0  # the part of the current allreduce that is left, in seconds without contention
    allreduce_starts_s: list[float] = []
    allreduce_stops_s: list[float] = []
    work_stops_s: list[float] = []
    while len(work_stops_s) < len(work_s):
        work = len(work_stops_s)  # the current work
        bucket = len(allreduce_stops_s)  # the one whose allreduce is under way or the next to start
        # After the backward, which is work 0, all buckets are launched.
        is_launched = bucket < num_buckets and (work > 0 or launch_s[bucket] <= work_done_s)
        # Work n unpacks bucket n - 1, and so it waits until the allreduces of n buckets have ended.
        is_working = work <= bucket
        if is_launched and len(allreduce_starts_s) == bucket:
            allreduce_starts_s.append(now_s)
            allreduce_left_s = allreduce_s[bucket]

        # The work goes on to its end, or only to the launch of the next bucket, at which an allreduce begins.
        until_s = work_s[work]
        if work == 0 and bucket < num_buckets and not is_launched:
            until_s = launch_s[bucket]
        to_work_s = math.inf
        if is_working:
            left_s = max(until_s - work_done_s, 0.0)  # rounding may make the difference negative
            to_work_s = left_s * (contention.compute if is_launched else 1.0)
        to_reduce_s = math.inf
        if is_launched:
            to_reduce_s = allreduce_left_s * (contention.communication if is_working else 1.0)

        if to_work_s <= to_reduce_s:  # the work gets there before the allreduce ends
            now_s += to_work_s
            work_done_s = until_s
            # Not below 0, by rounding or because no allreduce is under way. The next one begins with its own cost.
            allreduce_left_s = max(allreduce_left_s - to_work_s / contention.communication, 0.0)
            if until_s == work_s[work]:  # it has ended, and not only got to a launch
                work_stops_s.append(now_s)
                work_done_s = 0.0
        else:
            now_s += to_reduce_s
            allreduce_stops_s.append(now_s)
            if is_working:
                work_done_s += to_reduce_s / contention.compute
    unpack_starts_s = map(max, work_stops_s, allreduce_stops_s)  # each after the work before it, and its allreduce
    unpacked = list(zip(unpack_starts_s, work_stops_s[1:], strict=True))
    allreduces = list(zip(allreduce_starts_s, allreduce_stops_s, strict=True))
    return LastBackward(work_stops_s[0], allreduces, unpacked)
