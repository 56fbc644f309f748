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
from itertools import chain, islice, pairwise, repeat

from ...common.checks import of_type, whole
from ...sampling.samplers.permutation import SEEDS
from ...timeline import Span, Timeline
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
    spans: list[Span] = []
    last_passages = []
    for rank in range(num_ranks):
        passages = []
        num_results = num_items
        for place, stage in enumerate(stages):
            num_results = stage.num_results(num_results)
            passages.append(_Passage(stage, rank, stage.times_s(num_results, seed, rank, place).tolist(), spans))
        # The items arrive at the first stage at time 0, and at each other one as they leave the one before.
        passages[0].arrivals = zip(repeat(0.0), range(num_items))
        for passage, next_passage in pairwise(passages):
            # At first, all slots of the queue are free. After that, a slot is free once the next stage has taken an
            # item: the list is read while it grows, always after the entry has been appended.
            next_passage.arrivals = passage.flow(chain(repeat(0.0, passage.stage.capacity), next_passage.taken_s))
        last_passages.append(passages[-1])
    if num_ranks > 1:
        _lock_step(last_passages)
    else:
        for _ in last_passages[0].flow(repeat(0.0)):  # its results leave at once
            pass
    lanes = [lane for stage in stages for lane in stage.lanes()]
    return Timeline.of(spans).named(lanes, [stage.name for stage in stages])


class _Passage:
    """The passage of a rank's items through one stage; `taken_s`, when each was taken, grows meanwhile."""

    def __init__(self, stage: Stage, rank: int, times_s: list[float], spans: list[Span]) -> None:
        self.stage = stage
        self.rank = rank
        self.times_s = times_s
        self.spans = spans
        self.lanes = stage.lanes()
        self.arrivals: Iterator[tuple[float, int]] = iter(())  # when each item arrives
        self.taken_s: list[float] = []
        # A heap of what workers have: by what it is to leave, its turn, the worker and the work.
        self.in_hand: list[tuple[float, int, int, Span]] = []

    def flow(self, free_slots_s: Iterable[float]) -> Iterator[tuple[float, int]]:
        """Yield when each item leaves, and the item; the next queue has a slot for each at `free_slots_s`.

        In each turn of the loop one item leaves, and its worker takes the next one.
        """
        for worker in range(self.stage.num_workers):
            self.take(worker, 0.0)
        left_s = 0.0
        for free_slot_s in free_slots_s:
            if not self.in_hand:
                return
            left_s = max(left_s, self.done_s(), free_slot_s)
            worker, item = self.leave(left_s, "blocked")
            yield left_s, item
            self.take(worker, left_s)

    def take(self, worker: int, free_s: float) -> None:
        """Let a worker take the next item or batch, if there is one, each item once both are there."""
        batch_size = self.stage.batch_size
        number = -1
        for arrived_s, item in islice(self.arrivals, batch_size or 1):
            start_s = max(arrived_s, free_s)
            self.taken_s.append(start_s)
            number = item
        if number < 0:
            return
        turn = len(self.taken_s) - 1
        if batch_size:
            turn //= batch_size
            number = turn
        done_s = start_s + self.times_s[number]
        work = Span(self.rank, self.lanes[worker], self.stage.name, number, start_s, done_s)
        leaves_by = turn if self.stage.ordered else done_s
        heappush(self.in_hand, (leaves_by, turn, worker, work))

    def done_s(self) -> float:
        """Return when the item is done whose turn it is."""
        return self.in_hand[0][-1].stop_s

    def leave(self, left_s: float, wait: str) -> tuple[int, int]:
        """Let the item leave whose turn it is, and return its worker and it.

        `wait` is the kind of its wait, if there is one.
        """
        _, _, worker, work = heappop(self.in_hand)
        self.spans.append(work)
        if left_s > work.stop_s:
            self.spans.append(Span(self.rank, work.lane, wait, work.item, work.stop_s, left_s))
        return worker, work.item


def _lock_step(passages: list[_Passage]) -> None:
    """Let all ranks take their next item, and wait for the slowest, again and again."""
    step_end_s = 0.0
    while True:
        for passage in passages:
            passage.take(0, step_end_s)
        if not passages[0].in_hand:
            return
        step_end_s = max(passage.done_s() for passage in passages)
        for passage in passages:
            passage.leave(step_end_s, "barrier")
