"""An epoch of torch's `DataLoader`, event by event: the same queues, the same order, the same prefetching.

Source: `_MultiProcessingDataLoaderIter` in torch/utils/data/dataloader.py. At the start it deals num_workers ×
prefetch_factor indices round robin, then one more for each batch that is handed over. A worker reads its indices in the
order in which it got them. The training loop takes batches in the order in which they were dealt and holds back those
that arrive too early. With ``in_order=False`` it takes them as they arrive, and deals the next index to the next worker
that has fewer than prefetch_factor batches in hand.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from functools import cache
from heapq import heappop, heappush
from itertools import cycle
from typing import NamedTuple

from ...common.checks import whole
from ...sampling.samplers.permutation import SEEDS
from ...timeline import Span, Tape, Timeline
from ..service import Service, draw
from .cores import Cores

LOOP = "training loop"
PIN_THREAD = "pin thread"
# Different, so that drawn times of fetches and of steps are independent.
_FETCH_STREAM = 0
_STEP_STREAM = 1


def worker_lane(worker: int) -> str:
    """Return the lane of a worker, the same in predictions and recordings."""
    return f"worker {worker}"


def simulate_dataloader(
    fetch_s: Service,
    step_s: Service,
    num_batches: int,
    *,
    num_workers: int,
    prefetch_factor: int = 2,
    in_order: bool = True,
    seed: int = 0,
) -> Timeline:
    """Simulate one epoch of a DataLoader and return its timeline. Times are given as for a `Stage`, in seconds.

    A batch occupies its worker for `fetch_s` (dataset access and collate_fn), and the training loop for `step_s`, for
    any number of workers. With 0 workers the training loop fetches and steps in turn.

    The result is the best case rather than a forecast: real sleeps end late, a batch needs some tenths of a millisecond
    to reach the training loop, workers take tens of milliseconds to start, and cores may be short. For batches that
    arrive every 1 to 3 ms, it was 9 % too fast in the median, and 45 % in the worst case. For a forecast, record the
    loader by `record_dataloader`, and ask `advise`.

    Raises ValueError if a count is out of range or a time is negative or not finite.

    >>> for num_workers in (0, 1, 4):
    ...     timeline = simulate_dataloader(0.03, 0.01, 100, num_workers=num_workers)
    ...     print(round(timeline.makespan_s, 6))
    4.0
    3.01
    1.03
    """
    num_batches = whole("num_batches", num_batches, 1)
    num_workers = whole("num_workers", num_workers, 0)
    prefetch_factor = whole("prefetch_factor", prefetch_factor, 1)
    seed = whole("seed", seed, *SEEDS)
    rank = 0
    fetch = draw("fetch_s", fetch_s, num_batches, seed, rank, _FETCH_STREAM).tolist()
    step = draw("step_s", step_s, num_batches, seed, rank, _STEP_STREAM).tolist()
    nothing_s = [0.0] * num_batches
    spans = epoch(BatchTimes(fetch, step, nothing_s, nothing_s), num_workers, prefetch_factor, in_order, Cores())
    return Timeline.of(spans).named([*map(worker_lane, range(num_workers)), LOOP], ())


class BatchTimes(NamedTuple):
    """The times of each batch, in seconds.

    A worker fetches a batch in `fetch`, and its sending thread needs `handover`. Receiving the batch costs the training
    loop `receive` or, if there is a pin thread, that thread `receive` and `pin`. The training loop receives it up to
    `held_s` later while the batch's worker is busy with its next batch, because the worker must answer, and cannot
    while a fetch holds Python's interpreter lock. For the pin thread, this is not modelled. Workers start to read at
    `startup_s`.
    """

    fetch: list[float]
    step: list[float]
    handover: list[float]
    receive: list[float]
    pin: list[float] | None = None
    held_s: float = 0.0
    startup_s: float = 0.0


def epoch(work: BatchTimes, num_workers: int, prefetch_factor: int, in_order: bool, cores: Cores) -> list[Span]:
    """Return the spans of an epoch; the last one is that of the last step."""
    if num_workers:
        return _Epoch(work, num_workers, prefetch_factor, in_order, cores).run()
    tape = Tape()
    for batch, fetch_s in enumerate(work.fetch):
        tape.add(0, LOOP, "read", batch, fetch_s)
        if work.pin is not None:
            tape.add(0, LOOP, "pin", batch, work.pin[batch])
        tape.add(0, LOOP, "step", batch, work.step[batch])
    return tape.spans


class _Worker:
    """A worker."""

    def __init__(self, number: int) -> None:
        self.lane = worker_lane(number)
        self.queue: deque[int] = deque()  # batches dealt, but not begun
        self.in_hand = 0  # batches dealt, but not handed over
        self.is_busy = True  # starting or fetching; otherwise it waits for a batch to be dealt
        self.fetch_start_s = 0.0
        self.sender_free_s = 0.0  # when its sending thread is free


class _Epoch:
    """An epoch, event by event.

    All fetches run at one speed, which changes whenever a fetch or a step begins or ends. So the time when a fetch
    ends is not known in advance, but its reading of `fetch_clock`, which runs at that speed, is.
    """

    def __init__(self, work: BatchTimes, num_workers: int, prefetch_factor: int, in_order: bool, cores: Cores) -> None:
        self.work = work
        self.num_batches = len(work.fetch)
        self.prefetch_factor = prefetch_factor
        self.in_order = in_order
        self.speeds = cache(cores.speeds)  # there are few different numbers of fetches
        self.spans: list[Span] = []

        self.now = 0.0  # seconds
        # A heap of arrivals of batches: the time, the batch, and whether it is pinned.
        self.events: list[tuple[float, int, bool]] = [(math.inf, -1, False)]  # the last one never comes
        self.fetch_clock = 0.0
        self.fetching: list[tuple[float, int]] = [(math.inf, -1)]  # a heap: the fetch clock at the end, and the batch

        self.workers = [_Worker(number) for number in range(num_workers)]
        self.next_workers = cycle(self.workers)  # in the order in which they are dealt batches
        self.worker_of: list[_Worker] = []  # of each batch that was dealt
        self.pin_free_s = 0.0  # when the pin thread is free

        self.arrived: deque[int] = deque()  # batches that the training loop can take
        self.loop_s = math.inf  # when the training loop continues
        self.receiving = -1  # the batch that the training loop is taking in, or -1
        self.step_left_s = math.inf  # of the step, at full speed; infinite while there is none

        for _ in range(num_workers * prefetch_factor):
            self.deal()

    def run(self) -> list[Span]:
        """Go from event to event until the last step is done.

        The next is an event of the heap, the end of a fetch, the end of a step, or the time at which the training loop
        asked to continue. Until then, fetches and the step progress at constant speeds. `training_loop` yields the time
        at which it continues, which is infinite while it waits for a batch or for the end of its step.
        """
        loop = self.training_loop()
        next(loop)  # it waits for the first batch
        self.now = self.work.startup_s
        self.fetch_clock = self.now
        for worker in self.workers:
            if self.now > 0:
                self.spans.append(Span(0, worker.lane, "start", -1, 0.0, self.now))
            self.ready(worker)
        while True:
            fetch_speed, step_speed = self.speeds(len(self.fetching) - 1, self.step_left_s < math.inf)
            event_s = self.events[0][0]
            fetch_s = self.now + (self.fetching[0][0] - self.fetch_clock) / fetch_speed
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
                _, batch, is_pinned = heappop(self.events)
                self.arrive(batch, is_pinned)
            elif fetch_s <= next_s < self.loop_s:
                _, batch = heappop(self.fetching)
                self.fetched(batch)
            else:  # the step has ended, or the training loop continues; it asks to only while there is no step
                self.step_left_s = math.inf
                loop_s = next(loop, None)
                if loop_s is None:
                    return self.spans
                self.loop_s = loop_s

    def arrive(self, batch: int, is_pinned: bool) -> None:
        """Let a batch arrive in the process of the training loop, or from the pin thread."""
        if self.work.pin is not None and not is_pinned:
            pin_start_s = max(self.pin_free_s, self.now) + self.work.receive[batch]
            self.pin_free_s = pin_start_s + self.work.pin[batch]
            self.spans.append(Span(0, PIN_THREAD, "pin", batch, pin_start_s, self.pin_free_s))
            heappush(self.events, (self.pin_free_s, batch, True))
        else:  # the training loop can take the batch, and wakes if it waits for one
            self.arrived.append(batch)
            if self.receiving < 0 and self.step_left_s == math.inf:
                self.loop_s = self.now

    def training_loop(self) -> Iterator[float]:
        """Wait for a batch and take a step, again and again.

        Yield the time at which it continues. It is infinite if an event must wake it: an arrival, or the end of a step.
        """
        received: list[int] = []  # batches that are held back until it is their turn, if `in_order`
        for next_in_order in range(self.num_batches):
            requested_s = self.now
            while not received or (self.in_order and next_in_order not in received):
                while not self.arrived:
                    yield math.inf
                self.receiving = self.arrived.popleft()
                if self.work.pin is None:  # otherwise the pin thread has received it
                    # A worker answers late while it is busy with another batch.
                    held_s = self.work.held_s if self.worker_of[self.receiving].is_busy else 0.0
                    yield self.now + self.work.receive[self.receiving] + held_s
                received.append(self.receiving)
                self.receiving = -1
            batch = next_in_order if self.in_order else received[0]
            received.remove(batch)
            handed_s = self.now
            self.spans.append(Span(0, LOOP, "wait", batch, requested_s, handed_s))
            self.worker_of[batch].in_hand -= 1
            self.deal()
            self.step_left_s = self.work.step[batch]
            yield math.inf  # until the step has ended
            self.spans.append(Span(0, LOOP, "step", batch, handed_s, self.now))

    def deal(self) -> None:
        """Deal the next batch, if there is one, to the worker whose turn it is.

        In order, that is the next worker, as in torch. Otherwise it is the next one with fewer than `prefetch_factor`
        batches in hand: there is one, because a batch is dealt at the start or when another is handed over.
        """
        batch = len(self.worker_of)
        if batch == self.num_batches:
            return
        worker = next(self.next_workers)
        while not self.in_order and worker.in_hand >= self.prefetch_factor:
            worker = next(self.next_workers)
        self.worker_of.append(worker)
        worker.queue.append(batch)
        worker.in_hand += 1
        if not worker.is_busy:
            self.ready(worker)

    def ready(self, worker: _Worker) -> None:
        """Let a worker fetch its next batch, or wait for one."""
        worker.is_busy = bool(worker.queue)
        if worker.queue:
            batch = worker.queue.popleft()
            worker.fetch_start_s = self.now
            heappush(self.fetching, (self.fetch_clock + self.work.fetch[batch], batch))

    def fetched(self, batch: int) -> None:
        """Let a worker send a batch, and go on with its next one.

        The training loop may be receiving an earlier batch of the worker, which can answer it only now.
        """
        worker = self.worker_of[batch]
        self.spans.append(Span(0, worker.lane, "read", batch, worker.fetch_start_s, self.now))
        worker.sender_free_s = max(worker.sender_free_s, self.now) + self.work.handover[batch]
        heappush(self.events, (worker.sender_free_s, batch, False))
        if self.receiving >= 0 and self.worker_of[self.receiving] is worker:
            self.loop_s = min(self.loop_s, self.now + self.work.receive[self.receiving])  # the hold has ended
        self.ready(worker)
