"""torch's `DataLoader`, predicted: the same queues, the same order, the same prefetching, without running it.

Source: `_MultiProcessingDataLoaderIter` in torch/utils/data/dataloader.py. num_workers × prefetch_factor indices are
dealt round robin at the start, one more for each batch that is handed over. A worker reads what it was dealt, first
come first served. The training loop takes batches in the order dealt, holding back those that come too early, or,
with ``in_order=False``, as they come, and then deals the next index to the next worker that has fewer than
prefetch_factor batches in hand.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from ..timeline import Timeline
from ..values.checks import number, truth, whole
from .cores import Cores
from .service import Seconds, Service, draw

_READY, _ARRIVED, _RECEIVED, _PINNED = range(4)
_MOST_WORKERS = 4096
LOOP, PIN_THREAD = "training loop", "pin thread"


def worker_lane(worker: int) -> str:
    """Return the lane of a worker, the same in predictions and recordings."""
    return f"worker {worker}"


def simulate_dataloader(
    fetch_s: Service, step_s: Service, num_batches: int, *,
    num_workers: int, prefetch_factor: int = 2, in_order: bool = True, handover_s: Service = 0.0,
    receive_s: Service = 0.0, pin_s: Service | None = None, held_s: float = 0.0, startup_s: float = 0.0,
    num_cores: float | None = None, fetch_cpu: float = 1.0, step_cpu: float = 1.0, seed: int = 0,
) -> Timeline:  # fmt: skip
    """Return the timeline of one epoch. All times are seconds as in `service`, drawn alike for any number of workers.

    A batch takes its worker `fetch_s` (dataset access and collate_fn) and then the worker's sending thread
    `handover_s`. Taking it in costs the training loop `receive_s`, or the pin thread `receive_s` and `pin_s` where
    `pin_s` is given. Taking it in takes up to `held_s` more while the batch's worker is busy with its next: the worker
    has to answer, and cannot while a fetch that computes holds Python's interpreter lock. Workers read from `startup_s`
    on. With 0 workers the training loop fetches, pins and steps in turn.

    With `num_cores`, fetches and steps that run at once share them fairly: `fetch_cpu` and `step_cpu` are the cores
    that one keeps busy while it runs alone (0.1 for one that mostly waits, 4 for a step of 4 threads).

    Raises ValueError for counts out of range, and for times, cores and shares that are negative or not finite.

    >>> for num_workers in (0, 1, 4):
    ...     simulate_dataloader(0.03, 0.01, 100, num_workers=num_workers).makespan_s.__round__(6)
    4.0
    3.01
    1.03
    """
    count, num_workers = whole("num_batches", num_batches, 1), whole("num_workers", num_workers, 0, _MOST_WORKERS)
    window = whole("prefetch_factor", prefetch_factor, 1)
    held, startup = number("held_s", held_s, 0), number("startup_s", startup_s, 0)
    in_order, seed = truth("in_order", in_order), whole("seed", seed, -(2**63), 2**64 - 1)
    cores = Cores(math.inf if num_cores is None else num_cores, fetch_cpu, step_cpu)
    services = {"fetch_s": fetch_s, "step_s": step_s, "handover_s": handover_s, "receive_s": receive_s}
    drawn = (draw(name, service, count, seed, 0, stream) for stream, (name, service) in enumerate(services.items()))
    pin = None if pin_s is None else draw("pin_s", pin_s, count, seed, 0, len(services))
    fetch, step, handover, receive = drawn
    work = _Work(fetch, step, handover, receive, pin)
    if num_workers == 0:
        return _alone(work)
    return _Run(work, num_workers, window, in_order, cores, startup, held).timeline()


@dataclass(frozen=True)
class _Work:
    fetch: Seconds
    step: Seconds
    handover: Seconds
    receive: Seconds
    pin: Seconds | None

    @cached_property
    def count(self) -> int:
        return self.fetch.size


class _Run:
    """An epoch, event by event. Fetches run at one common speed: a clock of their own says when each is done."""

    def __init__(
        self, work: _Work, num_workers: int, window: int, in_order: bool, cores: Cores, startup: float, held: float
    ) -> None:
        self.work, self.num_workers, self.window, self.in_order, self.cores = work, num_workers, window, in_order, cores
        self.startup, self.held = startup, held
        self.now, self.request_s = 0.0, 0.0
        self.events: list[tuple[float, int, int]] = []  # time, batch (of _READY: worker), what
        self.fetch_clock, self.fetching = 0.0, list[tuple[float, int]]()
        self.step_left, self.stepping = 0.0, -1
        self.dealt, self.to_deal_to = 0, cycle(range(num_workers))
        self.queues: list[deque[int]] = [deque() for _ in range(num_workers)]  # dealt, not begun
        self.idle, self.busy = [False] * num_workers, [False] * num_workers
        self.in_hand = [0] * num_workers  # dealt, not handed over
        self.sender_free, self.pin_free = [0.0] * num_workers, 0.0
        self.arrived: deque[int] = deque()
        self.early: set[int] = set()
        self.waiting, self.receiving, self.wanted, self.left = True, -1, 0, work.count
        self.worker = np.zeros(work.count, dtype=np.int64)
        self.order: list[int] = []  # as handed over
        columns = ("read_start", "read_stop", "pin_start", "pin_stop", "requested", "handed", "step_stop")
        self.at: dict[str, Seconds] = {name: np.zeros(work.count) for name in columns}
        for worker in range(num_workers):
            heappush(self.events, (startup, worker, _READY))
        for _ in range(min(num_workers * window, work.count)):
            self.deal()

    def finish(self) -> None:
        """Go from event to event until the last step is done."""
        while self.left:
            fetch_speed, step_speed = self.cores.speeds(len(self.fetching), self.stepping >= 0)
            event_s = self.events[0][0] if self.events else math.inf
            fetch_s = self.now + (self.fetching[0][0] - self.fetch_clock) / fetch_speed if self.fetching else math.inf
            step_s = self.now + self.step_left / step_speed if self.stepping >= 0 else math.inf
            then = max(self.now, min(event_s, fetch_s, step_s))
            self.fetch_clock += (then - self.now) * fetch_speed
            self.step_left -= (then - self.now) * step_speed
            self.now = then
            if then >= event_s:
                _, batch, what = heappop(self.events)
                (self.ready, self.arrive, self.received, self.pinned)[what](batch)
            elif then >= fetch_s:
                self.fetched(heappop(self.fetching)[1])
            else:
                self.stepped(self.stepping)

    def deal(self) -> None:
        if self.dealt == self.work.count:
            return
        worker = next(self.to_deal_to)
        while not self.in_order and self.in_hand[worker] >= self.window:
            worker = next(self.to_deal_to)
        self.worker[self.dealt] = worker
        self.queues[worker].append(self.dealt)
        self.in_hand[worker] += 1
        self.dealt += 1
        if self.idle[worker]:
            self.ready(worker)

    def ready(self, worker: int) -> None:
        self.idle[worker] = not self.queues[worker]
        if self.queues[worker]:
            batch, self.busy[worker] = self.queues[worker].popleft(), True
            self.at["read_start"][batch] = self.now
            heappush(self.fetching, (self.fetch_clock + float(self.work.fetch[batch]), batch))

    def fetched(self, batch: int) -> None:
        worker = int(self.worker[batch])
        self.at["read_stop"][batch] = self.now
        self.sender_free[worker] = max(self.sender_free[worker], self.now) + float(self.work.handover[batch])
        heappush(self.events, (self.sender_free[worker], batch, _ARRIVED))
        if self.receiving >= 0 and self.worker[self.receiving] == worker:  # which can answer now
            heappush(self.events, (self.now + float(self.work.receive[self.receiving]), self.receiving, _RECEIVED))
        self.busy[worker] = False
        self.ready(worker)

    def arrive(self, batch: int) -> None:
        if self.work.pin is None:
            self.arrived.append(batch)
            self.take()
            return
        start_s = max(self.pin_free, self.now) + float(self.work.receive[batch])
        self.pin_free = start_s + float(self.work.pin[batch])
        self.at["pin_start"][batch], self.at["pin_stop"][batch] = start_s, self.pin_free
        heappush(self.events, (self.pin_free, batch, _PINNED))

    def pinned(self, batch: int) -> None:
        self.arrived.append(batch)
        self.take()

    def take(self) -> None:
        """Let the training loop, where it waits, have the batch it wants or take in the first that has arrived."""
        if self.waiting and self.in_order and self.wanted in self.early:
            self.early.remove(self.wanted)
            self.hand_over(self.wanted)
        elif self.waiting and self.arrived:
            batch, self.waiting = self.arrived.popleft(), False
            self.receiving, receive_s = batch, 0.0
            if self.work.pin is None:
                receive_s = float(self.work.receive[batch]) + self.held * self.busy[self.worker[batch]]
            heappush(self.events, (self.now + receive_s, batch, _RECEIVED))

    def received(self, batch: int) -> None:
        if batch != self.receiving:  # received before
            return
        self.waiting, self.receiving = True, -1
        if self.in_order and batch != self.wanted:
            self.early.add(batch)
            self.take()
        else:
            self.hand_over(batch)

    def hand_over(self, batch: int) -> None:
        self.at["requested"][batch], self.at["handed"][batch] = self.request_s, self.now
        self.order.append(batch)
        self.waiting, self.stepping, self.step_left = False, batch, float(self.work.step[batch])
        self.wanted = batch + 1
        self.in_hand[self.worker[batch]] -= 1
        self.deal()

    def stepped(self, batch: int) -> None:
        self.at["step_stop"][batch] = self.request_s = self.now
        self.waiting, self.stepping, self.left = True, -1, self.left - 1
        self.take()

    def timeline(self) -> Timeline:
        """Run to the end, and return what ran when: workers, pin thread, training loop."""
        self.finish()
        num_workers, order = self.num_workers, np.array(self.order)
        started, dealt = np.arange(num_workers if self.startup else 0), np.arange(self.work.count)
        parts = [
            (started, "start", np.full_like(started, -1), np.zeros(started.size), np.full(started.size, self.startup)),
            (self.worker, "read", dealt, self.at["read_start"], self.at["read_stop"]),
        ]
        if self.work.pin is not None:
            pins = np.lexsort((dealt, self.at["pin_start"]))
            places = np.full(dealt.size, num_workers)
            parts.append((places, "pin", pins, self.at["pin_start"][pins], self.at["pin_stop"][pins]))
        loop = np.full(order.size, num_workers + 1)
        parts.append((loop, "wait", order, self.at["requested"][order], self.at["handed"][order]))
        parts.append((loop, "step", order, self.at["handed"][order], self.at["step_stop"][order]))
        return _timeline((*map(worker_lane, range(num_workers)), PIN_THREAD, LOOP), parts)


def _alone(work: _Work) -> Timeline:
    """No workers: the training loop does everything, one thing after the other."""
    kinds = {"read": work.fetch, **({} if work.pin is None else {"pin": work.pin}), "step": work.step}
    stops = np.cumsum(np.stack(list(kinds.values()), axis=1)).reshape(work.count, -1)
    starts = np.append(0.0, stops.ravel()[:-1]).reshape(stops.shape)
    place, dealt = np.zeros(work.count, dtype=np.int64), np.arange(work.count)
    parts = [(place, kind, dealt, starts[:, column], stops[:, column]) for column, kind in enumerate(kinds)]
    return _timeline((LOOP,), parts)


_Part = tuple[NDArray[np.int64], str, NDArray[np.int64], Seconds, Seconds]


def _timeline(lanes: tuple[str, ...], parts: list[_Part]) -> Timeline:
    kinds = tuple(kind for _, kind, *_ in parts)
    lane, item, start_s, stop_s = (np.concatenate([part[place] for part in parts]) for place in (0, 2, 3, 4))
    kind = np.repeat(np.arange(len(parts)), [part[0].size for part in parts])
    return Timeline(np.zeros_like(lane), lane, kind, item, start_s, stop_s, lanes, kinds)
