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

from .cases import NAMES, allows, options, schedules


def plans(schedule: Schedule, num_elements: int, ahead: bool = True) -> list[Plan]:
    return plan.plans(schedule, schedule.chunk_ends(num_elements), ahead=ahead)


def everything(num_ranks: int) -> Iterator[Schedule]:
    yield from schedules(num_ranks)
    for collective, name in NAMES:
        if allows(collective, name, num_ranks):
            yield from (build(collective, name, num_ranks, **more) for more in options(collective, name, num_ranks))


def overlap(one: Elements, other: Elements) -> bool:
    return one.scratch == other.scratch and one.start < other.stop and other.start < one.stop


def check_memory(made: Plan) -> None:
    """Nothing is written where a transfer under way reads or writes, and nothing read where one writes."""
    under_way: dict[int, Any] = {}
    for op in made.program:
        if isinstance(op, Post):
            for number in op.transfers:
                new = made.transfers[number]
                limit = made.num_scratch if new.span.scratch else made.num_elements
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
    assert not under_way, "somebody waits for every transfer"


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("ahead", [True, False])
def test_nothing_is_written_where_a_message_may_be_read(num_ranks: int, ahead: bool) -> None:
    for schedule in everything(num_ranks):
        for made in plans(schedule, 24 * num_ranks * 7, ahead):
            check_memory(made)


class Wire:
    """Carries out all ranks' programs; a message moves at a random moment after both ends have posted it."""

    def __init__(self, all_plans: list[Plan], memory: list[dict[bool, np.ndarray]], seed: int) -> None:
        self.plans, self.memory, self.random = all_plans, memory, random.Random(seed)
        self.posted: dict[tuple[int, int, int], dict[bool, tuple[int, int]]] = {}  # (src, dst, step) -> ends
        self.done: set[tuple[int, int]] = set()

    def run(self) -> None:
        at = [0] * len(self.plans)
        while any(place < len(one.program) for place, one in zip(at, self.plans, strict=True)):
            moved = False
            for rank in self.random.sample(range(len(at)), len(at)):
                while at[rank] < len(self.plans[rank].program) and self.step(rank, self.plans[rank].program[at[rank]]):
                    at[rank], moved = at[rank] + 1, True
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
            one = self.plans[rank].transfers[number]
            key = (rank, one.peer, one.step) if one.sends else (one.peer, rank, one.step)
            ends = self.posted.setdefault(key, {})
            assert one.sends not in ends, "one message from one rank to one other in a step"
            ends[one.sends] = rank, number
        return True

    def move(self, ends: dict[bool, tuple[int, int]]) -> None:
        (src, sent), (dst, received) = ends[True], ends[False]
        source, to = self.plans[src].transfers[sent].span, self.plans[dst].transfers[received].span
        assert source.stop - source.start == to.stop - to.start, "both ends know of one size"
        self.memory[dst][to.scratch][to.start : to.stop] = self.memory[src][source.scratch][source.start : source.stop]
        self.done |= {ends[True], ends[False]}


