"""`simulate`: when each item passes each stage, exactly, for finite queues, several workers and lock-step ranks.

Stages with finite queues obey a recurrence in max and plus: item n starts when it has arrived and a worker is free, and
leaves when it is done, the item before it has left and the next stage has taken item n - capacity (tandem queues with
blocking after service; Baccelli, Cohen, Olsder, Quadrat: Synchronization and Linearity, 1992). In a stage that does not
keep the order, the n-th item that is done takes the place of item n. Each time depends on earlier times only. So each
stage is a generator that yields its results as they leave, and takes its arrivals from the stage before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import chain, pairwise, repeat
from typing import NamedTuple

from ..common.checks import of_type, whole
from ..sampling.permutation import SEEDS
from ..timeline import Tape, Timeline
from .stages import Pipeline, Stage


def simulate(pipeline: Pipeline, items: int, seed: int = 0, num_ranks: int = 1) -> Timeline:
    """Simulate the pipeline for so many items, which are all available at time 0, and return its timeline.

    A span whose kind is the stage's name is work. A span of kind "blocked" follows it if the worker cannot hand its
    result on at once, because the queue is full or because an earlier item is not done. The lanes are `Stage.lanes()`.

    If there are several ranks, each has its own pipeline, its own items and its own times, and the last stage runs in
    lock-step: in each step every rank waits for the slowest, as a span of kind "barrier". Drawn times depend only on
    the seed, the rank, the position of the stage and the number of the item, so pipelines that differ in workers or
    queues are compared on the same times.

    Raises ValueError if a stage has no `service_s`, a number is out of range, or the last stage has several workers
    while ranks run in lock-step.

    >>> spans = simulate(Pipeline([Stage("read", 1.0), Stage("train", 3.0)]), 2)
    >>> [(span.kind, span.item, span.start_s, span.stop_s) for span in spans.select(kind="train")]
    [('train', 0, 1.0, 4.0), ('train', 1, 4.0, 7.0)]
    """
    stages = of_type("pipeline", pipeline, Pipeline).stages
    num_items = whole("items", items, 0)
    seed = whole("seed", seed, *SEEDS)
    num_ranks = whole("num_ranks", num_ranks, 1)
    if num_ranks > 1 and stages[-1].num_workers > 1:
        raise ValueError(f"in lock-step the last stage must have 1 worker, got {stages[-1].num_workers}")
    tape = Tape()
    arrivals_of_ranks = []
    last_passages = []
    for rank in range(num_ranks):
        passages = []
        for position, stage in enumerate(stages):
            passages.append(_Passage(tape, rank, stage, stage.times_s(num_items, seed, rank, position).tolist(), []))
        arrivals_of_ranks.append(_arrivals(passages, num_items))
        last_passages.append(passages[-1])
    if num_ranks == 1:
        for _ in last_passages[0].flow(arrivals_of_ranks[0], repeat(0.0)):  # its results leave at once
            pass
    for arrivals in zip(*arrivals_of_ranks, strict=True):  # of one step; if there is one rank, none are left
        steps = list(zip(last_passages, arrivals, strict=True))
        lane = stages[-1].name
        step_end_s = max([passage.take(arrival, lane) for passage, arrival in steps])
        for passage, arrival in steps:
            passage.wait(lane, "barrier", arrival.item, step_end_s)
    lanes = [lane for stage in stages for lane in stage.lanes()]
    spans = sorted(tape.spans, key=lambda span: span.rank)
    return Timeline.of(spans).named(lanes, [stage.name for stage in stages])


class _Result(NamedTuple):
    """An item, and when it leaves a stage."""

    left_s: float
    item: int


class _Passage(NamedTuple):
    """The passage of a rank's items through one stage; `taken_s`, when each was taken, grows meanwhile."""

    tape: Tape
    rank: int
    stage: Stage
    times_s: list[float]
    taken_s: list[float]

    def flow(self, arrivals: Iterator[_Result], free_slots_s: Iterable[float]) -> Iterator[_Result]:
        """Yield the items as they leave; `free_slots_s` are the times at which the next queue has a slot for each.

        In each turn of the loop one item leaves, and its worker takes the next one.
        """
        # A heap of the items that workers have: what decides which leaves first, and then when it is done.
        in_hand: list[tuple[float, int, float, int, str]] = []

        def take(lane: str) -> None:
            turn = len(self.taken_s)
            for arrival in arrivals:
                done_s = self.take(arrival, lane)
                leaves_by = turn if self.stage.ordered else done_s
                heappush(in_hand, (leaves_by, turn, done_s, arrival.item, lane))
                return

        for lane in self.stage.lanes():
            take(lane)
        left_s = 0.0
        for free_slot_s in free_slots_s:
            if not in_hand:
                return
            _, _, done_s, item, lane = heappop(in_hand)
            left_s = max(left_s, done_s, free_slot_s)
            self.wait(lane, "blocked", item, left_s)
            yield _Result(left_s, item)
            take(lane)

    def take(self, arrival: _Result, lane: str) -> float:
        """Let a worker take an item, once both are there; return when it is done."""
        start_s = max(arrival.left_s, self.tape.free_s[self.rank, lane])
        self.taken_s.append(start_s)
        return self.tape.add(self.rank, lane, self.stage.name, arrival.item, self.times_s[arrival.item], start_s)

    def wait(self, lane: str, kind: str, item: int, until_s: float) -> None:
        if until_s > self.tape.free_s[self.rank, lane]:
            self.tape.wait(self.rank, lane, kind, item, until_s)


def _arrivals(passages: list[_Passage], num_items: int) -> Iterator[_Result]:
    """Return what arrives at the last stage of a rank; it is computed when it is asked for."""
    flow: Iterator[_Result] = map(_Result, repeat(0.0), range(num_items))
    for passage, next_passage in pairwise(passages):
        # At first, all slots of the queue are free. After that, a slot is free once the next stage has taken an item:
        # the list is read while it grows, always after the entry has been appended.
        flow = passage.flow(flow, chain(repeat(0.0, passage.stage.capacity), next_passage.taken_s))
    return flow
