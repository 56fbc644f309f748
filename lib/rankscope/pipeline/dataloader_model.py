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
from collections.abc import Iterator
from functools import cache
from heapq import heappop, heappush
from itertools import cycle
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.checks import number, of_type, truth, whole
from ..common.frozen import checked, frozen, optional
from ..timeline import Timeline
from .service import Seconds, Service, check, draw

_READY, _ARRIVED, _PINNED = range(3)
LOOP, PIN_THREAD = "training loop", "pin thread"


def worker_lane(worker: int) -> str:
    """Return the lane of a worker, the same in predictions and recordings."""
    return f"worker {worker}"


@frozen(eq=False)
class Handover:
    """What a batch costs between its worker and the training loop; raises ValueError for what is no time.

    The worker's sending thread takes `handover_s`. Taking the batch in costs the training loop `receive_s`, or the pin
    thread `receive_s` and `pin_s` where `pin_s` is given. Taking it in takes up to `held_s` more while the batch's
    worker is busy with its next: the worker has to answer, and cannot while a fetch that computes holds Python's
    interpreter lock. Workers read from `startup_s` on.
    """

    handover_s: Service = checked(check, default=0.0)
    receive_s: Service = checked(check, default=0.0)
    pin_s: Service | None = checked(optional, check, default=None)
    held_s: float = checked(number, 0, default=0.0)
    startup_s: float = checked(number, 0, default=0.0)


@frozen
class Cores:
    """Cores that fetches and steps share fairly; raises ValueError for what is negative or no number.

    `fetch_cpu` and `step_cpu` are the cores that one fetch or step keeps busy while it runs alone: 0.1 for one that
    mostly waits, 4 for a step of 4 threads.
    """

    num_cores: float = checked(number, above=0, high=math.inf, default=math.inf)
    fetch_cpu: float = checked(number, 0, default=1.0)
    step_cpu: float = checked(number, 0, default=1.0)

    def speeds(self, num_fetches: int, stepping: bool) -> tuple[float, float]:
        """Return the speeds of each fetch and of the step, 1 being that of one that runs alone.

        A thread that computes for a share c of its time and waits for the rest takes (1 - c) + c / s times as long
        where it gets a share s of a core; s is such that all cores are busy, or 1.
        """
        if num_fetches * self.fetch_cpu + stepping * self.step_cpu <= self.num_cores:
            return 1.0, 1.0
        computing = min(self.fetch_cpu, 1.0), min(self.step_cpu, 1.0)  # of each thread
        low, high = 0.0, 1.0
        for _ in range(60):
            share = (low + high) / 2
            fetch, step = (share / (share * (1 - cpu) + cpu) for cpu in computing)
            if num_fetches * self.fetch_cpu * fetch + stepping * self.step_cpu * step > self.num_cores:
                high = share
            else:
                low = share
        return fetch, step


def simulate_dataloader(
    fetch_s: Service,
    step_s: Service,
    num_batches: int,
    *,
    num_workers: int,
    prefetch_factor: int = 2,
    in_order: bool = True,
    handover: Handover | None = None,
    cores: Cores | None = None,
    seed: int = 0,
) -> Timeline:
    """Return the timeline of one epoch. All times are seconds as in a `Stage`, drawn alike for any number of workers.

    A batch takes its worker `fetch_s` (dataset access and collate_fn), its way to the training loop what `handover`
    says, by default nothing, and the training loop `step_s`. With 0 workers the training loop fetches, pins and steps
    in turn. Where there are `cores`, fetches and steps that run at once share them.

    From bare times it is the best case rather than a forecast: real sleeps end late, a batch's way to the training loop
    takes some tenths of a millisecond, and workers take tens of milliseconds to start. For batches that come every 1 to
    3 ms it was 9 % too fast in the median, 45 % at worst. What it needs there is a recording: `record_dataloader` has
    the times as they were taken, and its `profile()` what goes into a `Handover`, `handover_s`, `receive_s` and
    `startup_s`. `advise` predicts from all of that.

    Raises ValueError for counts out of range and for times that are negative or not finite.

    >>> for num_workers in (0, 1, 4):
    ...     simulate_dataloader(0.03, 0.01, 100, num_workers=num_workers).makespan_s.__round__(6)
    4.0
    3.01
    1.03
    """
    count, num_workers = whole("num_batches", num_batches, 1), whole("num_workers", num_workers, 0, 4096)
    window, in_order = whole("prefetch_factor", prefetch_factor, 1), truth("in_order", in_order)
    seed = whole("seed", seed, -(2**63), 2**64 - 1)
    way = Handover() if handover is None else of_type("handover", handover, Handover)
    cores = Cores() if cores is None else of_type("cores", cores, Cores)
    services = {"fetch_s": fetch_s, "step_s": step_s, "handover_s": way.handover_s, "receive_s": way.receive_s}
    drawn = (draw(name, service, count, seed, 0, stream) for stream, (name, service) in enumerate(services.items()))
    fetch, step, handed, receive = drawn
    pin = None if way.pin_s is None else draw("pin_s", way.pin_s, count, seed, 0, len(services))
    work = _BatchTimes(fetch, step, handed, receive, pin)
    if num_workers == 0:
        return _alone(work)
    return _Epoch(work, num_workers, window, in_order, cores, way).timeline()


