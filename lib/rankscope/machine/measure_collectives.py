"""Collectives by schedules and by the backend itself, each checked to give the right result before it is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..collectives import build
from ..collectives.wire.run import Executor
from ..values.units import bytes_words
from .groups import NATIVE
from .measure import Ranks, Task
from .measure_plan import ITEM_BYTES
from .points import Key

PATTERN = 61  # random numbers from 1 on, so that whatever is misplaced shows; sums stay exact in float32 for 700 ranks
Run = Callable[[Tensor], Tensor]


def collective_tasks(keys: Sequence[Key], ranks: Ranks) -> dict[Key, Task]:
    """Return what this rank does for keys of one collective and size, once every one has given the right result.

    Raises RuntimeError where one has not, with the first element that is wrong.
    """
    buffers = Buffers(keys[0][0], keys[0][1], ranks)
    tasks = {}
    for key in keys:
        run = method(key, buffers, ranks)
        check(key, run, buffers)
        tasks[key] = Task(lambda run=run: run(buffers.given), buffers.fill)  # type: ignore[misc]
    return tasks


class Buffers:
    """What a rank passes to a collective, whole numbers that tell who passed them and where, and what it must get."""

    def __init__(self, collective: str, num_bytes: int, ranks: Ranks) -> None:
        self.collective, self._rank, self._size = collective, ranks.rank, ranks.size
        elements = num_bytes // ITEM_BYTES
        self._each = elements // ranks.size
        random = torch.Generator().manual_seed(0)
        pattern = torch.randint(1, PATTERN + 1, (elements,), generator=random, dtype=torch.float32)
        self._pattern: Tensor = pattern.to(ranks.device)
        self.given = self._of(ranks.rank, self._run(ranks.rank) if collective == "allgather" else slice(None))
        own = self._each if collective == "reduce_scatter" else elements
        self.out = torch.full((own,), torch.nan, device=ranks.device)

    def fill(self) -> None:
        """Put what is passed into its place again, where a collective in place has overwritten it."""
        if self.collective == "allreduce":
            torch.mul(self._pattern, self._rank + 1, out=self.given)

    def right(self) -> Tensor:
        """Return the result."""
        total = self._size * (self._size + 1) // 2
        if self.collective == "allreduce":
            return torch.mul(self._pattern, total)
        if self.collective == "reduce_scatter":
            return torch.mul(self._pattern[self._run(self._rank)], total)
        if self.collective == "broadcast":
            return self._of(0, slice(None))
        place = self._rank if self.collective == "all_to_all" else None
        return torch.cat([self._of(r, self._run(r if place is None else place)) for r in range(self._size)])

    def _run(self, rank: int) -> slice:
        return slice(rank * self._each, (rank + 1) * self._each)

    def _of(self, rank: int, where: slice) -> Tensor:
        return torch.mul(self._pattern[where], rank + 1)


def method(key: Key, buffers: Buffers, ranks: Ranks) -> Run:
    """Return the function that carries out what a key names; all ranks ask for it at the same point."""
    collective, _, options = key
    told: dict[str, Any] = dict(options)
    name, in_place = told.pop("algorithm"), told.pop("in_place")
    if name == NATIVE:
        run = _native(collective, buffers, ranks)
    else:
        schedule = build(collective, name, ranks.size, **told)
        executor = Executor(schedule, buffers.given, ranks.group)
        run = executor.run  # type: ignore[assignment]  # None is for collectives that are not measured
    if in_place or collective != "allreduce":
        return run
    return lambda given: run(buffers.out.copy_(given))


def check(key: Key, run: Run, buffers: Buffers) -> None:
    """Carry out one iteration; raises RuntimeError unless every element of its result is right."""
    buffers.fill()
    found, right = run(buffers.given), buffers.right()
    if found.shape != right.shape:
        raise RuntimeError(f"{_named(key)} gave {found.numel()} elements instead of {right.numel()}")
    wrong = torch.nonzero(found != right)
    if wrong.numel():
        first = int(wrong[0])
        what = f"element {first} is {found[first].item():g} and not {right[first].item():g}"
        raise RuntimeError(f"{_named(key)} gave a wrong result: {what}, {wrong.shape[0]} of {right.numel()} are wrong")


def _named(key: Key) -> str:
    what, num_bytes, options = key
    return f"{what} by {dict(options)['algorithm']} of {bytes_words(num_bytes)}"


def _native(collective: str, buffers: Buffers, ranks: Ranks) -> Run:
    group, out = ranks.group, buffers.out
    if collective == "allreduce":
        options = dist.AllreduceOptions()

        def allreduce(given: Tensor) -> Tensor:
            group.allreduce([given], options).wait()
            return given

        return allreduce
    if collective == "broadcast":

        def broadcast(given: Tensor) -> Tensor:
            if ranks.rank == 0:
                out.copy_(given)
            group.broadcast(out, 0).wait()
            return out

        return broadcast
    calls: dict[str, Callable[[Tensor], Any]] = {
        "allgather": lambda given: group._allgather_base(out, given),
        "reduce_scatter": lambda given: group._reduce_scatter_base(out, given),
        "all_to_all": lambda given: group.alltoall_base(out, given, [], []),
    }

    def run(given: Tensor) -> Tensor:
        calls[collective](given).wait()
        return out

    return run
