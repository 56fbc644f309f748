"""Workers that update one set of parameters, around a server or in a ring: what they take, predicted."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from ..cluster import Link
from ..timeline import Span, Timeline
from ..values.checks import number, of_type, one_of, whole
from ..values.frozen import frozen

SERVED = ("synchronous", "asynchronous")
HOW = (*SERVED, "allreduce")
MOST_WORKERS, MOST_BATCHES = 255, 1_000_000
SERVER = 0  # the server's rank; workers are 1 to W


@frozen(eq=False)
class ServerRun:
    """Updates of one set of parameters by several workers, as predicted or as they ran.

    `timeline` has a lane "work" for each worker (kinds "wait", "pull", "compute", "push"; "allreduce" in a ring, "step"
    of Hogwild) and "update" for the server, rank 0. `staleness` says of each gradient, in order of arrival, how many
    updates it is behind; `pushed_by` whose it is. The bytes are those through the server's port, 0 where there is none.
    `parameters` are the last ones, flat, empty where nothing was trained.
    """

    how: str
    num_workers: int
    num_batches: int
    parameter_bytes: int
    timeline: Timeline
    received_bytes: int = 0
    sent_bytes: int = 0
    staleness: tuple[int, ...] = ()
    pushed_by: tuple[int, ...] = ()
    parameters: NDArray[np.float64] = attrs.field(factory=lambda: np.empty(0))

    def compute_s(self) -> tuple[float, ...]:
        """Return what a gradient took each worker, on average; 0 for a worker that got no batch."""
        first = SERVER + (self.how in SERVED)
        spans = [self.timeline.select(rank=first + worker, kind="compute") for worker in range(self.num_workers)]
        return tuple(float((one.stop_s - one.start_s).mean()) if len(one) else 0.0 for one in spans)


def port_bytes(how: str, parameter_bytes: int, num_workers: int) -> float:
    """Return the bytes through the busiest port, both ways together, when one gradient of each worker is used.

    A server receives W·S and sends W·S. In a ring allreduce each of N ranks receives 2(N-1)/N·S and sends as much.

    >>> port_bytes("synchronous", 100, 4), port_bytes("allreduce", 100, 4)
    (800, 300.0)
    """
    one_of("how", how, HOW)
    num_workers = whole("num_workers", num_workers, 1, MOST_WORKERS)
    passes = 2 * num_workers if how in SERVED else 4 * (num_workers - 1) / num_workers
    return passes * whole("parameter_bytes", parameter_bytes, 0)


def simulate(
    how: str,
    num_workers: int,
    num_batches: int,
    parameter_bytes: int,
    link: Link,
    compute_s: float | Sequence[float],
    update_s: float = 0.0,
) -> ServerRun:
    """Return what `train` does, where a call takes ``link.seconds(bytes)``, there and back.

    A worker pulls the parameters, takes `compute_s` (one number, or one for each worker) for the gradient of a batch,
    and pushes it. Half the latency is on the way there, half on the way back. All messages pass the server's port,
    which carries one each way at a time, in the order in which they come; questions and answers without parameters
    take no time there, and wait as others do.

    "synchronous": the server updates once all workers have pushed, in `update_s`, and a worker that asks meanwhile
    waits. "asynchronous": it updates at every push, which returns when that is done (Dean et al., Large scale
    distributed deep networks, 2012; Li et al., Scaling distributed machine learning with the parameter server, 2014).
    "allreduce": no server, a ring of 2(N-1) steps, each a call with an N-th of the bytes, since a message of Gloo's
    goes when its receiver has said that it may. (Gloo cuts that N-th in two and has both under way, so it is faster:
    allreduce.cc.)

    The server's port is lanes "in" and "out" of its timeline, with the worker as item. Raises ValueError for numbers
    out of range.

    >>> link = Link(0.0, 100.0)
    >>> run = simulate("synchronous", 4, 4, 100, link, compute_s=2.0)
    >>> run.timeline.makespan_s, run.received_bytes + run.sent_bytes  # (W + 1)·S/B + compute: pushes overlap pulls
    (7.0, 800)
    >>> simulate("asynchronous", 4, 8, 100, link, compute_s=2.5).staleness
    (0, 1, 2, 3, 3, 3, 3, 3)
    >>> simulate("allreduce", 4, 4, 100, link, compute_s=2.0).timeline.makespan_s  # 2(N-1)/N·S/B + compute
    3.5
    """
    one_of("how", how, HOW)
    num_workers = whole("num_workers", num_workers, 1, MOST_WORKERS)
    num_batches = checked_batches(how, num_workers, num_batches)
    parameter_bytes, link = whole("parameter_bytes", parameter_bytes, 0), of_type("link", link, Link)
    seconds, update_s = each_worker("compute_s", compute_s, num_workers), number("update_s", update_s, 0)
    sizes = (how, num_workers, num_batches, parameter_bytes)
    if how == "allreduce":
        ring_s = 2 * (num_workers - 1) * link.seconds(parameter_bytes / num_workers)
        return ServerRun(*sizes, Timeline.of(_ring(seconds, ring_s, update_s, num_batches // num_workers)))
    served = _Served(how == "synchronous", num_batches, link, parameter_bytes / link.bytes_per_s, seconds, update_s)
    moved = num_batches * parameter_bytes
    behind = tuple(served.staleness), tuple(served.pushed_by)
    return ServerRun(*sizes, Timeline.of(served.spans), moved, moved, *behind)


def _ring(compute_s: tuple[float, ...], ring_s: float, update_s: float, num_steps: int) -> Iterator[Span]:
    """Each rank's steps; the ring begins when the last rank has its gradient."""
    begin_s = 0.0
    for step in range(num_steps):
        summed_s = begin_s + max(compute_s) + ring_s
        for rank, seconds in enumerate(compute_s):
            yield Span(rank, "work", "compute", step, begin_s, begin_s + seconds)
            yield Span(rank, "work", "allreduce", step, begin_s + seconds, summed_s)
            yield Span(rank, "work", "optimizer", step, summed_s, summed_s + update_s)
        begin_s = summed_s + update_s