class _BatchTimes(NamedTuple):
    """The times of each batch."""

    fetch: Seconds
    step: Seconds
    handover: Seconds
    receive: Seconds
    pin: Seconds | None


class _Epoch:
    """An epoch, event by event. Fetches run at one common speed: a clock of their own says when each is done."""

    def __init__(
        self, work: _BatchTimes, num_workers: int, window: int, in_order: bool, cores: Cores, way: Handover
    ) -> None:
        self.work, self.num_workers, self.window, self.in_order = work, num_workers, window, in_order
        self.speeds, self.startup_s, self.held_s = cache(cores.speeds), way.startup_s, way.held_s
        self.count, self.now = work.fetch.size, 0.0
        self.events: list[tuple[float, int, int]] = []  # time, batch (of _READY: worker), what
        self.fetch_clock, self.fetching = 0.0, list[tuple[float, int]]()
        self.step_left, self.stepping = 0.0, False
        self.dealt, self.to_deal_to = 0, cycle(range(num_workers))
        self.queues: list[deque[int]] = [deque() for _ in range(num_workers)]  # dealt, not begun
        self.idle, self.busy = [False] * num_workers, [False] * num_workers
        self.in_hand = [0] * num_workers  # dealt, not handed over
        self.sender_free, self.pin_free = [0.0] * num_workers, 0.0
        self.arrived: deque[int] = deque()
        self.loop_s, self.receiving = math.inf, -1  # when the training loop goes on, and the batch that it takes in
        self.worker = np.zeros(self.count, dtype=np.int64)
        self.order: list[int] = []  # as handed over
        columns = ("read_start", "read_stop", "pin_start", "pin_stop", "requested", "handed", "step_stop")
        self.at: dict[str, Seconds] = {name: np.zeros(self.count) for name in columns}
        for worker in range(num_workers):
            heappush(self.events, (way.startup_s, worker, _READY))
        for _ in range(min(num_workers * window, self.count)):
            self.deal()

    def finish(self) -> None:
        """Go from event to event until the last step is done."""
        loop = self.training_loop()
        self.loop_s = next(loop)
        while True:
            fetch_speed, step_speed = self.speeds(len(self.fetching), self.stepping)
            event_s = self.events[0][0] if self.events else math.inf
            fetch_s = self.now + (self.fetching[0][0] - self.fetch_clock) / fetch_speed if self.fetching else math.inf
            step_s = self.now + self.step_left / step_speed if self.stepping else math.inf
            then = max(self.now, min(event_s, self.loop_s, fetch_s, step_s))
            self.fetch_clock += (then - self.now) * fetch_speed
            self.step_left -= (then - self.now) * step_speed
            self.now = then
            if then >= event_s:
                _, batch, what = heappop(self.events)
                (self.ready, self.arrive, self.pinned)[what](batch)
            elif self.loop_s > then >= fetch_s:
                self.fetched(heappop(self.fetching)[1])
            else:
                self.stepping = False
                goes_on_s = next(loop, None)
                if goes_on_s is None:
                    return
                self.loop_s = goes_on_s

    def training_loop(self) -> Iterator[float]:
        """Wait for a batch and take a step, again and again; yield when it goes on where nothing wakes it before."""
        early = set[int]()
        for turn in range(self.count):
            requested_s = self.now
            while True:
                batch = turn
                if batch in early:
                    break
                while not self.arrived:
                    yield math.inf
                batch = self.arrived.popleft()
                if self.work.pin is None:
                    self.receiving = batch
                    yield self.now + float(self.work.receive[batch]) + self.held_s * self.busy[self.worker[batch]]
                    self.receiving = -1
                if not self.in_order or batch == turn:
                    break
                early.add(batch)
            self.at["requested"][batch], self.at["handed"][batch] = requested_s, self.now
            self.order.append(batch)
            self.in_hand[self.worker[batch]] -= 1
            self.deal()
            self.step_left, self.stepping = float(self.work.step[batch]), True
            yield math.inf
            self.at["step_stop"][batch] = self.now

    def deal(self) -> None:
        if self.dealt == self.count:
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
            self.loop_s = min(self.loop_s, self.now + float(self.work.receive[self.receiving]))
        self.busy[worker] = False
        self.ready(worker)

    def arrive(self, batch: int) -> None:
        if self.work.pin is None:
            self.pinned(batch)
            return
        start_s = max(self.pin_free, self.now) + float(self.work.receive[batch])
        self.pin_free = start_s + float(self.work.pin[batch])
        self.at["pin_start"][batch], self.at["pin_stop"][batch] = start_s, self.pin_free
        heappush(self.events, (self.pin_free, batch, _PINNED))

    def pinned(self, batch: int) -> None:
        self.arrived.append(batch)
        if self.receiving < 0 and not self.stepping:  # the training loop waits
            self.loop_s = self.now

    def timeline(self) -> Timeline:
        """Run to the end, and return what ran when: workers, pin thread, training loop."""
        self.finish()
        num_workers, order = self.num_workers, np.array(self.order)
        started, dealt = np.arange(num_workers if self.startup_s else 0), np.arange(self.count)
        start_s = np.zeros(started.size)
        parts = [(started, "start", np.full_like(started, -1), start_s, start_s + self.startup_s)]
        parts.append((self.worker, "read", dealt, self.at["read_start"], self.at["read_stop"]))
        if self.work.pin is not None:
            pins = np.lexsort((dealt, self.at["pin_start"]))
            places = np.full(dealt.size, num_workers)
            parts.append((places, "pin", pins, self.at["pin_start"][pins], self.at["pin_stop"][pins]))
        loop = np.full(order.size, num_workers + 1)
        parts.append((loop, "wait", order, self.at["requested"][order], self.at["handed"][order]))
        parts.append((loop, "step", order, self.at["handed"][order], self.at["step_stop"][order]))
        return _timeline((*map(worker_lane, range(num_workers)), PIN_THREAD, LOOP), parts)


