"""One rank's training step under DDP, predicted: its computing, and the allreduces of its buckets meanwhile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...common.checks import check_field, each, number, of_type, several, truth, whole
from ...common.words import count_of
from ...timeline import Span, Timeline
from .buckets import Buckets, ParameterSpec, buckets_of, parameter_specs
from .buckets import buckets as ddp_buckets
from .cost import Cost, Seconds, costs_s

if TYPE_CHECKING:
    from .buckets import DDPBuckets, Parameters

MOST_ACCUMULATION = 10_000  # micro-batches of a step
NO_ITEM = -1  # the item of a span that belongs to no micro-batch and no bucket, such as a wait


# ---- the input of a prediction


def numbers(name: str, values: Any) -> Seconds:
    """Return a read-only copy of the values as float64, None being nan; ValueError if they are not numbers."""
    try:
        copied = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a list of numbers, got {values!r}") from None
    copied.flags.writeable = False
    return copied


class LocalStep(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The times of forward, backward and optimizer of one rank in seconds, and when each gradient is ready.

    `parameters` are those that require a gradient, in the order of ``module.parameters()``. `ready_s` has one time per
    parameter, from the start of the backward pass, or NaN for a parameter that gets no gradient. `unpack_s` is the time
    that DDP needs to copy all sums from its buckets into the gradients, 0 with ``gradient_as_bucket_view``. None of
    these depend on other ranks, buckets or communication.

    Raises ValueError if a time is negative, if `ready_s` and `parameters` differ in length, or if a gradient is ready
    after the backward pass has ended.

    >>> step = LocalStep.modelled([400, 100, 500], backward_s=0.010)
    >>> step.ready_s, step.ready_order
    (array([0.01 , 0.006, 0.005]), (2, 1, 0))
    """

    parameters: tuple[ParameterSpec, ...]
    ready_s: Seconds
    forward_s: float
    backward_s: float
    optimizer_s: float = 0.0
    unpack_s: float = 0.0

    def __post_init__(self) -> None:
        check_field(self, "parameters", each, of_type, ParameterSpec)
        check_field(self, "ready_s", numbers)
        check_field(self, "forward_s", number, 0)
        check_field(self, "backward_s", number, 0)
        check_field(self, "optimizer_s", number, 0)
        check_field(self, "unpack_s", number, 0)
        if self.ready_s.shape != (len(self.parameters),):
            wanted = count_of(len(self.parameters), "parameter")
            raise ValueError(f"ready_s must have one time for each of {wanted}, got shape {self.ready_s.shape}")
        in_backward = (self.ready_s >= 0) & (self.ready_s <= self.backward_s)
        is_wrong = ~np.isnan(self.ready_s) & ~in_backward
        if is_wrong.any():
            index = int(is_wrong.argmax())
            raise ValueError(
                f"ready_s must lie in the backward of {self.backward_s} s, got {self.ready_s[index]} for "
                f"{self.parameters[index].name!r}"
            )

    @classmethod
    def modelled(
        cls,
        parameters: Parameters | Sequence[int],
        backward_s: float,
        *,
        forward_s: float | None = None,
        optimizer_s: float = 0.0,
        unpack_s: float = 0.0,
    ) -> LocalStep:
        """Return a step whose backward pass goes through the parameters from the last to the first.

        `parameters` is a module, or a list in which a plain number is the size of a parameter in bytes. Each parameter
        takes a share of `backward_s` in proportion to its bytes, as in a stack of linear layers. `forward_s` defaults
        to half of `backward_s`, because a backward pass multiplies two matrices where a forward pass multiplies one.
        """
        listed: Any = parameters
        if hasattr(parameters, "named_parameters"):  # a module
            listed = parameter_specs(listed)
        specs = []
        for index, parameter in enumerate(several("parameters", listed, "ParameterSpec values or bytes")):
            if isinstance(parameter, ParameterSpec):
                specs.append(parameter)
            else:
                specs.append(ParameterSpec(str(index), parameter))
        backward_s = number("backward_s", backward_s, 0)
        if forward_s is None:
            forward_s = backward_s / 2
        sizes_in_backward = [float(spec.num_bytes) for spec in reversed(specs)]
        # The bytes of each gradient and of all that are ready before it, which are those of later parameters.
        ready_bytes = np.cumsum(sizes_in_backward)[::-1]
        ready_s = np.zeros(len(specs))
        if specs and ready_bytes[0]:  # parameters may be empty tensors
            total_bytes = ready_bytes[0]  # the gradient of the first parameter is the last
            ready_s = ready_bytes / total_bytes * backward_s
        return cls(tuple(specs), ready_s, forward_s, backward_s, optimizer_s, unpack_s)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each gradient."""
        sizes = np.array([spec.num_bytes for spec in self.parameters], dtype=np.int64)
        sizes.flags.writeable = False
        return sizes

    @property
    def num_bytes(self) -> int:
        """The bytes of all gradients."""
        return int(self.sizes.sum())

    @cached_property
    def ready_order(self) -> tuple[int, ...]:
        """The indices of parameters in the order in which their gradients get ready, without those that never do.

        Of parameters that are ready at the same time, the last one comes first.
        """
        indices = np.arange(len(self.parameters))
        order = np.lexsort((-indices, self.ready_s))  # by time, and by falling index if times are equal
        has_gradient = ~np.isnan(self.ready_s[order])
        return tuple(order[has_gradient].tolist())


class Contention(msgspec.Struct, frozen=True):
    """How much computing and communicating slow each other down when they share cores, memory or SMs.

    During an allreduce, computing takes `compute` times as long. While the rank computes, an allreduce takes
    `communication` times as long. A factor of 1 means no contention.

    >>> Contention(compute=0.5)
    Traceback (most recent call last):
    ValueError: compute must be a finite number of at least 1, got 0.5
    """

    compute: float = 1.0
    communication: float = 1.0

    def __post_init__(self) -> None:
        check_field(self, "compute", number, 1)
        check_field(self, "communication", number, 1)


FREE = Contention()  # no contention


# ---- when buckets are launched, if nothing slows the backward down


class Launches(NamedTuple):
    """After how many seconds of the backward pass each bucket is launched, in launch order, and its bytes."""

    launch_s: Seconds
    num_bytes: NDArray[np.int64]


def default_buckets(local: LocalStep, bucket_cap_mb: float | None = None) -> Buckets:
    """Return the buckets of DDP after it has rebuilt them in the order in which gradients get ready.

    If a parameter gets no gradient, they are those of ``find_unused_parameters``, which are never rebuilt.

    >>> default_buckets(LocalStep.modelled([1 << 20] * 4, backward_s=1.0), bucket_cap_mb=2)
    ((3, 2), (1, 0))
    """
    if not local.parameters:  # DDP refuses such a module, so `ddp.buckets` does, too
        return Buckets([])
    order = local.ready_order
    has_unused = len(order) < len(local.parameters)
    return Buckets(ddp_buckets(local.parameters, bucket_cap_mb, ready_order=order, find_unused_parameters=has_unused))


def launches(local: LocalStep, buckets: Buckets) -> Launches:
    """Return when each bucket is launched: once its gradients are ready and all earlier buckets were launched."""
    if not buckets:
        return Launches(np.empty(0), np.empty(0, dtype=np.int64))
    # All parameters, bucket by bucket; bucket i has those from position `bucket_starts[i]` to the next start.
    parameters = np.fromiter(chain.from_iterable(buckets), dtype=np.int64)
    bucket_starts = np.cumsum([0, *(len(bucket) for bucket in buckets[:-1])])
    ready_s = np.nan_to_num(local.ready_s, nan=0.0)[parameters]  # nobody waits for a gradient that never comes
    bucket_ready_s = np.maximum.reduceat(ready_s, bucket_starts)
    bucket_bytes = np.add.reduceat(local.sizes[parameters], bucket_starts)
    return Launches(launch_s=np.maximum.accumulate(bucket_ready_s), num_bytes=bucket_bytes)


# ---- the step


def simulate(
    local: LocalStep,
    cost: Cost,
    *,
    bucket_cap_mb: float | None = None,
    buckets: Iterable[Iterable[int]] | DDPBuckets | None = None,
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

    `buckets` are lists of indices into ``local.parameters`` or the result of `ddp.buckets`, by default those of DDP
    with `bucket_cap_mb`; see `default_buckets`. `cost` receives an array of sizes; see `ddp.cost`. Raises ValueError if
    the buckets do not contain every parameter once, or if a cost is negative or not finite.

    >>> local = LocalStep.modelled([4 << 20] * 4, backward_s=0.4)
    >>> step = simulate(local, lambda num_bytes: num_bytes / (40 << 20), bucket_cap_mb=8)
    >>> [(span.item, round(span.start_s, 3), round(span.stop_s, 3)) for span in step.select(lane="allreduce")]
    [(0, 0.4, 0.6), (1, 0.6, 0.8)]
    >>> round(step.makespan_s, 3), round(step.overlap_s("backward", "allreduce"), 3)
    (0.8, 0.2)
    """
    of_type("local", local, LocalStep)
    launched = _launches_of(local, bucket_cap_mb, buckets)
    begin_s = backward_begin_s(local, accumulation)
    last = last_backward(local, launched, cost, contention, overlap)
    spans = _passes(local, accumulation, last)
    spans += _waits_and_unpacking(last, begin_s)
    for item, (start_s, stop_s) in enumerate(last.allreduces):
        spans.append(Span(0, "allreduce", "allreduce", item, begin_s + start_s, begin_s + stop_s))
    if local.optimizer_s:
        end_s = begin_s + last.end_s
        spans.append(Span(0, "compute", "optimizer", NO_ITEM, end_s, end_s + local.optimizer_s))
    return Timeline.of(spans)