def checked_batches(how: str, num_workers: int, num_batches: Any) -> int:
    """Return the number of batches; ValueError where these workers cannot share them."""
    count = whole("num_batches", num_batches, 1, MOST_BATCHES)
    if how not in ("asynchronous", "hogwild") and count % num_workers:
        raise ValueError(f"num_batches must be a multiple of the {num_workers} workers, got {count}")
    return count


def each_worker(name: str, value: float | Sequence[float], num_workers: int) -> tuple[float, ...]:
    """Return a number of seconds for each worker; one number is for all.

    >>> each_worker("compute_s", 1, 3)
    (1.0, 1.0, 1.0)
    """
    if isinstance(value, str) or not isinstance(value, Sequence):
        return (number(name, value, 0),) * num_workers
    if len(value) != num_workers:
        raise ValueError(f"{name} must be a number or one for each of {num_workers} workers, got {value!r}")
    return tuple(number(name, one, 0) for one in value)


class _Served:
    """Workers and a server until all batches are used up: what ran when, who pushed which gradient, how far behind."""

    def __init__(
        self,
        synchronous: bool,
        num_batches: int,
        link: Link,
        port_s: float,
        compute_s: tuple[float, ...],
        update_s: float,
    ) -> None:
        self._synchronous, self._num_workers, self._left = synchronous, len(compute_s), num_batches
        self._half_s, self._port_s, self._update_s = link.alpha_s / 2, port_s, update_s
        self._free_s = {"in": 0.0, "out": 0.0}  # when each direction of the port is
        self._updates_s: list[float] = []  # when each update was done
        self._waiting: list[int] = []  # workers whose update has not begun
        self.spans: list[Span] = []
        self.staleness: list[int] = []
        self.pushed_by: list[int] = []
        turns = {worker: self._turns(worker, seconds) for worker, seconds in enumerate(compute_s, 1)}
        self._events = [(0.0, worker) for worker in turns]
        while self._events:
            _, worker = heapq.heappop(self._events)
            then_s = next(turns[worker], None)
            if then_s is not None:
                heapq.heappush(self._events, (then_s, worker))

    def _turns(self, worker: int, compute_s: float) -> Iterator[float | None]:
        """Pull, compute and push, again and again; yield when it goes on, or None until an update begins."""
        now_s, num_pulls = 0.0, 0
        while True:
            begun_s, now_s = now_s, now_s + self._half_s
            yield now_s  # its question is at the port
            now_s = self._passes(worker, "in", 0.0, now_s)
            yield now_s
            needed = num_pulls if self._synchronous else 0
            if needed > len(self._updates_s):
                self._waiting.append(worker)
                yield None
            elif needed and self._updates_s[needed - 1] > now_s:
                yield self._updates_s[needed - 1]
            if not self._left:
                return
            if needed and self._updates_s[needed - 1] > now_s:
                now_s = self._updates_s[needed - 1]
                self.spans.append(Span(worker, "work", "wait", -1, begun_s, now_s))
                begun_s = now_s
            self._left, num_pulls = self._left - 1, num_pulls + 1
            version = bisect_right(self._updates_s, now_s)
            there_s = self._passes(worker, "out", self._port_s, now_s) + self._half_s
            yield there_s
            computed_s = there_s + compute_s
            self.spans.append(Span(worker, "work", "pull", version, begun_s, there_s))
            self.spans.append(Span(worker, "work", "compute", version, there_s, computed_s))
            yield computed_s + self._half_s  # its gradient is at the port
            passed_s = self._passes(worker, "in", self._port_s, computed_s + self._half_s)
            yield passed_s
            taken_s = self._take(worker, version, passed_s)
            yield taken_s
            now_s = self._passes(worker, "out", 0.0, taken_s) + self._half_s
            self.spans.append(Span(worker, "work", "push", version, computed_s, now_s))

    def _passes(self, worker: int, way: str, port_s: float, now_s: float) -> float:
        """Return when a message that is at the port now has passed it."""
        start_s = max(now_s, self._free_s[way])
        self._free_s[way] = start_s + port_s
        if port_s:
            kind = "recv" if way == "in" else "send"
            self.spans.append(Span(SERVER, way, kind, worker, start_s, self._free_s[way]))
        return self._free_s[way]

    def _take(self, worker: int, version: int, now_s: float) -> float:
        """Take a gradient, and update if it is time to; return when the worker can learn that it was taken."""
        self.pushed_by.append(worker)
        self.staleness.append(len(self._updates_s) - version)
        if self._synchronous and len(self.pushed_by) % self._num_workers:
            return now_s
        start_s = max([now_s, *self._updates_s[-1:]])
        done_s = start_s + self._update_s
        self.spans.append(Span(SERVER, "update", "optimizer", len(self._updates_s), start_s, done_s))
        self._updates_s.append(done_s)
        for one in self._waiting:
            heapq.heappush(self._events, (done_s, one))
        self._waiting.clear()
        return now_s if self._synchronous else done_s
