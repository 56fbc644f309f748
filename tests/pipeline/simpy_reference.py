"""The same pipelines as SimPy processes and stores: the event-driven reference, and the peer to be quicker than."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import simpy

from rankscope.pipeline import Pipeline
from rankscope.pipeline.items import counted, of_ranks
from rankscope.sampling import Assignment

Times = dict[tuple[int, str, int], tuple[float, float, float]]  # (rank, stage, item): taken, done, left


def reference(pipeline: Pipeline, items: int | Assignment, seed: int = 0, num_ranks: int = 1) -> Times:
    """Run the pipeline as SimPy processes."""
    environment = simpy.Environment()
    seen: Times = {}
    ranks = of_ranks(items) if isinstance(items, Assignment) else [counted(items)] * num_ranks
    barrier = _Barrier(environment, [len(own.values) for own in ranks])
    for rank, own in enumerate(ranks):
        source = simpy.Store(environment)
        source.items.extend(enumerate(own.numbers.tolist()))
        for place, stage in enumerate(pipeline.stages):
            last = place == len(pipeline.stages) - 1
            target = simpy.Store(environment, capacity=float("inf") if last else stage.capacity)
            times = stage.times_s(own, seed, rank, place).tolist()
            turns = _Turns(environment)
            for _ in range(stage.num_workers):
                meet = barrier if last and len(ranks) > 1 else None
                work = _worker(environment, rank, stage, source, target, times, turns, meet, seen)
                environment.process(work)
            source = target
    environment.run()
    return seen


class _Turns:
    """Who may hand on: tickets in the order of taking."""

    def __init__(self, environment: simpy.Environment) -> None:
        self.environment, self.tickets = environment, 0
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
    """In step n, all ranks meet that have more than n items."""

    def __init__(self, environment: simpy.Environment, num_items: list[int]) -> None:
        self.environment, self.num_items = environment, num_items
        self.steps: dict[int, tuple[simpy.Event, list[None]]] = {}

    def arrive(self, step: int) -> simpy.Event:
        event, arrived = self.steps.setdefault(step, (self.environment.event(), []))
        arrived.append(None)
        if len(arrived) == sum(number > step for number in self.num_items):
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
        place, item = yield source.get()
        taken, ticket = environment.now, turns.ticket()
        yield environment.timeout(times[place])
        done = environment.now
        if stage.ordered:
            yield turns.of(ticket)
        yield target.put((place, item))
        if stage.ordered:
            turns.call(ticket + 1)
        if barrier:
            yield barrier.arrive(step)
        seen[rank, stage.name, item] = taken, done, environment.now
