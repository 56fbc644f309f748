"""`simulate`: when each item passes each stage, exactly, for finite queues, several workers and lock-step ranks.

Stages with finite queues obey a recurrence in max and plus: item n starts when it has arrived and a worker is free, and
leaves when it is done, the item before it has left and the next stage has taken item n - capacity (tandem queues with
blocking after service; Baccelli, Cohen, Olsder, Quadrat: Synchronization and Linearity, 1992). In a stage that does not
keep the order, the n-th item that is done takes the place of item n. Each time depends on earlier times only. So each
stage is a generator that yields the times at which its results leave, and takes its arrivals from the stage before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush, heapreplace
from itertools import chain, count, islice, pairwise, repeat, zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.checks import of_type, whole
from ..sampling.assignment import Assignment
from ..sampling.permutation import SEEDS
from ..timeline import Timeline
from .items import Items, counted, of_ranks
from .service import Seconds
from .stages import Pipeline, Stage, check_lockstep

_MOST_RANKS = 65_536
_MOST_PASSAGES = 1 << 25  # of an item through a stage: each needs some 150 bytes and a microsecond
_AT_START_S = 0.0  # all items are there, all workers are free and all queues are empty


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
    >>> [(span.kind, span.item, span.start_s, span.stop_s) for span in spans]
    [('read', 0, 0.0, 1.0), ('read', 1, 1.0, 2.0), ('train', 0, 1.0, 4.0), ('train', 1, 4.0, 7.0)]
    >>> from rankscope.sampling import assign
    >>> spans = simulate(Pipeline([Stage("read", 1.0)]), assign(6, 2, shuffle=False))
    >>> [(span.rank, span.item, span.start_s) for span in spans]
    [(0, 0, 0.0), (0, 2, 1.0), (0, 4, 2.0), (1, 1, 0.0), (1, 3, 1.0), (1, 5, 2.0)]
    """
    of_type("pipeline", pipeline, Pipeline)
    items_of_ranks = _items_of_ranks(items, num_ranks)
    seed = whole("seed", seed, *SEEDS)
    check_lockstep(pipeline, len(items_of_ranks))
    num_items = sum(len(rank_items.values) for rank_items in items_of_ranks)
    whole("items of all ranks times stages", num_items * len(pipeline.stages), 0, _MOST_PASSAGES)
    passages_of_ranks = []
    for rank, rank_items in enumerate(items_of_ranks):
        passages_of_ranks.append(_passages(pipeline, rank_items, seed, rank))
    arrivals = [_arrivals_at_last_stage(passages) for passages in passages_of_ranks]
    waits = ["blocked"] * len(pipeline.stages)
    if len(passages_of_ranks) == 1:
        no_limit = repeat(_AT_START_S)  # results of the last stage leave at once
        for _ in _flow(passages_of_ranks[0][-1], arrivals[0], no_limit):
            pass  # the passages record the times
    else:
        _keep_step([passages[-1] for passages in passages_of_ranks], arrivals)
        waits[-1] = "barrier"
    timelines = []
    for rank, (passages, rank_items) in enumerate(zip(passages_of_ranks, items_of_ranks, strict=True)):
        timelines.append(_timeline(rank, passages, rank_items.numbers, waits))
    return Timeline.concat(timelines)


def _items_of_ranks(items: int | Assignment, num_ranks: int | None) -> list[Items]:
    if not isinstance(items, Assignment):
        items_of_each = counted(whole("items", items, 0, _MOST_PASSAGES))
        num_ranks = whole("num_ranks", 1 if num_ranks is None else num_ranks, 1, _MOST_RANKS)
        return [items_of_each] * num_ranks
    if num_ranks not in (None, items.num_ranks):
        raise ValueError(f"num_ranks must be left out or the assignment's own, {items.num_ranks}, got {num_ranks!r}")
    return of_ranks(items)


class _PassageTimes(NamedTuple):
    """The passage of items through a stage, as columns in the order in which the stage took them."""

    worker: NDArray[np.int64]
    taken_s: Seconds
    done_s: Seconds
    left_s: Seconds
    items_out: NDArray[np.int64]  # in the order in which they left