def _launches_of(
    local: LocalStep, bucket_cap_mb: float | None, buckets: Iterable[Iterable[int]] | DDPBuckets | None
) -> Launches:
    if buckets is None:
        return launches(local, default_buckets(local, bucket_cap_mb))
    if bucket_cap_mb is not None:
        raise ValueError(f"bucket_cap_mb must be None where buckets are given, got {bucket_cap_mb!r}")
    return launches(local, buckets_of("buckets", buckets, len(local.parameters)))


def backward_begin_s(local: LocalStep, accumulation: int) -> float:
    """Return when the backward pass of the last micro-batch starts."""
    num_passes = whole("accumulation", accumulation, 1, MOST_ACCUMULATION)
    return num_passes * local.forward_s + (num_passes - 1) * local.backward_s


def _passes(local: LocalStep, accumulation: int, last: LastBackward) -> list[Span]:
    """Return forward and backward of each micro-batch. The last backward, with the allreduces, may be slower."""
    spans = []
    for micro in range(accumulation):
        is_last = micro == accumulation - 1
        backward_s = last.backward_s if is_last else local.backward_s
        start_s = backward_begin_s(local, micro + 1)  # of this backward, as if it were the last of so many
        spans.append(Span(0, "compute", "forward", micro, start_s - local.forward_s, start_s))
        spans.append(Span(0, "compute", "backward", micro, start_s, start_s + backward_s))
    return spans


