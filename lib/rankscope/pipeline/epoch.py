"""An epoch of torch's `DataLoader`: the same queues, the same order, the same prefetching.

Source: `_MultiProcessingDataLoaderIter` in torch/utils/data/dataloader.py. At the start it deals num_workers ×
prefetch_factor indices round robin, then one more for each batch that is handed over. A worker reads its indices in the
order in which it got them. The training loop takes batches in the order in which they were dealt and holds back those
that arrive too early. With ``in_order=False`` it takes them as they arrive, and deals the next index to the next worker
that has fewer than prefetch_factor batches in hand.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import cycle
from typing import NamedTuple

from ..timeline import Span, Tape

LOOP = "training loop"
PIN_THREAD = "pin thread"


def worker_lane(worker: int) -> str:
    """Return the lane of a worker, the same in predictions and recordings."""
    return f"worker {worker}"


class BatchTimes(NamedTuple):
    """The times of each batch, in seconds; `pin` is None without a pin thread. Workers start to read at `startup_s`."""

    fetch: list[float]
    step: list[float]
    handover: list[float]
    receive: list[float]
    pin: list[float] | None
    startup_s: float


def epoch(work: BatchTimes, num_workers: int, prefetch_factor: int, in_order: bool) -> list[Span]:
    """Return the spans of an epoch; the last one is that of the last step."""
    if num_workers:
        return _Epoch(work, num_workers, prefetch_factor, in_order).run()
    tape = Tape()
    for batch, fetch_s in enumerate(work.fetch):
        tape.add(0, LOOP, "read", batch, fetch_s)
        if work.pin is not None:
            tape.add(0, LOOP, "pin", batch, work.pin[batch])
        tape.add(0, LOOP, "step", batch, work.step[batch])
    return tape.spans


class _Epoch:
    """An epoch with workers. When a batch is dealt, it is known when it arrives; the training loop asks in turn."""

    def __init__(self, work: BatchTimes, num_workers: int, prefetch_factor: int, in_order: bool) -> None:
        self.work = work
        self.prefetch_factor = prefetch_factor
        self.in_order = in_order
        self.tape = Tape()
        self.next_workers = cycle(range(num_workers))  # in the order in which they are dealt batches
        self.worker_of: list[int] = []  # of each batch that was dealt
        self.in_hand = [0] * num_workers  # batches dealt, but not handed over
        self.sender_free_s = [0.0] * num_workers  # when the sending thread of each worker is free
        self.arriving: list[tuple[float, int]] = []  # a heap: when a batch arrives, and the batch
        if work.startup_s > 0:
            for worker in range(num_workers):
                self.tape.add(0, worker_lane(worker), "start", -1, work.startup_s)
        for _ in range(num_workers * prefetch_factor):
            self.deal(0.0)

    def run(self) -> list[Span]:
        tape = self.tape
        received_early = set[int]()  # batches that are held back until it is their turn, if `in_order`
        for turn, _ in enumerate(self.work.fetch):
            handed_s = tape.free_s[0, LOOP]
            batch = turn
            if turn not in received_early:
                batch, handed_s = self.receive(handed_s)
            while self.in_order and batch != turn:
                received_early.add(batch)
                batch, handed_s = self.receive(handed_s)
            tape.wait(0, LOOP, "wait", batch, handed_s)
            self.in_hand[self.worker_of[batch]] -= 1
            self.deal(handed_s)
            tape.add(0, LOOP, "step", batch, self.work.step[batch])
        return tape.spans

    def deal(self, now_s: float) -> None:
        """Deal the next batch, if there is one, to the worker whose turn it is.

        In order, that is the next worker, as in torch. Otherwise it is the next one with fewer than `prefetch_factor`
        batches in hand: there is one, because a batch is dealt at the start or when another is handed over.
        """
        batch = len(self.worker_of)
        if batch == len(self.work.fetch):
            return
        worker = next(self.next_workers)
        while not self.in_order and self.in_hand[worker] >= self.prefetch_factor:
            worker = next(self.next_workers)
        self.worker_of.append(worker)
        self.in_hand[worker] += 1
        read_s = self.tape.add(0, worker_lane(worker), "read", batch, self.work.fetch[batch], after_s=now_s)
        sent_s = max(self.sender_free_s[worker], read_s) + self.work.handover[batch]
        self.sender_free_s[worker] = sent_s
        heappush(self.arriving, (sent_s, batch))

    def receive(self, now_s: float) -> tuple[int, float]:
        """Return the batch that arrives first, and when the training loop has it, which asked for it at `now_s`.

        No batch that is dealt later can arrive before it, so the pin thread can be computed no earlier than here.
        """
        arrived_s, batch = heappop(self.arriving)
        receive_s = self.work.receive[batch]
        if self.work.pin is None:
            return batch, max(now_s, arrived_s) + receive_s
        received_s = max(self.tape.free_s[0, PIN_THREAD], arrived_s) + receive_s
        pinned_s = self.tape.add(0, PIN_THREAD, "pin", batch, self.work.pin[batch], after_s=received_s)
        return batch, max(now_s, pinned_s)