class _Passage:
    """The passage of all items through one stage.

    `taken_s` and `left_s` are the times at which items are taken and leave, each in order of time. They grow while the
    simulation runs, and other stages read them.
    """

    def __init__(self, stage: Stage, service_s: Seconds, items: Sequence[int]) -> None:
        self.stage = stage
        self.items = items  # in the order in which they arrive and are taken
        self.keeps_order = stage.ordered or stage.num_workers == 1
        self.drawn_s = service_s  # by item
        self.service_s: list[float] = service_s.tolist()  # the same, for a loop in Python
        self.taken_s: list[float] = []
        self.left_s: list[float] = []
        self.items_out: Sequence[int] = items if self.keeps_order else []  # which `_as_done` fills, as items leave

    def times(self, items_in: NDArray[np.int64]) -> _PassageTimes:
        """Return the times once the simulation has ended; `items_in` are `items` as an array.

        All arrays have an entry per item. The position of an item is its index in the order of taking.
        """
        num_items = items_in.size
        taken_s = np.fromiter(self.taken_s, np.float64, num_items)
        done_s = taken_s + self.drawn_s[items_in]
        left_s = np.fromiter(self.left_s, np.float64, num_items)
        if self.keeps_order:
            worker = np.arange(num_items) % self.stage.num_workers  # items leave in order, so workers take turns
            return _PassageTimes(worker, taken_s, done_s, left_s, items_in)
        items_out = np.fromiter(self.items_out, np.int64, num_items)
        position_of_item = np.empty_like(items_in)
        position_of_item[items_in] = np.arange(num_items)
        positions_out = position_of_item[items_out]  # the positions of the items in the order in which they left
        left_s_by_position = np.empty_like(left_s)
        left_s_by_position[positions_out] = left_s
        worker = self._workers_by_position(positions_out)
        return _PassageTimes(worker, taken_s, done_s, left_s_by_position, items_out)

    def _workers_by_position(self, positions_out: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the worker of each item; `positions_out` are the positions in the order in which items leave.

        All workers are free at first. After that, the next item is taken by the worker whose item has just left.
        """
        workers = list(range(self.stage.num_workers))
        for position in positions_out.tolist():
            free_worker = workers[position]
            workers.append(free_worker)
        # At the end, free workers find no next item, so the list is longer than the items are.
        return np.fromiter(workers, np.int64, positions_out.size)


def _passages(pipeline: Pipeline, items: Items, seed: int, rank: int) -> list[_Passage]:
    """Return the passages of a rank's items through all stages, before the simulation."""
    passages = []
    items_in: Sequence[int] = range(len(items.values))
    for position, stage in enumerate(pipeline.stages):
        passage = _Passage(stage, stage.times_s(items, seed, rank, position), items_in)
        passages.append(passage)
        items_in = passage.items_out  # may be a list that is still empty: the next stage reads it while it grows
    return passages


def _arrivals_at_last_stage(passages: list[_Passage]) -> Iterator[float]:
    """Return the times at which items reach the last stage; they are computed when they are asked for."""
    num_items = len(passages[0].service_s)
    flow: Iterator[float] = repeat(_AT_START_S, num_items)
    for passage, next_passage in pairwise(passages):
        # At first, all slots of the queue are free. After that, a slot is free once the next stage has taken an item.
        # The iterator reads the list while the simulation appends to it, always after the entry has been appended.
        free_slots = chain(repeat(_AT_START_S, passage.stage.capacity), next_passage.taken_s)
        flow = _flow(passage, flow, free_slots)
    return flow


def _flow(passage: _Passage, arrivals: Iterator[float], free_slots: Iterable[float]) -> Iterator[float]:
    """Yield the times at which items leave a stage; `free_slots` are those at which the next queue has a free slot."""
    if passage.keeps_order:
        return _in_order(passage, arrivals, free_slots)
    return _as_done(passage, arrivals, free_slots)


def _in_order(passage: _Passage, arrivals: Iterator[float], free_slots: Iterable[float]) -> Iterator[float]:
    """Yield the times at which items leave a stage that keeps their order.

    An item is taken once it has arrived and a worker is free. It leaves once it is done, the item before it has left,
    and the next queue has a slot for it, which is the item's entry of `free_slots`.
    """
    add_taken = passage.taken_s.append
    add_left = passage.left_s.append
    # When a worker is free for item n: at the start, or when item n - num_workers has left.
    free = chain(repeat(_AT_START_S, passage.stage.num_workers), passage.left_s)
    service: Iterable[float] = passage.service_s
    if not isinstance(passage.items, range):  # an earlier stage has changed the order of the items
        service = map(passage.service_s.__getitem__, passage.items)
    left_s = _AT_START_S
    # `arrivals` come first: they end the loop, and a stage before that changes the order appends to `passage.items`.
    for start_s, seconds, free_slot_s, free_s in zip(arrivals, service, free_slots, free, strict=False):
        if free_s > start_s:  # written out, because `max` is slower
            start_s = free_s
        add_taken(start_s)
        done_s = start_s + seconds
        if done_s > left_s:  # otherwise the item waits for the one before it, which left at `left_s`
            left_s = done_s
        if free_slot_s > left_s:
            left_s = free_slot_s
        add_left(left_s)
        yield left_s


def _as_done(passage: _Passage, arrivals: Iterator[float], free_slots: Iterable[float]) -> Iterator[float]:
    """Yield the times at which items leave a stage in which the item that is done first leaves first.

    In each turn of the loop one item leaves, and its worker takes the next one.
    """
    assert isinstance(passage.items_out, list)
    add_taken = passage.taken_s.append
    add_left = passage.left_s.append
    add_item_out = passage.items_out.append
    service_s = passage.service_s
    # When a worker is free for the item at position n: at the start, or when the (n - num_workers)-th item has left.
    free = chain(repeat(_AT_START_S, passage.stage.num_workers), passage.left_s)
    # `arrivals` come before the items, because a stage before that changes the order appends to their list.
    waiting = zip(count(), arrivals, passage.items, free, strict=False)
    # A heap of the busy workers, the one that is done first on top: when it is done, the position of its item in the
    # order of taking, which decides between equal times, and the item.
    busy: list[tuple[float, int, int]] = []
    for position, start_s, item, _ in islice(waiting, passage.stage.num_workers):  # each has a free worker
        add_taken(start_s)
        heappush(busy, (start_s + service_s[item], position, item))
    for free_slot_s in free_slots:
        if not busy:  # all items have left
            return
        done_s, _, item = busy[0]
        left_s = done_s
        if free_slot_s > left_s:  # written out, because `max` is slower
            left_s = free_slot_s
        add_left(left_s)
        add_item_out(item)
        yield left_s
        next_item = next(waiting, None)
        if next_item is None:
            heappop(busy)
            continue
        position, start_s, item, free_s = next_item
        if free_s > start_s:
            start_s = free_s
        add_taken(start_s)
        heapreplace(busy, (start_s + service_s[item], position, item))


def _keep_step(last_passages: list[_Passage], arrivals: list[Iterator[float]]) -> None:
    """Pass items through the last stage of all ranks, step by step.

    In each step, all ranks with items left wait for the slowest of them.
    """
    step_end_s = _AT_START_S
    for step, arrivals_s in enumerate(zip_longest(*arrivals)):  # of this step's item on each rank
        step_begin_s = step_end_s
        passages_in_step = []
        for passage, arrival_s in zip(last_passages, arrivals_s, strict=True):
            if arrival_s is None:  # the rank has no items left
                continue
            taken_s = max(arrival_s, step_begin_s)
            passage.taken_s.append(taken_s)  # from which the iterator computes the next arrival
            step_end_s = max(step_end_s, taken_s + passage.service_s[passage.items[step]])
            passages_in_step.append(passage)
        for passage in passages_in_step:
            passage.left_s.append(step_end_s)


def _timeline(rank: int, passages: list[_Passage], numbers: NDArray[np.int64], waits: list[str]) -> Timeline:
    """Return the spans of a rank: those of work and of waiting, stage by stage; `waits` are the kinds of waiting."""
    lanes = [lane for passage in passages for lane in passage.stage.lanes()]
    stage_names = [passage.stage.name for passage in passages]
    kinds = list(dict.fromkeys([*stage_names, *waits]))  # each once
    parts = []
    items_in = np.arange(len(passages[0].taken_s))  # in the order in which they enter the first stage
    for passage, wait in zip(passages, waits, strict=True):
        stage = passage.stage
        times = passage.times(items_in)
        lane = lanes.index(stage.lanes()[0]) + times.worker  # the lanes of a stage's workers follow each other
        parts.append(_SpanColumns.of_kind(kinds.index(stage.name), lane, items_in, times.taken_s, times.done_s))
        waited = times.left_s > times.done_s
        waits_of_stage = _SpanColumns.of_kind(kinds.index(wait), lane, items_in, times.done_s, times.left_s)
        parts.append(waits_of_stage.take(waited))
        items_in = times.items_out
    spans = _SpanColumns.concatenated(parts)
    return Timeline(
        rank=np.full(spans.lane.size, rank),
        lane=spans.lane,
        kind=spans.kind,
        item=numbers[spans.item],
        start_s=spans.start_s,
        stop_s=spans.stop_s,
        lanes=tuple(lanes),
        kinds=tuple(kinds),
    )


class _SpanColumns(NamedTuple):
    """Spans of one rank as columns of a timeline: numbers of lanes, kinds and items, and times."""

    lane: NDArray[np.int64]
    kind: NDArray[np.int64]
    item: NDArray[np.int64]
    start_s: NDArray[np.float64]
    stop_s: NDArray[np.float64]

    @classmethod
    def of_kind(
        cls,
        kind: int,
        lane: NDArray[np.int64],
        item: NDArray[np.int64],
        start_s: NDArray[np.float64],
        stop_s: NDArray[np.float64],
    ) -> _SpanColumns:
        """Return spans that are all of one kind."""
        return cls(lane, np.full(lane.size, kind), item, start_s, stop_s)

    @classmethod
    def concatenated(cls, parts: Sequence[_SpanColumns]) -> _SpanColumns:
        """Return the spans of all parts, one part after the other."""
        columns = zip(*parts, strict=True)  # for each field, that of all parts
        return cls._make(np.concatenate(column) for column in columns)

    def take(self, rows: NDArray[np.bool_]) -> _SpanColumns:
        """Return these rows of all columns."""
        return _SpanColumns(self.lane[rows], self.kind[rows], self.item[rows], self.start_s[rows], self.stop_s[rows])