def carried_out(schedule: Schedule, arrays: list[np.ndarray], ahead: bool, seed: int) -> list[np.ndarray]:
    made = plans(schedule, arrays[0].size, ahead)
    memory = []
    for one, array in zip(made, arrays, strict=True):
        buffer = np.full(one.num_elements, np.nan)
        start, stop = one.given
        buffer[start:stop] = array[: stop - start]
        memory.append({False: buffer, True: np.full(one.num_scratch, np.nan)})
    Wire(made, memory, seed).run()
    return [
        np.concatenate([own[False][start:stop] for start, stop in one.wanted]) if one.wanted else np.empty(0)
        for one, own in zip(made, memory, strict=True)
    ]


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5, 8])
def test_every_algorithm_equals_run_local_whenever_messages_move(num_ranks: int, ahead: bool) -> None:
    numbers = np.random.default_rng(0)
    for seed, schedule in enumerate(schedules(num_ranks)):
        if schedule.collective == "barrier":
            continue
        size = -(-max(67, schedule.num_chunks) // num_ranks) * num_ranks
        arrays = list(numbers.standard_normal((num_ranks, size)))
        right = run_local(schedule, [torch.from_numpy(array) for array in arrays])
        for found, wanted in zip(carried_out(schedule, arrays, ahead, seed), right, strict=True):
            assert np.array_equal(found, np.empty(0) if wanted is None else wanted.numpy()), schedule


@pytest.mark.parametrize("counts", [[3, 0, 2, 5], [0, 0, 0, 0], [0, 7, 0, 0]])
def test_no_message_of_no_elements(counts: list[int]) -> None:
    for collective, name in (("scatter", "flat"), ("scatter", "binomial"), ("gather", "flat"), ("allgather", "ring")):
        schedule = build(collective, name, 4, counts=counts)
        for made in plans(schedule, sum(counts)):
            assert all(one.span.stop > one.span.start for one in made.transfers)
            check_memory(made)


def test_receives_are_posted_one_step_ahead() -> None:
    def posts(ahead: bool) -> list[list[tuple[int, bool]]]:
        """For each post of rank 0 in a ring the step of each transfer, and whether it sends."""
        made = plans(build("allreduce", "ring", 4), 40, ahead)[0]
        found = [[made.transfers[number] for number in op.transfers] for op in made.program if isinstance(op, Post)]
        return [[(one.step, one.sends) for one in post] for post in found]

    assert posts(ahead=True)[0] == [(0, False)]
    assert posts(ahead=True)[1:-1] == [[(step, True), (step + 1, False)] for step in range(5)]
    assert posts(ahead=False) == [[(step, True), (step, False)] for step in range(6)]


def test_with_a_lag_sums_are_made_while_the_next_message_travels() -> None:
    def adding_after_posting(schedule: Schedule) -> int:
        """How many sums are made with a send of a later step under way."""
        made = plans(schedule, 80)[0]
        count, newest = 0, -1
        for op in made.program:
            if isinstance(op, Post):
                newest = max([newest, *(made.transfers[n].step for n in op.transfers if made.transfers[n].sends)])
            elif isinstance(op, Wait) and not made.transfers[op.transfer].sends:
                step = made.transfers[op.transfer].step
            elif isinstance(op, Write) and op.reduce:
                count += newest > step
        return count

    assert adding_after_posting(build("allreduce", "segmented_ring", 4, num_segments=4)) == 12
    assert adding_after_posting(build("allreduce", "ring", 4)) == 0


def test_an_allgather_needs_no_scratch_and_a_ring_two_chunks() -> None:
    assert plans(build("allgather", "ring", 4), 640)[0].num_scratch == 0
    assert plans(build("allreduce", "ring", 4), 2560)[0].num_scratch == 2 * 640
    assert plans(build("allreduce", "ring", 4), 2560, ahead=False)[0].num_scratch == 640


def test_chunks_that_stand_side_by_side_are_one_run() -> None:
    """Nothing is copied to be sent, and no more messages go from one rank to another than one a step."""
    for schedule in (build("allreduce", "halving_doubling", 8), build("scatter", "binomial", 8)):
        assert not any(isinstance(op, Write) and op.to.scratch for made in plans(schedule, 80) for op in made.program)
    for made in plans(build("allreduce", "swing", 8), 80):
        sends = [(one.step, one.peer) for one in made.transfers if one.sends]
        assert len(set(sends)) == len(sends)


def test_a_damaged_plan_is_seen() -> None:
    """The check of `check_memory`, seen to fail: without the waits for sends, recursive doubling is wrong."""
    made = plans(build("allreduce", "recursive_doubling", 4), 40)[0]
    late = [op for op in made.program if not (isinstance(op, Wait) and made.transfers[op.transfer].sends)]
    with pytest.raises(AssertionError):
        check_memory(made._replace(program=late))
