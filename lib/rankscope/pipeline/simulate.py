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
from itertools import chain, repeat, zip_longest
from typing import NamedTuple

from ..common.checks import of_type, whole
from ..sampling.assignment import Assignment
from ..sampling.permutation import SEEDS
from ..timeline import Tape, Timeline
from .items import Items, counted, of_ranks
from .stages import Pipeline, Stage, check_lockstep


def simulate(pipeline: Pipeline, items: int | Assignment, seed: int = 0, num_ranks: int | None = None) -> Timeline:
    """Simulate the pipeline and return its timeline. All items are available at time 0.

    `items` is their number, or an `Assignment`, which then also determines the ranks. If the assignment has a loader,
    the items of a rank are its batches, numbered from 0; otherwise they are its indices, which are the `item` of spans.

    A span whose kind is the stage's name is work. A span of kind "blocked" follows it if the worker cannot hand its
    result on at once, because the queue is full or because an earlier item is not done. The lanes are `Stage.lanes()`.

    If there are several ranks, each has its own pipeline and its own times, and the last stage runs in lock-step: in
    each step every rank that has items left waits for the slowest, as a span of kind "barrier". Drawn times depend only
    on the seed, the rank, the position of the stage and the position of the item, so pipelines that differ in workers
    or queues are compared on the same times.

    Raises ValueError if a stage has no `service_s`, a number is out of range, or the last stage has several workers
    while ranks run in lock-step.

    >>> spans = simulate(Pipeline([Stage("read", 1.0), Stage("train", 3.0)]), 2)
    >>> [(span.kind, span.item, span.start_s, span.stop_s) for span in spans.select(kind="train")]
    [('train', 0, 1.0, 4.0), ('train', 1, 4.0, 7.0)]
    >>> from rankscope.sampling import assign
    >>> spans = simulate(Pipeline([Stage("read", 1.0)]), assign(6, 2, shuffle=False))
    >>> [(span.item, span.start_s) for span in spans.select(rank=1)]
    [(1, 0.0), (3, 1.0), (5, 2.0)]
    """
    of_type("pipeline", pipeline, Pipeline)
    items_of_ranks = _items_of_ranks(items, num_ranks)
    seed = whole("seed", seed, *SEEDS)
    check_lockstep(pipeline, len(items_of_ranks))
    tape = Tape()
    last_stages = []
    for rank, rank_items in enumerate(items_of_ranks):
        passages = []
        for position, stage in enumerate(pipeline.stages):
            times_s = stage.times_s(rank_items, seed, rank, position).tolist()
            passages.append(_Passage(tape, rank, stage, rank_items.numbers.tolist(), times_s, []))
        last_stages.append(_LastStage(passages[-1], _arrivals(passages, len(rank_items.values))))
    if len(last_stages) > 1:
        _keep_step(last_stages)
    else:
        passage, arrivals = last_stages[0]
        for _ in passage.flow(arrivals, repeat(0.0)):  # its results leave at once
            pass
    lanes = [lane for stage in pipeline.stages for lane in stage.lanes()]
    kinds = [stage.name for stage in pipeline.stages]
    return Timeline.of(sorted(tape.spans, key=lambda span: span.rank)).named(lanes, kinds)


def _items_of_ranks(items: int | Assignment, num_ranks: int | None) -> list[Items]:
    if not isinstance(items, Assignment):
        items_of_each = counted(whole("items", items, 0))
        return [items_of_each] * whole("num_ranks", 1 if num_ranks is None else num_ranks, 1)
    if num_ranks is not None:
        whole("num_ranks", num_ranks, items.num_ranks, items.num_ranks)
    return of_ranks(items)


class _Result(NamedTuple):
    """An item, by its place in the items of its rank, and when it leaves a stage."""

    left_s: float
    place: int


class _Passage(NamedTuple):
    """The passage of all items of a rank through one stage; `taken_s`, when each was taken, grows meanwhile."""

    tape: Tape
    rank: int
    stage: Stage
    numbers: list[int]
    times_s: list[float]
    taken_s: list[float]

    def flow(self, arrivals: Iterator[_Result], free_slots_s: Iterable[float]) -> Iterator[_Result]:
        """Yield the items as they leave; `free_slots_s` are the times at which the next queue has a slot for each.

        In each turn of the loop one item leaves, and its worker takes the next one.
        """
        # A heap of the items that workers have: what decides which leaves first, its turn, when it is done, and more.
        in_hand: list[tuple[float, int, float, int, str]] = []
        turn = 0

        def take(lane: str) -> None:
            nonlocal turn
            arrival = next(arrivals, None)
            if arrival is not None:
                done_s = self.take(arrival, lane)
                heappush(in_hand, (turn if self.stage.ordered else done_s, turn, done_s, arrival.place, lane))
                turn += 1

        for lane in self.stage.lanes():
            take(lane)
        left_s = 0.0
        for free_slot_s in free_slots_s:
            if not in_hand:
                return
            _, _, done_s, place, lane = heappop(in_hand)
            left_s = max(left_s, done_s, free_slot_s)
            if left_s > done_s:
                self.tape.wait(self.rank, lane, "blocked", self.numbers[place], left_s)
            yield _Result(left_s, place)
            take(lane)

    def take(self, arrival: _Result, lane: str) -> float:
        """Let a worker take an item, once both are there; return when it is done."""
        start_s = max(arrival.left_s, self.tape.free_s[self.rank, lane])
        self.taken_s.append(start_s)
        number = self.numbers[arrival.place]
        return self.tape.add(self.rank, lane, self.stage.name, number, self.times_s[arrival.place], start_s)


class _LastStage(NamedTuple):
    """The passage through the last stage, and what arrives there."""

    passage: _Passage
    arrivals: Iterator[_Result]


def _arrivals(passages: list[_Passage], num_items: int) -> Iterator[_Result]:
    """Return what arrives at the last stage of a rank; it is computed when it is asked for."""
    flow: Iterator[_Result] = (_Result(0.0, place) for place in range(num_items))
    for passage, next_passage in zip(passages, passages[1:], strict=False):
        # At first, all slots of the queue are free. After that, a slot is free once the next stage has taken an item:
        # the list is read while it grows, always after the entry has been appended.
        free_slots_s = chain(repeat(0.0, passage.stage.capacity), next_passage.taken_s)
        flow = passage.flow(flow, free_slots_s)
    return flow


def _keep_step(last_stages: list[_LastStage]) -> None:
    """Pass items through the last stage of all ranks: in each step, all ranks with items left wait for the slowest."""
    for arrivals in zip_longest(*(arrivals for _, arrivals in last_stages)):  # of one step, None where none is left
        in_step = []
        for (passage, _), arrival in zip(last_stages, arrivals, strict=True):
            if arrival is not None:
                (lane,) = passage.stage.lanes()
                in_step.append((passage, lane, arrival, passage.take(arrival, lane)))
        step_end_s = max(done_s for _, _, _, done_s in in_step)
        for passage, lane, arrival, done_s in in_step:
            if step_end_s > done_s:
                passage.tape.wait(passage.rank, lane, "barrier", passage.numbers[arrival.place], step_end_s)
