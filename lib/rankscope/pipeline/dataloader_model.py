"""torch's `DataLoader`, predicted: the same queues, the same order, the same prefetching, without running it.

Source: `_MultiProcessingDataLoaderIter` in torch/utils/data/dataloader.py. At the start it deals num_workers ×
prefetch_factor indices round robin, then one more for each batch that is handed over. A worker reads its indices in the
order in which it got them. The training loop takes batches in the order in which they were dealt and holds back those
that arrive too early. With ``in_order=False`` it takes them as they arrive, and deals the next index to the next worker
that has fewer than prefetch_factor batches in hand.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache
from heapq import heappop, heappush
from itertools import cycle
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..common.checks import check_field, number, of_type, optional, truth, whole
from ..sampling.permutation import SEEDS
from ..timeline import Timeline
from .service import Seconds, Service, check, draw

LOOP = "training loop"
PIN_THREAD = "pin thread"
_MOST_WORKERS = 4096
MOST_BATCHES = 1 << 23  # each needs some 500 bytes and 5 microseconds
_NUM_HALVINGS = 60  # of the interval in which the share of a core is searched: as exact as a float


def worker_lane(worker: int) -> str:
    """Return the lane of a worker, the same in predictions and recordings."""
    return f"worker {worker}"


class Handover(msgspec.Struct, frozen=True, eq=False):
    """The costs of a batch between its worker and the training loop. Raises ValueError if a field is not a time.

    The worker's sending thread needs `handover_s`. Receiving the batch costs the training loop `receive_s` or, if
    `pin_s` is given, the pin thread `receive_s` and `pin_s`. The training loop receives it up to `held_s` later while
    the batch's worker is busy with its next batch, because the worker must answer, and cannot while a fetch holds
    Python's interpreter lock. For the pin thread, this is not modelled. Workers start to read at `startup_s`.
    """

    handover_s: Service = 0.0
    receive_s: Service = 0.0
    pin_s: Service | None = None
    held_s: float = 0.0
    startup_s: float = 0.0

    def __post_init__(self) -> None:
        check_field(self, "handover_s", check)
        check_field(self, "receive_s", check)
        check_field(self, "pin_s", optional, check)
        check_field(self, "held_s", number, 0)
        check_field(self, "startup_s", number, 0)


class _Speeds(NamedTuple):
    """How fast each fetch and the step run; 1 is the speed of one that runs alone."""

    fetch: float
    step: float


class Cores(msgspec.Struct, frozen=True):
    """Cores that fetches and steps share fairly. Raises ValueError if a field is negative or not a number.

    `fetch_cpu` and `step_cpu` are the numbers of cores that a fetch or step keeps busy while it runs alone, such as 0.1
    if it mostly waits, or 4 for a step with 4 threads.
    """

    num_cores: float = math.inf
    fetch_cpu: float = 1.0
    step_cpu: float = 1.0

    def __post_init__(self) -> None:
        check_field(self, "num_cores", number, above=0, high=math.inf)
        check_field(self, "fetch_cpu", number, 0)
        check_field(self, "step_cpu", number, 0)

    def speeds(self, num_fetches: int, stepping: bool) -> _Speeds:
        """Return the speeds of each fetch and of the step, relative to running alone.

        A thread that computes for a share c of its time and waits for the rest takes (1 - c) + c / s times as long if
        it gets a share s of a core. All threads get the same s, at which all cores are busy, or 1. It is searched by
        halving an interval: the larger s is, the more cores are busy.
        """
        num_steps = 1 if stepping else 0
        num_wanted = num_fetches * self.fetch_cpu + num_steps * self.step_cpu
        if num_wanted <= self.num_cores:  # there are enough cores for all
            return _Speeds(1.0, 1.0)
        low = 0.0
        high = 1.0
        for _ in range(_NUM_HALVINGS):
            share = (low + high) / 2
            fetch = _speed(share, self.fetch_cpu)
            step = _speed(share, self.step_cpu)
            num_busy = num_fetches * self.fetch_cpu * fetch + num_steps * self.step_cpu * step
            if num_busy > self.num_cores:
                high = share
            else:
                low = share
        return _Speeds(fetch, step)


def _speed(share: float, cpu: float) -> float:
    """Return the speed of threads that keep `cpu` cores busy when they run alone and each get this share of a core."""
    computing = min(cpu, 1.0)  # of a thread's time; above 1 there are several threads that always compute
    return share / (share * (1 - computing) + computing)  # 1 / ((1 - c) + c / s)


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
    """Simulate one epoch of a DataLoader and return its timeline. Times are given as for a `Stage`, in seconds.

    A batch occupies its worker for `fetch_s` (dataset access and collate_fn), and the training loop for `step_s`, for
    any number of workers. `handover` contains the costs in between, by default none. With 0 workers the training loop
    fetches, pins and steps in turn. If `cores` is given, fetches and steps that run at the same time share them.

    With bare times the result is the best case rather than a forecast: real sleeps end late, a batch needs some tenths
    of a millisecond to reach the training loop, and workers take tens of milliseconds to start. For batches that arrive
    every 1 to 3 ms, it was 9 % too fast in the median, and 45 % in the worst case. For a forecast, record the loader:
    `record_dataloader` measures the times, and its `profile()` has the `handover_s`, `receive_s` and `startup_s` of a
    `Handover`. `advise` predicts from all of them.

    Raises ValueError if a count is out of range or a time is negative or not finite.

    >>> for num_workers in (0, 1, 4):
    ...     timeline = simulate_dataloader(0.03, 0.01, 100, num_workers=num_workers)
    ...     print(round(timeline.makespan_s, 6))
    4.0
    3.01
    1.03
    """
    num_batches = whole("num_batches", num_batches, 1, MOST_BATCHES)
    num_workers = whole("num_workers", num_workers, 0, _MOST_WORKERS)
    prefetch_factor = whole("prefetch_factor", prefetch_factor, 1)
    in_order = truth("in_order", in_order)
    seed = whole("seed", seed, *SEEDS)
    handover = Handover() if handover is None else of_type("handover", handover, Handover)
    cores = Cores() if cores is None else of_type("cores", cores, Cores)

    def times(name: str, service: Service, stream: int) -> Seconds:
        """Return a time per batch; `stream` is different for each kind of times, so that they are independent."""
        rank = 0
        return draw(name, service, num_batches, seed, rank, stream)

    work = _BatchTimes(
        fetch=times("fetch_s", fetch_s, 0),
        step=times("step_s", step_s, 1),
        handover=times("handover_s", handover.handover_s, 2),
        receive=times("receive_s", handover.receive_s, 3),
        pin=None if handover.pin_s is None else times("pin_s", handover.pin_s, 4),
    )
    if num_workers == 0:
        return _without_workers(work)
    epoch = _Epoch(work, num_workers, prefetch_factor, in_order, cores, handover)
    epoch.run()
    return epoch.timeline()


class _BatchTimes(NamedTuple):
    """The times of each batch."""

    fetch: Seconds
    step: Seconds
    handover: Seconds
    receive: Seconds
    pin: Seconds | None  # None without a pin thread


# Kinds of events. An event is a plain tuple, because there are several per batch and a heap compares them. It has its
# time, the number of a worker (if it is _READY) or of a batch, and its kind. At equal times the lower number is first.
_READY = 0  # a worker can fetch its next batch
_ARRIVED = 1  # a batch is in the process of the training loop
_PINNED = 2  # a batch can be taken by the training loop

_Event: TypeAlias = tuple[float, int, int]


class _Moments:
    """When the phases of each batch begin and end: a column per phase, with a row per batch."""

    def __init__(self, num_batches: int) -> None:
        self.read_start = np.zeros(num_batches)
        self.read_stop = np.zeros(num_batches)
        self.pin_start = np.zeros(num_batches)
        self.pin_stop = np.zeros(num_batches)
        self.requested = np.zeros(num_batches)
        self.handed = np.zeros(num_batches)
        self.step_stop = np.zeros(num_batches)


class _Epoch:
    """An epoch, event by event.

    All fetches run at one speed, which changes whenever a fetch or a step begins or ends. So the time when a fetch
    ends is not known in advance, but its reading of `fetch_clock`, which runs at that speed, is.
    """

    def __init__(
        self,
        work: _BatchTimes,
        num_workers: int,
        prefetch_factor: int,
        in_order: bool,
        cores: Cores,
        handover: Handover,
    ) -> None:
        self.work = work
        self.num_workers = num_workers
        self.prefetch_factor = prefetch_factor
        self.in_order = in_order
        self.speeds = cache(cores.speeds)  # there are few different numbers of fetches
        self.startup_s = handover.startup_s
        self.held_s = handover.held_s
        self.num_batches = work.fetch.size
        self.moments = _Moments(self.num_batches)
        self.order: list[int] = []  # batches as they are handed over

        self.now = 0.0  # seconds
        self.events: list[_Event] = []  # a heap
        self.fetch_clock = 0.0
        self.fetching: list[tuple[float, int]] = []  # a heap: the fetch clock at the end, and the batch

        self.num_dealt = 0
        self.next_workers = cycle(range(num_workers))  # in the order in which they are dealt batches
        self.worker = np.zeros(self.num_batches, dtype=np.int64)  # of each batch
        self.queues: list[deque[int]] = [deque() for _ in range(num_workers)]  # batches dealt, but not begun
        self.is_idle = [False] * num_workers  # waiting for a batch to be dealt
        self.is_busy = [False] * num_workers  # fetching; a worker that still starts is neither idle nor busy
        self.in_hand = [0] * num_workers  # batches dealt, but not handed over
        self.sender_free_s = [0.0] * num_workers  # when each worker's sending thread is free
        self.pin_free_s = 0.0  # when the pin thread is free

        self.arrived: deque[int] = deque()  # batches that the training loop can take
        self.loop_s = math.inf  # when the training loop continues
        self.receiving = -1  # the batch that the training loop is taking in, or -1
        self.is_stepping = False
        self.step_left_s = 0.0  # of the step, at full speed

        for worker in range(num_workers):
            heappush(self.events, (handover.startup_s, worker, _READY))
        for _ in range(min(num_workers * prefetch_factor, self.num_batches)):
            self.deal()

    def run(self) -> None:
        """Go from event to event until the last step is done.

        The next is an event of the heap, the end of a fetch, the end of a step, or the time at which the training loop
        asked to continue. Until then, fetches and the step progress at constant speeds. `training_loop` yields the time
        at which it continues, which is infinite while it waits for a batch or for the end of its step.
        """
        loop = self.training_loop()
        self.loop_s = next(loop)
        while True:
            fetch_speed, step_speed = self.speeds(len(self.fetching), self.is_stepping)
            event_s = self.events[0][0] if self.events else math.inf
            fetch_s = math.inf
            if self.fetching:
                fetch_s = self.now + (self.fetching[0][0] - self.fetch_clock) / fetch_speed
            step_s = math.inf
            if self.is_stepping:
                step_s = self.now + self.step_left_s / step_speed
            next_s = max(self.now, min(event_s, self.loop_s, fetch_s, step_s))  # rounding must not turn time back
            self.fetch_clock += (next_s - self.now) * fetch_speed
            self.step_left_s -= (next_s - self.now) * step_speed
            self.now = next_s
            # At equal times an event is first, so that the training loop can take a batch at the time of its arrival.
            # Then the training loop continues, if it asked to, and then a fetch ends: if the loop begins to receive a
            # batch of the worker that fetches, the end of the fetch frees the worker to answer. In the reverse order
            # the worker would be in its next fetch already, and would answer late. The end of a step is last.
            if next_s >= event_s:
                _, number, kind = heappop(self.events)
                self.handle(number, kind)
            elif fetch_s <= next_s < self.loop_s:
                _, batch = heappop(self.fetching)
                self.fetched(batch)
            else:  # the step has ended, or the training loop continues; it asks to only while there is no step
                self.is_stepping = False
                loop_s = next(loop, None)
                if loop_s is None:
                    return
                self.loop_s = loop_s

    def handle(self, number: int, kind: int) -> None:
        if kind == _READY:
            self.ready(number)
        elif kind == _ARRIVED:
            self.arrive(number)
        else:
            self.pinned(number)

    def training_loop(self) -> Iterator[float]:
        """Wait for a batch and take a step, again and again.

        Yield the time at which it continues. It is infinite if an event must wake it: an arrival, or the end of a step.
        """
        received_early = set[int]()  # batches that are held back until it is their turn, if `in_order`
        for next_in_order in range(self.num_batches):
            requested_s = self.now
            while True:
                batch = next_in_order
                if batch in received_early:
                    break
                while not self.arrived:
                    yield math.inf
                batch = self.arrived.popleft()
                if self.work.pin is None:  # otherwise the pin thread has received it
                    self.receiving = batch
                    received_s = self.now + float(self.work.receive[batch])
                    if self.is_busy[self.worker[batch]]:  # it answers late, or once its fetch has ended
                        received_s += self.held_s
                    yield received_s
                    self.receiving = -1
                if not self.in_order or batch == next_in_order:
                    break
                received_early.add(batch)
            self.moments.requested[batch] = requested_s
            self.moments.handed[batch] = self.now
            self.order.append(batch)
            self.in_hand[self.worker[batch]] -= 1
            self.deal()
            self.step_left_s = float(self.work.step[batch])
            self.is_stepping = True
            yield math.inf  # until the step has ended
            self.moments.step_stop[batch] = self.now

    def deal(self) -> None:
        """Deal the next batch, if there is one, to the worker whose turn it is.

        In order, that is the next worker, as in torch. Otherwise it is the next one with fewer than `prefetch_factor`
        batches in hand: there is one, because a batch is dealt at the start or when another is handed over.
        """
        if self.num_dealt == self.num_batches:
            return
        worker = next(self.next_workers)
        while not self.in_order and self.in_hand[worker] >= self.prefetch_factor:
            worker = next(self.next_workers)
        self.worker[self.num_dealt] = worker
        self.queues[worker].append(self.num_dealt)
        self.in_hand[worker] += 1
        self.num_dealt += 1
        if self.is_idle[worker]:
            self.ready(worker)

    def ready(self, worker: int) -> None:
        """Let a worker fetch its next batch, or wait for one."""
        queue = self.queues[worker]
        self.is_idle[worker] = not queue
        if queue:
            batch = queue.popleft()
            self.is_busy[worker] = True
            self.moments.read_start[batch] = self.now
            heappush(self.fetching, (self.fetch_clock + float(self.work.fetch[batch]), batch))

    def fetched(self, batch: int) -> None:
        """Let a worker send a batch, and go on with its next one.

        The training loop may be receiving an earlier batch of the worker, which can answer it only now.
        """
        worker = int(self.worker[batch])
        self.moments.read_stop[batch] = self.now
        sent_s = max(self.sender_free_s[worker], self.now) + float(self.work.handover[batch])
        self.sender_free_s[worker] = sent_s
        heappush(self.events, (sent_s, batch, _ARRIVED))
        if self.receiving >= 0 and self.worker[self.receiving] == worker:
            self.loop_s = min(self.loop_s, self.now + float(self.work.receive[self.receiving]))  # the hold has ended
        self.is_busy[worker] = False
        self.ready(worker)

    def arrive(self, batch: int) -> None:
        """Let the pin thread receive and pin a batch or, without a pin thread, the training loop take it.

        `held_s` is not added here: it is for receiving in the training loop, see `Handover`.
        """
        if self.work.pin is None:
            self.pinned(batch)
            return
        pin_start_s = max(self.pin_free_s, self.now) + float(self.work.receive[batch])
        self.pin_free_s = pin_start_s + float(self.work.pin[batch])
        self.moments.pin_start[batch] = pin_start_s
        self.moments.pin_stop[batch] = self.pin_free_s
        heappush(self.events, (self.pin_free_s, batch, _PINNED))

    def pinned(self, batch: int) -> None:
        """Let the training loop take a batch, and wake it if it waits for one."""
        self.arrived.append(batch)
        if self.receiving < 0 and not self.is_stepping:
            self.loop_s = self.now

    def timeline(self) -> Timeline:
        """Return the spans of the workers, the pin thread and the training loop, once the epoch has run."""
        moments = self.moments
        lanes = [*map(worker_lane, range(self.num_workers)), PIN_THREAD, LOOP]
        batches = np.arange(self.num_batches)
        started_workers = np.arange(self.num_workers)
        if self.startup_s == 0:
            started_workers = started_workers[:0]  # a start that takes no time has no span
        no_item = np.full_like(started_workers, -1)  # which is no item in every timeline
        start_s = np.zeros(started_workers.size)
        parts = [
            _Spans(started_workers, "start", no_item, start_s, start_s + self.startup_s),
            _Spans(self.worker, "read", batches, moments.read_start, moments.read_stop),
        ]
        if self.work.pin is not None:
            pin_order = np.argsort(moments.pin_start, kind="stable")  # of equal starts the first batch is first
            lane = np.full(self.num_batches, lanes.index(PIN_THREAD))
            parts.append(_Spans(lane, "pin", pin_order, moments.pin_start[pin_order], moments.pin_stop[pin_order]))
        order = np.array(self.order)
        lane = np.full(self.num_batches, lanes.index(LOOP))
        parts.append(_Spans(lane, "wait", order, moments.requested[order], moments.handed[order]))
        parts.append(_Spans(lane, "step", order, moments.handed[order], moments.step_stop[order]))
        return _timeline(lanes, parts)


def _without_workers(work: _BatchTimes) -> Timeline:
    """Return the timeline of a training loop that does everything itself, one thing after the other."""
    times_of_kind = {"read": work.fetch}
    if work.pin is not None:
        times_of_kind["pin"] = work.pin
    times_of_kind["step"] = work.step
    num_batches = work.fetch.size
    times_s = np.stack(list(times_of_kind.values()), axis=1)  # (batches, kinds)
    stop_s = np.cumsum(times_s)  # flat: all kinds of batch 0, then of batch 1, …
    start_s = np.append(0.0, stop_s[:-1])
    lane = np.zeros(num_batches, dtype=np.int64)
    batches = np.arange(num_batches)
    parts = []
    for column, kind in enumerate(times_of_kind):
        of_kind = slice(column, None, len(times_of_kind))
        parts.append(_Spans(lane, kind, batches, start_s[of_kind], stop_s[of_kind]))
    return _timeline([LOOP], parts)


class _Spans(NamedTuple):
    """Spans of one kind, as columns; `lane` contains indices into the list of lanes."""

    lane: NDArray[np.int64]
    kind: str
    item: NDArray[np.int64]
    start_s: Seconds
    stop_s: Seconds


def _timeline(lanes: Sequence[str], parts: Sequence[_Spans]) -> Timeline:
    """Return a timeline of rank 0 with the spans of all parts, each of which has a kind of its own."""
    lane = np.concatenate([spans.lane for spans in parts])
    return Timeline(
        rank=np.zeros_like(lane),
        lane=lane,
        kind=np.repeat(np.arange(len(parts)), [spans.lane.size for spans in parts]),
        item=np.concatenate([spans.item for spans in parts]),
        start_s=np.concatenate([spans.start_s for spans in parts]),
        stop_s=np.concatenate([spans.stop_s for spans in parts]),
        lanes=tuple(lanes),
        kinds=tuple(spans.kind for spans in parts),
    )
