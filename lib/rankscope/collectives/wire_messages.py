"""What one rank of a schedule sends and receives at each step, in elements of a buffer of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .conditions import given, wanted
from .schedule import Ints, Schedule, Step

Run = tuple[int, int]  # elements from the first number up to the second


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


def rank_steps(schedule: Schedule, rank: int, ends: list[int], steps: Sequence[Step] | None = None) -> RankSteps:
    """Return what a rank does; `ends` are the chunks' ends, as of `chunk_ends`. The schedule is taken to be right.

    Whoever wants several ranks hands over the schedule's `steps`, best `by_chunk`, which are then made once.

    All transfers of a step between the same two are one message, its chunks in ascending order; chunks, and messages,
    of no elements are left out.

    >>> from . import ALGORITHMS
    >>> ring = rank_steps(ALGORITHMS["allreduce"]["ring"](3), 1, [0, 1, 3, 5])
    >>> ring.steps[0]
    RankStep(sends=[Message(peer=2, runs=((1, 3),))], receives=[Message(peer=0, runs=((0, 1),))], \
arrivals=[Arrival(message=0, at=0, run=(0, 1), reduce=True)])
    """
    own, result = given(schedule)[rank], wanted(schedule)[rank]
    mine = [_of_rank(step, rank) for step in (schedule.steps() if steps is None else steps)]
    touched = own | result
    for step in mine:
        touched[step.chunk[step.dst == rank]] = True
    sizes = np.diff(ends)
    starts = np.cumsum(sizes * touched) - sizes * touched
    passed = _runs(np.flatnonzero(own), starts, sizes)
    return RankSteps(
        int((sizes * touched).sum()),
        (passed[0][0], passed[-1][1]) if passed else (0, 0),
        _runs(np.flatnonzero(result), starts, sizes),
        [_step(step, rank, starts, sizes) for step in mine],
    )


def _of_rank(step: Step, rank: int) -> Step:
    rows = (step.src == rank) | (step.dst == rank)
    return _rows(step, rows).by_chunk()


def _rows(step: Step, rows: NDArray[np.bool_]) -> Step:
    return Step(step.src[rows], step.dst[rows], step.chunk[rows], step.num_chunks[rows], step.reduce[rows])


def _step(step: Step, rank: int, starts: Ints, sizes: Ints) -> RankStep:
    there = sizes[step.chunk] > 0
    step = step if there.all() else _rows(step, there)
    sends = [Message(peer, _runs(np.sort(step.chunk[rows]), starts, sizes)) for peer, rows in _by(step.dst, step, rank)]
    receives, rows_of = [], []
    for peer, rows in _by(step.src, step, rank):
        rows = rows[np.argsort(step.chunk[rows], kind="stable")]
        receives.append(Message(peer, _runs(step.chunk[rows], starts, sizes)))
        rows_of.append(rows)
    return RankStep(sends, receives, _arrivals(step, rows_of, starts, sizes))


def _by(peers: Ints, step: Step, rank: int) -> list[tuple[int, Ints]]:
    """The rows of each peer that is sent to, or received from, in the order of their first rows."""
    rows = np.flatnonzero(peers != rank)
    return [(peer, rows[peers[rows] == peer]) for peer in dict.fromkeys(peers[rows].tolist())]


def _runs(chunks: Iterable[int], starts: Ints, sizes: Ints) -> tuple[Run, ...]:
    """The elements of these chunks, with those that are adjacent taken together."""
    runs: list[Run] = []
    for chunk in chunks:
        start, stop = int(starts[chunk]), int(starts[chunk] + sizes[chunk])
        if runs and runs[-1][1] == start:
            runs[-1] = runs[-1][0], stop
        elif stop > start:
            runs.append((start, stop))
    return tuple(runs)


def _arrivals(step: Step, rows_of: list[Ints], starts: Ints, sizes: Ints) -> list[Arrival]:
    """What becomes of the received messages: one after the other, but in the order of the rows where that matters."""
    parts = []
    for message, rows in enumerate(rows_of):
        count = sizes[step.chunk[rows]]
        parts += [
            (row, message, at) for row, at in zip(rows.tolist(), (np.cumsum(count) - count).tolist(), strict=True)
        ]
    chunks = [int(step.chunk[row]) for row, _, _ in parts]
    if len(set(chunks)) < len(chunks):
        parts.sort()
    arrivals: list[Arrival] = []
    for row, message, at in parts:
        chunk, reduce = int(step.chunk[row]), bool(step.reduce[row])
        start, stop = int(starts[chunk]), int(starts[chunk] + sizes[chunk])
        if arrivals:
            last = arrivals[-1]
            end = last.at + last.run[1] - last.run[0]
            if (last.message, last.run[1], end, last.reduce) == (message, start, at, reduce):
                arrivals[-1] = last._replace(run=(last.run[0], stop))
                continue
        arrivals.append(Arrival(message, at, (start, stop), reduce))
    return arrivals
