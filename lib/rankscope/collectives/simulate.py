"""`simulate`: when each message of a schedule starts and ends on a cluster, in the single-port Hockney model."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from ..cluster import Cluster
from ..timeline import Timeline
from ..values.checks import number, of_type, one_of
from .ports import Nics, send_all
from .routes import Routes, Seconds, Shift, all_routes
from .schedule import Schedule

MOST_MESSAGES = 250_000  # of which every one becomes spans unless asked otherwise
_EPS = float(np.finfo(float).eps)


def simulate(schedule: Schedule, num_bytes: float, cluster: Cluster, detail: str | None = None) -> Timeline:
    """Return when each message of the schedule is sent, received and added up, all ranks starting at time 0.

    `num_bytes` is each rank's whole buffer, the total array for allgather and reduce_scatter. A message starts when
    both ranks have finished their earlier steps, adding included (that up to `schedule.lag` steps before), and their
    ports are free; it holds both ports for alpha_s + bytes / bytes_per_s. Then the receiver adds, one message after the
    other. The messages of a rank in one step take its ports in turn, in the order of the step. A shared network card
    serves the messages of earlier steps first, and those of one step in the order in which they are ready. The schedule
    is taken to be right: `verify` tells.

    Lanes and kinds are "send", "receive" and "reduce" ("send 1", … for further ports), items are steps. `detail` is
    "messages", or "ranks" for a single span a rank, from 0 to its end; None takes messages up to `MOST_MESSAGES`.

    Raises ValueError for a cluster with another number of ranks, and for bytes that are not a finite number from 0 on.

    >>> from ..cluster import Link
    >>> from . import ALGORITHMS
    >>> cluster = Cluster.uniform(4, Link(alpha_s=1.0, bytes_per_s=2.0))
    >>> simulate(ALGORITHMS["allreduce"]["ring"](4), 8.0, cluster).makespan_s
    12.0
    """
    of_type("schedule", schedule, Schedule)
    if schedule.num_ranks != of_type("cluster", cluster, Cluster).num_ranks:
        raise ValueError(f"cluster must have the schedule's {schedule.num_ranks} ranks, got {cluster.num_ranks}")
    num_bytes = number("num_bytes", num_bytes, 0)
    if detail is not None:
        one_of("detail", detail, ("messages", "ranks"))
    run = _Run(schedule, num_bytes, cluster, detail)
    return run.timeline()


class _Run:
    """One simulation: `ready_s` is when each rank may enter its next step."""

    def __init__(self, schedule: Schedule, num_bytes: float, cluster: Cluster, detail: str | None) -> None:
        self.schedule, self.cluster = schedule, cluster
        self.ready_s: Seconds = np.zeros(schedule.num_ranks)
        # of the last `lag` steps, when each rank had added up what it received
        self.added_s = deque([np.zeros(schedule.num_ranks)] * schedule.lag, maxlen=schedule.lag)
        self.nics = Nics(cluster) if cluster.shared_nic else None
        self.records: list[tuple[Any, ...]] | None = [] if detail != "ranks" else None
        sizes = schedule.chunk_bytes(num_bytes)
        shares = None if schedule.weights is None else np.r_[0.0, np.cumsum(sizes)]
        step = messages = 0
        for routes in all_routes(schedule, cluster.ports):
            messages += routes.num_messages * routes.num_steps
            if detail is None and messages > MOST_MESSAGES:
                self.records = None
            self._phase(routes, shares, sizes[0], step)
            step += routes.num_steps

    def _phase(self, routes: Routes, shares: Seconds | None, chunk_bytes: float, first: int) -> None:
        alpha_s, beta = self.cluster.costs(routes.src, routes.dst)
        alike = self.records is None and self.nics is None and shares is None
        shifting: _Shifting | None = None
        for nth in range(routes.num_steps):
            if nth == 0 or shares is not None:
                sent, added = routes.bytes_of(shares, chunk_bytes, nth)
                costs_s, adding_s = alpha_s + sent * beta, added * self.cluster.gamma_s_per_byte
            if nth == 0 and alike and self.schedule.lag == 1 and routes.shift is not None:
                shifting = _Shifting(routes.shift, costs_s, adding_s)
            before_s = self._state() if alike and nth & (nth + 1) == 0 else None
            if shifting is not None:
                self.ready_s = shifting.step(self.ready_s)
            else:
                self._step(routes, alpha_s, costs_s, adding_s, first + nth)
            if before_s is not None and _is_steady(before_s, after_s := self._state()):
                self._move((after_s - before_s) * (routes.num_steps - 1 - nth))
                return

    def _step(self, routes: Routes, alpha_s: Seconds, costs_s: Seconds, adding_s: Seconds, number: int) -> None:
        enter_s = np.maximum(self.ready_s, self.added_s[0])
        start_s, end_s, done_s = send_all(routes, enter_s, self.added_s[-1], alpha_s, costs_s, adding_s, self.nics)
        ready_s, added_s = enter_s.copy(), self.added_s[-1].copy()
        np.maximum.at(ready_s, routes.src, end_s)
        np.maximum.at(ready_s, routes.dst, end_s)
        np.maximum.at(added_s, routes.dst, done_s)
        self.added_s.append(added_s)
        self.ready_s = np.maximum(ready_s, added_s) if self.schedule.lag == 1 else ready_s
        if self.records is not None:
            self.records.append((number, routes, start_s, end_s, adding_s, done_s))

    def _state(self) -> Seconds:
        """All that the next step depends on, a row a time: with a lag of 1 nobody goes on before it has added up."""
        return np.array([self.ready_s, *self.added_s]) if self.schedule.lag > 1 else self.ready_s[None]

    def _move(self, by_s: Seconds) -> None:
        """Move on in time, each row of the state by its own."""
        self.ready_s = self.ready_s + by_s[0]
        if self.schedule.lag > 1:
            self.added_s.extend([added_s + moved_s for added_s, moved_s in zip(self.added_s, by_s[1:], strict=True)])

    def timeline(self) -> Timeline:
        ends_s = np.maximum(self.ready_s, self.added_s[-1])
        ranks = np.arange(ends_s.size)
        none = np.zeros(ends_s.size, dtype=np.int64)
        if self.records is None:
            name = self.schedule.collective
            return Timeline(ranks, none, none, none - 1, np.zeros(ends_s.size), ends_s, ("collective",), (name,))
        return _spans(self.records)


def _is_steady(before_s: Seconds, after_s: Seconds) -> bool:
    """Whether all ranks moved on by the same time: they then do so for ever, since a step is linear in max and plus."""
    moved_s = after_s - before_s
    return bool(moved_s.max() - moved_s.min() <= 8 * _EPS * after_s.max())


class _Shifting:
    """Steps in which each rank sends to the next along an axis and waits for both of its messages; buffers are kept."""

    def __init__(self, shift: Shift, costs_s: Seconds, adding_s: Seconds) -> None:
        self._cost, self._adding = costs_s.reshape(shift), adding_s.reshape(shift)
        self._adds = bool(adding_s.any())
        self._end, self._done, *self._after = (np.empty(shift) for _ in range(4))

    def step(self, ready_s: Seconds) -> Seconds:
        """Return when each rank has finished; the result is overwritten by the call after the next."""
        ready, end, done = ready_s.reshape(self._end.shape), self._end, self._done
        after = self._after[0]
        self._after.reverse()
        np.maximum(ready[:, :-1], ready[:, 1:], out=end[:, :-1])
        np.maximum(ready[:, -1], ready[:, 0], out=end[:, -1])
        end += self._cost
        if self._adds:
            np.add(end, self._adding, out=done)
        else:
            done = end
        np.maximum(end[:, 1:], done[:, :-1], out=after[:, 1:])
        np.maximum(end[:, 0], done[:, -1], out=after[:, 0])
        return after.reshape(-1)


def _spans(records: list[tuple[Any, ...]]) -> Timeline:
    """A span for each message at its sender, one at its receiver, and one for the adding where that takes time."""
    ports = 1 + max(
        (int(r.send_port.max(initial=0) + r.receive_port.max(initial=0)) for _, r, *_ in records), default=0
    )
    lanes = [f"{verb} {port}" if port else verb for verb in ("send", "receive") for port in range(ports)]
    columns: list[tuple[Any, ...]] = []
    for place, routes, start_s, end_s, adding_s, done_s in records:
        kind, adds = np.zeros_like(routes.src), adding_s > 0
        columns.append((routes.src, routes.send_port, kind, kind + place, start_s, end_s))
        columns.append((routes.dst, routes.receive_port + ports, kind + 1, kind + place, start_s, end_s))
        adder, kind = routes.dst[adds], kind[adds]
        columns.append((adder, kind + 2 * ports, kind + 2, kind + place, (done_s - adding_s)[adds], done_s[adds]))
    if not columns:
        columns.append((np.empty(0, dtype=np.int64),) * 4 + (np.empty(0),) * 2)
    rank, lane, kind, item, start_s, stop_s = (np.concatenate(column) for column in zip(*columns, strict=True))
    return Timeline(rank, lane, kind, item, start_s, stop_s, (*lanes, "reduce"), ("send", "receive", "reduce"))