def _alone(work: _BatchTimes) -> Timeline:
    """No workers: the training loop does everything, one thing after the other."""
    kinds = {"read": work.fetch, **({} if work.pin is None else {"pin": work.pin}), "step": work.step}
    stops = np.cumsum(np.stack(list(kinds.values()), axis=1)).reshape(work.fetch.size, -1)
    starts = np.append(0.0, stops.ravel()[:-1]).reshape(stops.shape)
    place, dealt = np.zeros(work.fetch.size, dtype=np.int64), np.arange(work.fetch.size)
    parts = [(place, kind, dealt, starts[:, column], stops[:, column]) for column, kind in enumerate(kinds)]
    return _timeline((LOOP,), parts)


_Part = tuple[NDArray[np.int64], str, NDArray[np.int64], Seconds, Seconds]


def _timeline(lanes: tuple[str, ...], parts: list[_Part]) -> Timeline:
    kinds = tuple(kind for _, kind, *_ in parts)
    lane, item, start_s, stop_s = (np.concatenate([part[place] for part in parts]) for place in (0, 2, 3, 4))
    kind = np.repeat(np.arange(len(parts)), [part[0].size for part in parts])
    return Timeline(np.zeros_like(lane), lane, kind, item, start_s, stop_s, lanes, kinds)
