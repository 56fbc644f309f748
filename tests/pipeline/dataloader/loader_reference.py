"""torch's `_MultiProcessingDataLoaderIter` as SimPy processes; the one of the training loop follows it line by line."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import simpy

from rankscope.pipeline.dataloader.model import BatchTimes


@dataclass
class Reference:
    """`run` fills `seen`: (what, batch) and when."""

    work: BatchTimes
    num_workers: int
    prefetch_factor: int
    in_order: bool
    seen: dict[tuple[str, int], float] = field(default_factory=dict)

    def run(self) -> dict[tuple[str, int], float]:
        self.environment = environment = simpy.Environment()
        self.indices = [simpy.Store(environment) for _ in range(self.num_workers)]
        self.results, self.pinned = simpy.Store(environment), simpy.Store(environment)
        self.fetching: list[Any] = [None] * self.num_workers
        for worker in range(self.num_workers):
            sending = simpy.Store(environment)
            environment.process(self.fetch(worker, sending))
            environment.process(self.send(sending))
        if self.work.pin is not None:
            environment.process(self.pin())
        environment.run(environment.process(self.loop()))
        return self.seen

    def mark(self, what: str, batch: int) -> None:
        self.seen[what, batch] = self.environment.now

    def fetch(self, worker: int, sending: simpy.Store) -> Iterator[Any]:
        yield self.environment.timeout(self.work.startup_s)
        while True:
            batch = yield self.indices[worker].get()
            self.mark("read start", batch)
            self.fetching[worker] = self.environment.event()
            yield self.environment.timeout(self.work.fetch[batch])
            self.mark("read stop", batch)
            done, self.fetching[worker] = self.fetching[worker], None
            done.succeed()
            yield sending.put((worker, batch))

    def send(self, sending: simpy.Store) -> Iterator[Any]:
        while True:
            worker, batch = yield sending.get()
            yield self.environment.timeout(self.work.handover[batch])
            yield self.results.put((worker, batch))

    def pin(self) -> Iterator[Any]:
        while True:
            worker, batch = yield self.results.get()
            yield self.environment.timeout(self.work.receive[batch])
            self.mark("pin start", batch)
            yield self.environment.timeout(self.work.pin[batch])
            self.mark("pin stop", batch)
            yield self.pinned.put((worker, batch))

    def receive(self) -> Iterator[Any]:
        if self.work.pin is not None:
            return (yield self.pinned.get())
        worker, batch = yield self.results.get()
        fetching = self.fetching[worker]
        if fetching is None:
            yield self.environment.timeout(self.work.receive[batch])
        else:
            late = self.environment.timeout(self.work.receive[batch] + self.work.held_s)
            yield late | self.environment.process(self.answer(fetching, batch))
        return worker, batch

    def answer(self, fetching: Any, batch: int) -> Iterator[Any]:
        yield fetching
        yield self.environment.timeout(self.work.receive[batch])

    def loop(self) -> Iterator[Any]:
        self.sent, self.received, self.tasks = 0, 0, {}
        self.num_tasks, self.cycle = [0] * self.num_workers, itertools.cycle(range(self.num_workers))
        for _ in range(self.prefetch_factor * self.num_workers):
            self.try_put_index()
        for _ in self.work.fetch:
            request_s = self.environment.now
            batch = yield from self.next_data()
            self.seen["request", batch] = request_s
            self.mark("handed", batch)
            yield self.environment.timeout(self.work.step[batch])
            self.mark("step stop", batch)

    def next_data(self) -> Iterator[Any]:
        while True:
            while self.received not in self.tasks:
                self.received += 1
            if len(self.tasks[self.received]) == 2:
                worker, _ = self.tasks.pop(self.received)
                self.received += 1
                return self.process(self.received - 1, worker)
            worker, batch = yield from self.receive()
            if batch != self.received:
                if not self.in_order:
                    return self.process(batch, self.tasks.pop(batch)[0])
                self.tasks[batch] += ("data",)
            else:
                self.received += 1
                return self.process(batch, self.tasks.pop(batch)[0])

    def process(self, batch: int, worker: int) -> int:
        self.num_tasks[worker] -= 1
        self.try_put_index()
        return batch

    def try_put_index(self) -> None:
        if self.sent == len(self.work.fetch):
            return
        for _ in range(self.num_workers):
            worker = next(self.cycle)
            if self.in_order or self.num_tasks[worker] < self.prefetch_factor:
                break
        else:
            raise AssertionError("no worker has room")
        self.indices[worker].put(self.sent)
        self.tasks[self.sent] = (worker,)
        self.num_tasks[worker] += 1
        self.sent += 1
