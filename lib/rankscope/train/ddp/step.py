"""One rank's training step under DDP, predicted: what it computes, and the allreduces of its buckets meanwhile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...common.checks import count_of, number, of_type, several, truth, whole
from ...common.frozen import checked, each, frozen
from ...timeline import Span, Timeline
from .buckets import Buckets, ParameterSpec, buckets_of, parameter_specs
from .buckets import buckets as ddp_buckets
from .cost import Cost, Seconds, costs_s

if TYPE_CHECKING:
    from .buckets import DDPBuckets, Parameters

MOST_ACCUMULATION = 10_000  # micro-batches of a step


# ---- what goes into a prediction


def numbers(name: str, values: Any) -> Seconds:
    """Return a read-only copy of the values as float64, None being nan; ValueError if they are not numbers."""
    try:
        found = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a list of numbers, got {values!r}") from None
    found.flags.writeable = False
    return found


@frozen(eq=False)
class LocalStep:
    """Forward, backward and optimizer of one rank, in seconds, and when in the backward each gradient is ready.

    `parameters` are those that take part, in the order of ``module.parameters()``. `ready_s` has a time for each, from
    the start of the backward; nan for a parameter that gets no gradient. `unpack_s` is what DDP takes to copy all sums
    from its buckets into the gradients, 0 with ``gradient_as_bucket_view``. Nothing here depends on other ranks, on
    buckets, or on whether anything is communicated.

    Raises ValueError for negative times, for any other number of `ready_s`, and for a gradient that is ready after the
    backward has ended.

    >>> step = LocalStep.modelled([400, 100, 500], backward_s=0.010)
    >>> step.ready_s, step.ready_order
    (array([0.01 , 0.006, 0.005]), (2, 1, 0))
    """

    parameters: tuple[ParameterSpec, ...] = checked(each, ParameterSpec)
    ready_s: Seconds = checked(numbers)
    forward_s: float = checked(number, 0)
    backward_s: float = checked(number, 0)
    optimizer_s: float = checked(number, 0, default=0.0)
    unpack_s: float = checked(number, 0, default=0.0)

    def __attrs_post_init__(self) -> None:
        ready = self.ready_s
        if ready.shape != (len(self.parameters),):
            wanted = count_of(len(self.parameters), "parameter")
            raise ValueError(f"ready_s must have one time for each of {wanted}, got shape {ready.shape}")
        wrong = ~np.isnan(ready) & ~((ready >= 0) & (ready <= self.backward_s))
        if wrong.any():
            place = int(wrong.argmax())
            raise ValueError(
                f"ready_s must lie in the backward of {self.backward_s} s, got {ready[place]} for "
                f"{self.parameters[place].name!r}"
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
        """Return a step whose backward goes through the parameters from the last to the first.

        `parameters` is a module, or a list in which a plain number stands for a parameter of so many bytes. Each takes
        a share of `backward_s` in proportion to its bytes, as in a stack of linear layers. `forward_s` is half of the
        backward by default: a backward multiplies matrices twice where a forward does once.
        """
        given: Any = parameters
        if hasattr(given, "named_parameters"):
            given = parameter_specs(given)
        listed = enumerate(several("parameters", given, "ParameterSpec values or bytes"))
        specs = tuple([p if isinstance(p, ParameterSpec) else ParameterSpec(f"{n}", p) for n, p in listed])
        backward_s = number("backward_s", backward_s, 0)
        done = np.cumsum([float(spec.num_bytes) for spec in reversed(specs)])[::-1]
        ready = np.minimum(done / done[0], 1.0) * backward_s if done.size and done[0] else np.zeros(len(specs))
        return cls(specs, ready, backward_s / 2 if forward_s is None else forward_s, backward_s, optimizer_s, unpack_s)

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
        """The places of parameters in the order in which their gradients get ready, without those that never do."""
        order = np.lexsort((-np.arange(len(self.parameters)), self.ready_s))  # of equals the last comes first
        return tuple(order[~np.isnan(self.ready_s[order])].tolist())


@frozen
class Contention:
    """How much computing and communicating slow each other down when they share cores, memory or SMs.

    During an allreduce computing takes `compute` times as long, and while the rank computes an allreduce takes
    `communication` times as long. 1 is no contention.

    >>> Contention(compute=0.5)
    Traceback (most recent call last):
    ValueError: compute must be a finite number of at least 1, got 0.5
    """

    compute: float = checked(number, 1, default=1.0)
    communication: float = checked(number, 1, default=1.0)


FREE = Contention()  # no contention


# ---- when buckets are launched, if nothing slows the backward down


class Launches(NamedTuple):
    """After how many seconds of the backward each bucket is launched, in that order, and its bytes."""

    launch_s: Seconds
    num_bytes: NDArray[np.int64]


def default_buckets(local: LocalStep, bucket_cap_mb: float | None = None) -> Buckets:
    """Return the buckets that DDP has once it has rebuilt them in the order in which gradients get ready.

    If a parameter gets no gradient, they are those of ``find_unused_parameters``, which are never rebuilt.

    >>> default_buckets(LocalStep.modelled([1 << 20] * 4, backward_s=1.0), bucket_cap_mb=2)
    ((3, 2), (1, 0))
    """
    if not local.parameters:
        return Buckets([])
    order = local.ready_order
    unused = len(order) < len(local.parameters)
    return Buckets(ddp_buckets(local.parameters, bucket_cap_mb, ready_order=order, find_unused_parameters=unused))


def launches(local: LocalStep, buckets: Buckets) -> Launches:
    """Return when buckets of its parameters are launched: each after those before it, once its gradients are ready."""
    if not buckets:
        return Launches(np.empty(0), np.empty(0, dtype=np.int64))
    places = np.fromiter((place for bucket in buckets for place in bucket), dtype=np.int64)
    firsts = np.cumsum([0, *(len(bucket) for bucket in buckets[:-1])])
    last_s = np.maximum.reduceat(np.nan_to_num(local.ready_s, nan=0.0)[places], firsts)
    return Launches(np.maximum.accumulate(last_s), np.add.reduceat(local.sizes[places], firsts))


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
    """Return what one rank does in a step of `accumulation` micro-batches; the other ranks do the same simultaneously.

    Lane "compute" has a forward and a backward for each micro-batch (their item), waiting for allreduces, unpacking
    (item: its bucket), and the optimizer; lane "allreduce" a span for each bucket, by its place in launch order. All
    micro-batches but the last run under ``no_sync`` and communicate nothing.

    A bucket is launched when all its gradients are ready and all earlier buckets were launched. Its allreduce takes
    ``cost(bytes)`` seconds by itself and starts when those before it have ended. While an allreduce and the backward or
    unpacking run simultaneously, each is slower by its factor in `contention`. Without `overlap` all buckets are
    launched at the end of the backward. After the backward, buckets are waited for and unpacked in turn.

    `buckets` are lists of places in ``local.parameters`` or what `ddp.buckets` returns, by default those of DDP with
    `bucket_cap_mb`: see `default_buckets`. `cost` is given an array of sizes: see `ddp.cost`. Raises ValueError for
    buckets that do not hold every parameter once, and for costs that no allreduce has.

    >>> local = LocalStep.modelled([4 << 20] * 4, backward_s=0.4)
    >>> step = simulate(local, lambda num_bytes: num_bytes / (40 << 20), bucket_cap_mb=8)
    >>> [(span.item, round(span.start_s, 3), round(span.stop_s, 3)) for span in step.select(lane="allreduce")]
    [(0, 0.4, 0.6), (1, 0.6, 0.8)]
    >>> round(step.makespan_s, 3), round(step.overlap_s("backward", "allreduce"), 3)
    (0.8, 0.2)
    """
    of_type("local", local, LocalStep)
    if buckets is None:
        launched = launches(local, default_buckets(local, bucket_cap_mb))
    elif bucket_cap_mb is None:
        launched = launches(local, buckets_of("buckets", buckets, len(local.parameters)))
    else:
        raise ValueError(f"bucket_cap_mb must be None where buckets are given, got {bucket_cap_mb!r}")
    begin_s, last = backward_begin_s(local, accumulation), last_backward(local, launched, cost, contention, overlap)
    spans: list[Span] = []

    def add(lane: str, kind: str, item: int, start_s: float, stop_s: float) -> None:
        spans.append(Span(0, lane, kind, item, start_s, stop_s))

    for micro in range(accumulation):
        start_s = backward_begin_s(local, micro + 1)
        add("compute", "forward", micro, start_s - local.forward_s, start_s)
        add("compute", "backward", micro, start_s, start_s + local.backward_s)
    ended_s = begin_s + last.backward_s
    spans[-1] = spans[-1]._replace(stop_s=ended_s)
    for item, (start_s, stop_s) in enumerate(last.unpacked):
        if stop_s > start_s:
            if begin_s + start_s > ended_s:
                add("compute", "wait", -1, ended_s, begin_s + start_s)
            ended_s = begin_s + stop_s
            add("compute", "unpack", item, begin_s + start_s, ended_s)
    end_s = begin_s + last.end_s
    if end_s > ended_s:
        add("compute", "wait", -1, ended_s, end_s)
    for item, (start_s, stop_s) in enumerate(last.allreduces):
        add("allreduce", "allreduce", item, begin_s + start_s, begin_s + stop_s)
    if local.optimizer_s:
        add("compute", "optimizer", -1, end_s, end_s + local.optimizer_s)
    return Timeline.of(spans)


def backward_begin_s(local: LocalStep, accumulation: int) -> float:
    """Return when the backward of the last micro-batch starts."""
    passes = whole("accumulation", accumulation, 1, MOST_ACCUMULATION)
    return passes * local.forward_s + (passes - 1) * local.backward_s


class LastBackward(NamedTuple):
    """The last micro-batch from the start of its backward: when that ends, and start and stop for each bucket."""

    backward_s: float
    allreduces: list[tuple[float, float]]
    unpacked: list[tuple[float, float]]

    @property
    def end_s(self) -> float:
        return self.unpacked[-1][1] if self.unpacked else self.backward_s

    @property
    def wait_s(self) -> float:
        """How many seconds the rank waits for allreduces after the backward."""
        return self.end_s - self.backward_s - sum(stop_s - start_s for start_s, stop_s in self.unpacked)


def last_backward(
    local: LocalStep, launched: Launches, cost: Cost, contention: Contention = FREE, overlap: bool = True
) -> LastBackward:
    """Return what `simulate` draws from the start of the last backward to the optimizer."""
    wire_s = costs_s(cost, launched.num_bytes.astype(float)).tolist()
    slow = of_type("contention", contention, Contention)
    launch_s = launched.launch_s.tolist() if truth("overlap", overlap) else [local.backward_s] * len(wire_s)
    works_s = [local.backward_s, *(launched.num_bytes * (local.unpack_s / max(local.num_bytes, 1))).tolist()]
    now = done = left = 0.0  # of the work under way so much is done, of the allreduce under way so much is left
    starts, stops, ends = list[float](), list[float](), list[float]()  # of allreduces; of works
    while len(ends) < len(works_s):
        worked, sent = len(ends), len(stops)
        sends = sent < len(wire_s) and (worked > 0 or launch_s[sent] <= done)
        computes = worked <= sent  # a bucket is unpacked once its allreduce has ended
        if sends and len(starts) == sent:
            starts.append(now)
            left = wire_s[sent]
        until = works_s[worked] if worked or sends or sent == len(wire_s) else launch_s[sent]
        compute_s = max(until - done, 0.0) * (slow.compute if sends else 1.0) if computes else math.inf
        send_s = left * (slow.communication if computes else 1.0) if sends else math.inf
        if compute_s <= send_s:
            now, done, left = now + compute_s, until, max(left - compute_s / slow.communication, 0.0)
            if until == works_s[worked]:
                ends.append(now)
                done = 0.0
        else:
            now, done = now + send_s, done + (send_s / slow.compute if computes else 0.0)
            stops.append(now)
    unpacked = zip(map(max, ends, stops), ends[1:], strict=True)
    return LastBackward(ends[0], list(zip(starts, stops, strict=True)), list(unpacked))
