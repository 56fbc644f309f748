"""What one rank of a schedule sends and receives at each step, in elements of a buffer of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .conditions import given, wanted
from .schedule import MOST_KEPT, Schedule, Step

Run = tuple[int, int]  # elements from the first number up to the second
Transfer = tuple[int, int, int, bool]  # one chunk of a step: src, dst, chunk, reduce


class Message(NamedTuple):
    """What goes between this rank and `peer` in one step: the elements of `runs`, one run after the other."""

    peer: int
    runs: tuple[Run, ...]


class Arrival(NamedTuple):
    """Elements `at` and on of a received message: they are added to the elements of `run`, or replace them."""

    message: int
    at: int
    run: Run
    reduce: bool


class RankStep(NamedTuple):
    """One step of one rank; `arrivals` are in the order in which sums must be made."""

    sends: list[Message]
    receives: list[Message]
    arrivals: list[Arrival]


class RankSteps(NamedTuple):
    """All that one rank does, in a buffer of the chunks that it ever has, in their order.

    The elements that the rank passes stand at `given` at the start, and in the end `wanted` holds its result.
    """

    num_elements: int
    given: Run
    wanted: tuple[Run, ...]
    steps: list[RankStep]


def rank_steps(schedule: Schedule, rank: int, ends: list[int]) -> RankSteps:
    """Return what a rank does; `ends` are the chunks' ends, as of `chunk_ends`. The schedule is taken to be right.

    All transfers of a step between the same two are one message, its chunks in ascending order; chunks, and messages,
    of no elements are left out.

    >>> from . import ALGORITHMS
    >>> ring = rank_steps(ALGORITHMS["allreduce"]["ring"](3), 1, [0, 1, 3, 5])
    >>> ring.steps[0]
    RankStep(sends=[Message(peer=2, runs=((1, 3),))], receives=[Message(peer=0, runs=((0, 1),))], \
arrivals=[Arrival(message=0, at=0, run=(0, 1), reduce=True)])
    """
    steps = []
    for step in schedule.steps():
        mine = (step.src == rank) | (step.dst == rank)
        steps.append(_transfers(Step(*(column[mine] for column in step))))
    return _of_rank(rank, given(schedule)[rank], wanted(schedule)[rank], steps, ends)


def all_rank_steps(schedule: Schedule, ends: list[int]) -> list[RankSteps]:
    """Return `rank_steps` of every rank; the schedule's steps are made once."""
    own, result = given(schedule), wanted(schedule)
    steps = schedule.kept.get("transfers")
    if steps is None:
        steps = [_by_rank(_transfers(step), schedule.num_ranks) for step in schedule.steps()]
        if sum(len(mine) for of_ranks in steps for mine in of_ranks) <= MOST_KEPT:
            schedule.kept["transfers"] = steps
    return [
        _of_rank(rank, own[rank], result[rank], [of_ranks[rank] for of_ranks in steps], ends)
        for rank in range(schedule.num_ranks)
    ]


def _transfers(step: Step) -> list[Transfer]:
    rows = step.by_chunk()
    columns = (column.tolist() for column in (rows.src, rows.dst, rows.chunk, rows.reduce))
    return list(zip(*columns, strict=True))


def _by_rank(transfers: list[Transfer], num_ranks: int) -> list[list[Transfer]]:
    of_ranks: list[list[Transfer]] = [[] for _ in range(num_ranks)]
    for transfer in transfers:
        src, dst, *_ = transfer
        of_ranks[src].append(transfer)
        of_ranks[dst].append(transfer)
    return of_ranks


def _of_rank(
    rank: int, own: NDArray[np.bool_], result: NDArray[np.bool_], steps: list[list[Transfer]], ends: list[int]
) -> RankSteps:
    touched = own | result
    touched[[chunk for step in steps for _, dst, chunk, _ in step if dst == rank]] = True
    sizes = np.diff(ends)
    starts = np.cumsum(sizes * touched) - sizes * touched
    run_of = list(zip(starts.tolist(), (starts + sizes).tolist(), strict=True))
    passed = _runs(np.flatnonzero(own).tolist(), run_of)
    return RankSteps(
        int((sizes * touched).sum()),
        (passed[0][0], passed[-1][1]) if passed else (0, 0),
        _runs(np.flatnonzero(result).tolist(), run_of),
        [_step(step, rank, run_of) for step in steps],
    )


def _step(transfers: list[Transfer], rank: int, run_of: list[Run]) -> RankStep:
    """One step of a rank, of the transfers that are its own; messages are in the order of their first transfers."""
    sends: dict[int, list[int]] = {}
    receives: dict[int, list[tuple[int, int, bool]]] = {}  # chunk, place of the transfer, whether it is added
    for place, (src, dst, chunk, reduce) in enumerate(transfers):
        start, stop = run_of[chunk]
        if start == stop:
            continue
        if src == rank:
            sends.setdefault(dst, []).append(chunk)
        else:
            receives.setdefault(src, []).append((chunk, place, reduce))
    for parts in receives.values():
        parts.sort()
    return RankStep(
        [Message(peer, _runs(sorted(chunks), run_of)) for peer, chunks in sends.items()],
        [Message(peer, _runs([chunk for chunk, _, _ in parts], run_of)) for peer, parts in receives.items()],
        _arrivals(list(receives.values()), run_of),
    )


def _runs(chunks: Iterable[int], run_of: list[Run]) -> tuple[Run, ...]:
    """The elements of these chunks, with those that are adjacent taken together."""
    runs: list[Run] = []
    for chunk in chunks:
        start, stop = run_of[chunk]
        if runs and runs[-1][1] == start:
            runs[-1] = runs[-1][0], stop
        elif stop > start:
            runs.append((start, stop))
    return tuple(runs)


def _arrivals(received: list[list[tuple[int, int, bool]]], run_of: list[Run]) -> list[Arrival]:
    """What becomes of the received messages: one after the other, but in the order of transfers where that matters."""
    parts: list[tuple[int, Arrival]] = []
    for message, chunks in enumerate(received):
        at = 0
        for chunk, place, reduce in chunks:
            parts.append((place, Arrival(message, at, run_of[chunk], reduce)))
            at += run_of[chunk][1] - run_of[chunk][0]
    if len({part.run for _, part in parts}) < len(parts):
        parts.sort()
    arrivals: list[Arrival] = []
    for _, part in parts:
        if arrivals:
            last = arrivals[-1]
            end = last.at + last.run[1] - last.run[0]
            if (last.message, last.run[1], end, last.reduce) == (part.message, part.run[0], part.at, part.reduce):
                arrivals[-1] = last._replace(run=(last.run[0], part.run[1]))
                continue
        arrivals.append(part)
    return arrivals
