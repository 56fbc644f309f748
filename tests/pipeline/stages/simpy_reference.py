"""The same pipelines as SimPy processes and stores: the event-driven reference, and the peer to be quicker than."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import simpy

from rankscope.pipeline import Pipeline

Times = dict[tuple[int, str, int], tuple[float, float, float]]  # (rank, stage, item): taken, done, left


def reference(pipeline: Pipeline, num_items: int, seed: int = 0, num_ranks: int = 1) -> Times:
    """Run the pipeline as SimPy processes."""
    environment = simpy.Environment()
    seen: Times = {}
    barrier = _Barrier(environment, num_ranks)
    for rank in range(num_ranks):
        source = simpy.Store(environment)
        source.items.extend(range(num_items))
        num_arriving = num_items
        for place, stage in enumerate(pipeline.stages):
            last = place == len(pipeline.stages) - 1
            target = simpy.Store(environment, capacity=float("inf") if last else stage.capacity)
            turns = _Turns(environment, num_arriving)
            num_arriving = stage.num_results(num_arriving)
            times = stage.times_s(num_arriving, seed, rank, place).tolist()
            for _ in range(stage.num_workers):
                meet = barrier if last and num_ranks > 1 else None
                environment.process(_worker(environment, rank, stage, source, target, times, turns, meet, seen))
            source = target
    environment.run()
    return seen


class _Turns:
    """Who may take, one at a time, and who may hand on: tickets in the order of taking."""

    def __init__(self, environment: simpy.Environment, num_arriving: int) -> None:
        self.environment, self.tickets = environment, 0
        self.taking, self.num_arriving = simpy.Resource(environment), num_arriving
        self.called: dict[int, simpy.Event] = {}
        self.call(0)

    def ticket(self) -> int:
        self.tickets += 1
        return self.tickets - 1

    def of(self, ticket: int) -> simpy.Event:
        return self.called.setdefault(ticket, self.environment.event())

    def call(self, ticket: int) -> None:
        self.of(ticket).succeed()


class _Barrier:
    """All ranks meet in each step."""

    def __init__(self, environment: simpy.Environment, num_ranks: int) -> None:
        self.environment, self.num_ranks = environment, num_ranks
        self.steps: dict[int, tuple[simpy.Event, list[None]]] = {}

    def arrive(self, step: int) -> simpy.Event:
        event, arrived = self.steps.setdefault(step, (self.environment.event(), []))
        arrived.append(None)
        if len(arrived) == self.num_ranks:
            event.succeed()
        return event


def _worker(
    environment: simpy.Environment,
    rank: int,
    stage: Any,
    source: simpy.Store,
    target: simpy.Store,
    times: list[float],
    turns: _Turns,
    barrier: _Barrier | None,
    seen: Times,
) -> Iterator[simpy.Event]:
    for step in count():
        with turns.taking.request() as alone:
            yield alone
            ticket, size = turns.ticket(), stage.batch_size or 1
            num_left = turns.num_arriving - ticket * size
            if num_left <= 0:
                return
            for _ in range(min(size, num_left)):
                item = yield source.get()
            if stage.batch_size:
                item = ticket
        taken = environment.now
        yield environment.timeout(times[item])
        done = environment.now
        if stage.ordered:
            yield turns.of(ticket)
        yield target.put(item)
        if stage.ordered:
            turns.call(ticket + 1)
        if barrier:
            yield barrier.arrive(step)
        seen[rank, stage.name, item] = taken, done, environment.now
