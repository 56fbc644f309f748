"""A rank's plan, carried out on numpy arrays by a wire that reads and writes as late, or as early, as it may."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from rankscope.collectives import Schedule, build, run_local
from rankscope.collectives.wire import plan
from rankscope.collectives.wire.plan import Elements, Plan, Post, Wait, Write

from ..extents import first_in_test
from .cases import NAMES, allows, options, schedules


def plans(schedule: Schedule, num_elements: int, ahead: bool = True) -> list[Plan]:
    return plan.plans(schedule, schedule.chunk_ends(num_elements), ahead=ahead)


def everything(num_ranks: int) -> Iterator[Schedule]:
    yield from schedules(num_ranks)
    for collective, name in NAMES:
        if allows(collective, name, num_ranks):
            for settings in options(collective, name, num_ranks):
                yield build(collective, name, num_ranks, **settings)


def overlap(first: Elements, second: Elements) -> bool:
    return first.scratch == second.scratch and first.start < second.stop and second.start < first.stop


def check_memory(rank_plan: Plan) -> None:
    """Nothing is written where a transfer under way reads or writes, and nothing read where one writes."""
    under_way: dict[int, Any] = {}
    for op in rank_plan.program:
        if isinstance(op, Post):
            for number in op.transfers:
                new = rank_plan.transfers[number]
                limit = rank_plan.num_scratch if new.span.scratch else rank_plan.num_elements
                assert 0 <= new.span.start < new.span.stop <= limit
                for old in under_way.values():
                    assert (new.sends and old.sends) or not overlap(new.span, old.span), (new, old)
                under_way[number] = new
        elif isinstance(op, Wait):
            del under_way[op.transfer]
        else:
            assert isinstance(op, Write)
            for old in under_way.values():
                assert not overlap(op.to, old.span), (op, old)
                assert old.sends or not overlap(op.source, old.span), (op, old)
    assert not under_way, "the program waits for every transfer"


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", first_in_test(4, [1, 3, 4, 6, 2, 8]))
def test_nothing_is_written_where_a_message_may_be_read(num_ranks: int) -> None:
    for schedule in everything(num_ranks):
        for ahead in (True, False):
            for rank_plan in plans(schedule, 24 * num_ranks * 7, ahead):
                check_memory(rank_plan)


class Wire:
    """Carries out all ranks' programs; a message moves at a random moment after both ends have posted it."""

    def __init__(self, all_plans: list[Plan], memory: list[dict[bool, np.ndarray]], seed: int) -> None:
        self.plans, self.memory, self.random = all_plans, memory, random.Random(seed)
        self.posted: dict[tuple[int, int, int], dict[bool, tuple[int, int]]] = {}  # (src, dst, step) -> ends
        self.done: set[tuple[int, int]] = set()

    def run(self) -> None:
        at = [0] * len(self.plans)
        while any(place < len(rank_plan.program) for place, rank_plan in zip(at, self.plans, strict=True)):
            moved = False
            for rank in self.random.sample(range(len(at)), len(at)):
                while at[rank] < len(self.plans[rank].program) and self.step(rank, self.plans[rank].program[at[rank]]):
                    at[rank] += 1
                    moved = True
                    if self.random.random() < 0.3:
                        break
            ready = [key for key, ends in self.posted.items() if len(ends) == 2]
            for key in self.random.sample(ready, self.random.randint(0, len(ready)) if moved else len(ready)):
                self.move(self.posted.pop(key))
                moved = True
            assert moved, "they wait for each other for ever"

    def step(self, rank: int, op: Any) -> bool:
        if isinstance(op, Wait):
            return (rank, op.transfer) in self.done
        if isinstance(op, Write):
            to, source = (self.memory[rank][s.scratch][s.start : s.stop] for s in (op.to, op.source))
            to[:] = to + source if op.reduce else source
            return True
        for number in op.transfers:
            transfer = self.plans[rank].transfers[number]
            src, dst = (rank, transfer.peer) if transfer.sends else (transfer.peer, rank)
            ends = self.posted.setdefault((src, dst, transfer.step), {})
            assert transfer.sends not in ends, "one message from one rank to one other in a step"
            ends[transfer.sends] = rank, number
        return True

    def move(self, ends: dict[bool, tuple[int, int]]) -> None:
        (src, sent), (dst, received) = ends[True], ends[False]
        source, to = self.plans[src].transfers[sent].span, self.plans[dst].transfers[received].span
        assert source.stop - source.start == to.stop - to.start, "both ends know of one size"
        self.memory[dst][to.scratch][to.start : to.stop] = self.memory[src][source.scratch][source.start : source.stop]
        self.done |= {ends[True], ends[False]}


def carried_out(schedule: Schedule, arrays: list[np.ndarray], ahead: bool, seed: int) -> list[np.ndarray]:
    all_plans = plans(schedule, arrays[0].size, ahead)
    memory = []
    for rank_plan, array in zip(all_plans, arrays, strict=True):
        buffer = np.full(rank_plan.num_elements, np.nan)
        start, stop = rank_plan.initial_run
        buffer[start:stop] = array[: stop - start]
        memory.append({False: buffer, True: np.full(rank_plan.num_scratch, np.nan)})
    Wire(all_plans, memory, seed).run()
    results = []
    for rank_plan, own in zip(all_plans, memory, strict=True):
        runs = [own[False][start:stop] for start, stop in rank_plan.wanted or ()]
        results.append(np.concatenate([np.empty(0), *runs]))
    return results


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5, 8])
def test_every_algorithm_equals_run_local_whenever_messages_move(num_ranks: int) -> None:
    numbers = np.random.default_rng(0)
    for seed, schedule in enumerate(schedules(num_ranks)):
        if schedule.collective == "barrier":
            continue
        size = -(-max(67, schedule.num_chunks) // num_ranks) * num_ranks
        arrays = list(numbers.standard_normal((num_ranks, size)))
        expected = run_local(schedule, [torch.from_numpy(array) for array in arrays])
        for ahead in (True, False):
            for result, tensor in zip(carried_out(schedule, arrays, ahead, seed), expected, strict=True):
                assert np.array_equal(result, np.empty(0) if tensor is None else tensor.numpy()), schedule


@pytest.mark.parametrize("counts", [[3, 0, 2, 5], [0, 0, 0, 0], [0, 7, 0, 0]])
def test_no_message_of_no_elements(counts: list[int]) -> None:
    for collective, name in (("scatter", "flat"), ("scatter", "binomial"), ("gather", "flat"), ("allgather", "ring")):
        schedule = build(collective, name, 4, counts=counts)
        for rank_plan in plans(schedule, sum(counts)):
            assert all(transfer.span.stop > transfer.span.start for transfer in rank_plan.transfers)
            check_memory(rank_plan)


def test_a_damaged_plan_is_seen() -> None:
    """The check of `check_memory`, seen to fail: without the waits for sends, recursive doubling is wrong."""
    rank_plan = plans(build("allreduce", "recursive_doubling", 4), 40)[0]
    late = [op for op in rank_plan.program if not (isinstance(op, Wait) and rank_plan.transfers[op.transfer].sends)]
    with pytest.raises(AssertionError):
        check_memory(rank_plan._replace(program=late))
