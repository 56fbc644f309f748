"""`simulate`: when each item passes each stage, exactly, for finite queues, several workers and lock-step ranks.

Stages with finite queues obey a recurrence in max and plus: item n starts when it has arrived and a worker is free, and
leaves when it is done, the item before it has left and the next stage has taken item n - capacity (tandem queues with
blocking after service; Baccelli, Cohen, Olsder, Quadrat: Synchronization and Linearity, 1992). Where order is not kept
the n-th that is done stands for item n. All that a time depends on lies before it, so each stage is a generator that
yields when its results leave, and pulls its arrivals from the stage before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush, heapreplace
from itertools import chain, count, islice, pairwise, repeat, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.checks import of_type, whole
from ..sampling.assignment import Assignment
from ..timeline import Timeline
from .items import Items, counted, of_ranks
from .service import Seconds
from .stages import Pipeline, Stage, check_lockstep

_MOST_RANKS = 65_536
_MOST_PASSAGES = 1 << 25  # of an item through a stage: each takes some 150 bytes and a microsecond


def simulate(pipeline: Pipeline, items: int | Assignment, seed: int = 0, num_ranks: int | None = None) -> Timeline:
    """Return what happens when items pass through the pipeline, all of them there at time 0.

    `items` is how many there are, or an `Assignment`: then the ranks are its ranks, and the items of each are its
    batches, numbered from 0, where the assignment has a loader, else its indices, which the spans have as their `item`.

    A span whose kind is the stage's name is work; kind "blocked" follows it where the worker cannot hand on at once,
    for want of room or because it is not its turn. The lanes are `Stage.lanes()`.

    With several ranks each has such a pipeline and times of its own, and the last stage keeps lock-step: in each step
    every rank that has items left waits for the slowest, kind "barrier". What is drawn depends on seed, rank, place of
    the stage and place of the item alone, so pipelines that differ in workers or queues are compared on the same times.

    Raises ValueError for a stage without `service_s`, for numbers out of range, and for a last stage with several
    workers where ranks keep lock-step.

    >>> spans = simulate(Pipeline([Stage("read", 1.0), Stage("train", 3.0)]), 2)
    >>> [(span.kind, span.item, span.start_s, span.stop_s) for span in spans]
    [('read', 0, 0.0, 1.0), ('read', 1, 1.0, 2.0), ('train', 0, 1.0, 4.0), ('train', 1, 4.0, 7.0)]
    >>> from rankscope.sampling import assign
    >>> spans = simulate(Pipeline([Stage("read", 1.0)]), assign(6, 2, shuffle=False))
    >>> [(span.rank, span.item, span.start_s) for span in spans]
    [(0, 0, 0.0), (0, 2, 1.0), (0, 4, 2.0), (1, 1, 0.0), (1, 3, 1.0), (1, 5, 2.0)]
    """
    last = of_type("pipeline", pipeline, Pipeline).stages[-1]
    given = _given(items, num_ranks)
    seed = whole("seed", seed, -(2**63), 2**64 - 1)
    check_lockstep(pipeline, len(given))
    num_items = sum(len(own.values) for own in given)
    whole("items of all ranks times stages", num_items * len(pipeline.stages), 0, _MOST_PASSAGES)
    ranks = []
    for rank, own in enumerate(given):
        order: Sequence[int] = range(len(own.values))
        passages = []
        for place, stage in enumerate(pipeline.stages):
            passages.append(_Passage(stage, stage.times_s(own, seed, rank, place), order))
            order = passages[-1].items_out
        ranks.append(passages)
    arrivals = [_arrivals(passages) for passages in ranks]
    if len(ranks) == 1:
        for _ in _flow(ranks[0][-1], arrivals[0], repeat(0.0)):
            pass
    else:
        _keep_step([passages[-1] for passages in ranks], arrivals)
    waits = ["barrier" if len(ranks) > 1 and stage is last else "blocked" for stage in pipeline.stages]
    pairs = enumerate(zip(ranks, given, strict=True))
    return Timeline.concat([_timeline(rank, passages, own.numbers, waits) for rank, (passages, own) in pairs])


def _given(items: int | Assignment, num_ranks: int | None) -> list[Items]:
    if not isinstance(items, Assignment):
        own = counted(whole("items", items, 0, _MOST_PASSAGES))
        return [own] * whole("num_ranks", 1 if num_ranks is None else num_ranks, 1, _MOST_RANKS)
    if num_ranks not in (None, items.num_ranks):
        raise ValueError(f"num_ranks must be left out or the assignment's own, {items.num_ranks}, got {num_ranks!r}")
    return of_ranks(items)


class _Passage:
    """What happens at one stage: when items 0, 1, … are taken, in that order, and when they leave, in that order."""

    def __init__(self, stage: Stage, service_s: Seconds, items: Sequence[int]) -> None:
        self.stage, self.items = stage, items  # in the order of arrival, which is that of taking
        self.keeps_order = stage.ordered or stage.num_workers == 1
        self.drawn_s = service_s
        self.service_s: list[float] = service_s.tolist()
        self.taken_s: list[float] = []
        self.left_s: list[float] = []
        self.items_out: Sequence[int] = items if self.keeps_order else []

    def columns(self, item: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
        """Of these items, in the order of taking: worker, when taken, done and gone; then the items by leaving."""
        taken_s, left_s = (np.fromiter(times_s, np.float64, item.size) for times_s in (self.taken_s, self.left_s))
        workers = list(range(self.stage.num_workers))
        if self.keeps_order:
            return np.arange(item.size) % len(workers), taken_s, taken_s + self.drawn_s[item], left_s, item
        gone, place_of = np.fromiter(self.items_out, np.int64, item.size), np.empty_like(item)
        place_of[item] = np.arange(item.size)
        place, stop_s = place_of[gone], np.empty_like(left_s)
        stop_s[place] = left_s
        # the n-th to be taken has the worker of the (n - workers)-th to leave
        workers.extend(workers[before] for before in place.tolist())
        return np.fromiter(workers, np.int64, item.size), taken_s, taken_s + self.drawn_s[item], stop_s, gone


def _arrivals(passages: list[_Passage]) -> Iterator[float]:
    """When items reach the last stage, worked out as they are asked for."""
    flow: Iterator[float] = repeat(0.0, len(passages[0].service_s))
    for passage, after in pairwise(passages):
        room = chain(repeat(0.0, passage.stage.capacity), after.taken_s)  # grows ahead of who reads it
        flow = _flow(passage, flow, room)
    return flow


def _flow(passage: _Passage, arrivals: Iterator[float], room: Iterable[float]) -> Iterator[float]:
    return (_in_order if passage.keeps_order else _as_done)(passage, arrivals, room)


def _in_order(passage: _Passage, arrivals: Iterator[float], room: Iterable[float]) -> Iterator[float]:
    taken, left = passage.taken_s.append, passage.left_s.append
    free = chain(repeat(0.0, passage.stage.num_workers), passage.left_s)  # of item n: when item n - workers left
    service: Iterable[float] = passage.service_s
    if not isinstance(passage.items, range):
        service = map(passage.service_s.__getitem__, passage.items)
    leave = 0.0
    for start, seconds, room_s, free_s in zip(arrivals, service, room, free, strict=False):
        if free_s > start:
            start = free_s
        taken(start)
        done = start + seconds
        if done > leave:
            leave = done
        if room_s > leave:
            leave = room_s
        left(leave)
        yield leave


def _as_done(passage: _Passage, arrivals: Iterator[float], room: Iterable[float]) -> Iterator[float]:
    assert isinstance(passage.items_out, list)
    taken, left, gone = passage.taken_s.append, passage.left_s.append, passage.items_out.append
    service_s = passage.service_s
    free = chain(repeat(0.0, passage.stage.num_workers), passage.left_s)  # of the n-th: when the (n - workers)-th left
    takes = zip(count(), arrivals, passage.items, free, strict=False)
    busy: list[tuple[float, int, int]] = []  # done, place in the order of taking, item
    for place, start, item, _ in islice(takes, passage.stage.num_workers):
        taken(start)
        heappush(busy, (start + service_s[item], place, item))
    for room_s in room:
        if not busy:
            return
        leave, _, item = busy[0]
        if room_s > leave:
            leave = room_s
        left(leave)
        gone(item)
        yield leave
        for place, start, item, free_s in takes:
            if free_s > start:
                start = free_s
            taken(start)
            heapreplace(busy, (start + service_s[item], place, item))
            break
        else:
            heappop(busy)


def _keep_step(lasts: list[_Passage], arrivals: list[Iterator[float]]) -> None:
    """The last stage of all ranks, a step at a time: of those with items left, nobody goes on before the slowest."""
    together = 0.0
    for place, step in enumerate(zip_longest(*arrivals)):
        before, left = together, []
        for passage, start in zip(lasts, step, strict=True):
            if start is None:
                continue
            if before > start:
                start = before
            passage.taken_s.append(start)
            together = max(together, start + passage.service_s[passage.items[place]])
            left.append(passage.left_s)
        for left_s in left:
            left_s.append(together)


def _timeline(rank: int, passages: list[_Passage], numbers: NDArray[np.int64], waits: list[str]) -> Timeline:
    lanes = [lane for passage in passages for lane in passage.stage.lanes()]
    kinds = list(dict.fromkeys([*(passage.stage.name for passage in passages), *waits]))
    parts: list[tuple[Any, ...]] = []
    gone = np.arange(len(passages[0].taken_s))
    for passage, wait in zip(passages, waits, strict=True):
        item = gone
        worker, start_s, done_s, stop_s, gone = passage.columns(item)
        lane, late = worker + lanes.index(passage.stage.lanes()[0]), stop_s > done_s
        parts.append((lane, np.full(item.size, kinds.index(passage.stage.name)), item, start_s, done_s))
        parts.append((lane[late], np.full(late.sum(), kinds.index(wait)), item[late], done_s[late], stop_s[late]))
    lane, kind, item, start_s, stop_s = map(np.concatenate, zip(*parts, strict=True))
    return Timeline(np.full(lane.size, rank), lane, kind, numbers[item], start_s, stop_s, tuple(lanes), tuple(kinds))