def _waits_and_unpacking(last: LastBackward, begin_s: float) -> list[Span]:
    """Return lane "compute" from the end of the last backward, which began at `begin_s`, to the optimizer.

    If unpacking takes no time, as with ``gradient_as_bucket_view``, it has no spans, and the wait for all buckets is
    one span.
    """
    spans = []
    free_s = begin_s + last.backward_s  # the end of the rank's last span
    for item, (start_s, stop_s) in enumerate(last.unpacked):
        if stop_s > start_s:
            if begin_s + start_s > free_s:
                spans.append(Span(0, "compute", "wait", NO_ITEM, free_s, begin_s + start_s))
            free_s = begin_s + stop_s
            spans.append(Span(0, "compute", "unpack", item, begin_s + start_s, free_s))
    end_s = begin_s + last.end_s
    if end_s > free_s:
        spans.append(Span(0, "compute", "wait", NO_ITEM, free_s, end_s))
    return spans


# ---- the last backward pass, during which buckets are reduced


class LastBackward(NamedTuple):
    """The last micro-batch, in seconds from the start of its backward.

    The backward ends at `backward_s`. The start and the stop of each bucket's allreduce are in `allreduces`, and those
    of its unpacking in `unpacked`.
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
    local: LocalStep, launched: Launches, cost: Cost, contention: Contention = FREE, overlap: bool = True
) -> LastBackward:
    """Return the part of `simulate` from the start of the last backward to the optimizer."""
    allreduce_s = costs_s(cost, launched.num_bytes.astype(float)).tolist()
    of_type("contention", contention, Contention)
    launch_s = [local.backward_s] * len(allreduce_s)
    if truth("overlap", overlap):
        launch_s = launched.launch_s.tolist()
    # Each bucket takes a share of the time for unpacking in proportion to its bytes.
    total_bytes = max(local.num_bytes, 1)  # not 0, if all parameters are empty tensors
    unpack_s = launched.num_bytes * (local.unpack_s / total_bytes)
    work_s = [local.backward_s, *unpack_s.tolist()]
    return _overlapped(work_s, allreduce_s, launch_s, contention)


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
        has_started = len(allreduce_starts_s) > bucket
        if is_launched and not has_started:
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
    unpack_spans = []
    for bucket in range(num_buckets):
        start_s = max(work_stops_s[bucket], allreduce_stops_s[bucket])  # after the work before it, and its allreduce
        unpack_spans.append((start_s, work_stops_s[bucket + 1]))
    return LastBackward(
        backward_s=work_stops_s[0],
        allreduces=list(zip(allreduce_starts_s, allreduce_stops_s, strict=True)),
        unpacked=unpack_spans,
    )
