"""A parameter server as a game of events: a worker asks, is answered, computes, pushes, and hears that it was taken."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from typing import NamedTuple

from ..cluster import Link
from ..timeline import Span

SERVER = 0  # the server's rank; workers are 1 to W


class Event(NamedTuple):
    """Something that comes to the server's port, has passed it, or is there; events go by time."""

    time_s: float
    worker: int
    stage: str
    version: int = 0


class Game:
    """Workers and a server until all batches are used up: `play`, then read what is public."""

    def __init__(
        self, how: str, num_workers: int, num_batches: int, link: Link, port_s: float, compute_s: tuple[float, ...],
        update_s: float,
    ) -> None:  # fmt: skip
        self._synchronous, self._num_workers, self._left = how == "synchronous", num_workers, num_batches
        self._half_s, self._port_s, self._compute_s, self._update_s = link.alpha_s / 2, port_s, compute_s, update_s
        self._free_s = {"in": 0.0, "out": 0.0}  # when each direction of the port is
        self._updates_s: list[float] = []  # when each update was done
        self._num_arrived = 0  # gradients of the round that is under way
        self._waiting: list[Event] = []
        self._begun_s = [0.0] * num_workers  # the call that a worker is in
        self._pulls = [0] * num_workers
        self._events: list[Event] = []
        self.spans: list[Span] = []
        self.staleness: list[int] = []
        self.pushed_by: list[int] = []
        for worker in range(1, num_workers + 1):
            self._call(0.0, worker, "ask", 0)

    def play(self) -> None:
        acts = {"ask": self._asks, "asked": self._asked, "got": self._got, "push": self._pushes,
                "pushed": self._pushed, "told": self._told}  # fmt: skip
        while self._events:
            event = heapq.heappop(self._events)
            acts[event.stage](event)

    def _later(self, time_s: float, event: Event, stage: str) -> None:
        heapq.heappush(self._events, event._replace(time_s=time_s, stage=stage))

    def _call(self, now_s: float, worker: int, stage: str, version: int) -> None:
        self._begun_s[worker - 1] = now_s
        heapq.heappush(self._events, Event(now_s + self._half_s, worker, stage, version))

    def _passes(self, event: Event, way: str, port_s: float) -> float:
        """When a message that is at the port now has passed it."""
        start_s = max(event.time_s, self._free_s[way])
        self._free_s[way] = start_s + port_s
        if port_s:
            kind = "recv" if way == "in" else "send"
            self.spans.append(Span(SERVER, way, kind, event.worker, start_s, self._free_s[way]))
        return self._free_s[way]

    def _asks(self, event: Event) -> None:
        self._later(self._passes(event, "in", 0.0), event, "asked")

    def _asked(self, event: Event) -> None:
        """Answer with the parameters if there is a batch left, once the update that is waited for is done."""
        needed = self._pulls[event.worker - 1] if self._synchronous else 0
        if needed > len(self._updates_s):
            self._waiting.append(event)
        elif self._left and needed and self._updates_s[needed - 1] > event.time_s:
            self._wait(event, self._updates_s[needed - 1])
        elif self._left:
            self._left -= 1
            self._pulls[event.worker - 1] += 1
            version = bisect_right(self._updates_s, event.time_s)
            there_s = self._passes(event, "out", self._port_s) + self._half_s
            self._later(there_s, event._replace(version=version), "got")

    def _wait(self, event: Event, until_s: float) -> None:
        self.spans.append(Span(event.worker, "work", "wait", -1, self._begun_s[event.worker - 1], until_s))
        self._begun_s[event.worker - 1] = until_s
        self._later(until_s, event, "asked")

    def _got(self, event: Event) -> None:
        done_s = event.time_s + self._compute_s[event.worker - 1]
        self._worked(event, "pull")
        self.spans.append(Span(event.worker, "work", "compute", event.version, event.time_s, done_s))
        self._call(done_s, event.worker, "push", event.version)

    def _pushes(self, event: Event) -> None:
        self._later(self._passes(event, "in", self._port_s), event, "pushed")

    def _pushed(self, event: Event) -> None:
        done_s = event.time_s
        self.pushed_by.append(event.worker)
        self.staleness.append(len(self._updates_s) - event.version)
        self._num_arrived += 1
        if not self._synchronous:
            done_s = self._update(event.time_s)
        elif self._num_arrived % self._num_workers == 0:
            self._update(event.time_s)
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                heapq.heappush(self._events, one)
        self._later(done_s, event, "told")

    def _update(self, now_s: float) -> float:
        """Update when the last update is done; return when this one is."""
        start_s = max([now_s, *self._updates_s[-1:]])
        self.spans.append(Span(SERVER, "update", "optimizer", len(self._updates_s), start_s, start_s + self._update_s))
        self._updates_s.append(start_s + self._update_s)
        return self._updates_s[-1]

    def _told(self, event: Event) -> None:
        there_s = self._passes(event, "out", 0.0) + self._half_s
        self._worked(event._replace(time_s=there_s), "push")
        self._call(there_s, event.worker, "ask", 0)

    def _worked(self, event: Event, kind: str) -> None:
        begun_s = self._begun_s[event.worker - 1]
        self.spans.append(Span(event.worker, "work", kind, event.version, begun_s, event.time_s))
