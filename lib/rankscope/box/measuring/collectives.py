"""Timed tasks of a rank: collectives, each of which must give the backend's own result before it is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...collectives import build, execute
from ..points import NATIVE, PointKey
from .plan import ITEM_BYTES, words_of
from .timing import Ranks, TimedTask

MOST_ITEM = 61  # sums of so large whole numbers over up to 270,000 ranks are exact in float32

Run = Callable[[], Any]  # one iteration, which returns the result, a tensor


class Buffers:
    """A rank's input to a collective, of whole numbers of its own, and an output."""

    def __init__(self, collective: str, num_bytes: int, ranks: Ranks) -> None:
        elements = num_bytes // ITEM_BYTES
        share = elements // ranks.size  # elements of a rank if each has a part of the buffer
        in_elements = share if collective == "allgather" else elements
        out_elements = share if collective == "reduce_scatter" else elements
        random = torch.Generator().manual_seed(ranks.rank)
        self._contribution = torch.randint(1, MOST_ITEM + 1, (in_elements,), generator=random).float().to(ranks.device)
        self.input = self._contribution.clone()
        self.out = torch.empty(out_elements, device=ranks.device)

    def fill(self) -> None:
        """Restore the input, which a collective in place has overwritten."""
        self.input.copy_(self._contribution)


def collective_tasks(keys: Sequence[PointKey], ranks: Ranks) -> dict[PointKey, TimedTask]:
    """Return this rank's tasks for keys of one collective and size, after checking the result of each.

    All ranks must call this at the same point. Raises RuntimeError for a wrong result, with the first wrong element.
    """
    collective = keys[0].what
    buffers = Buffers(collective, keys[0].num_bytes, ranks)
    right = native(collective, buffers, ranks)().clone()
    tasks = {}
    for key in keys:
        options: dict[str, Any] = dict(key.options)
        name, in_place = options.pop("algorithm"), options.pop("in_place")
        if name == NATIVE:
            run = native(collective, buffers, ranks, in_place)
        else:
            run = partial(execute, build(collective, name, ranks.size, **options), buffers.input, ranks.group)
        buffers.fill()
        check(words_of(key), run(), right)
        tasks[key] = TimedTask(run, buffers.fill)
    return tasks


def native(collective: str, buffers: Buffers, ranks: Ranks, in_place: bool = False) -> Run:
    """Return the backend's own collective. It fills the output, or the input of an allreduce in place."""
    group = ranks.group  # its own methods also work for a group that torch.distributed does not know
    source = buffers.input
    out = source if in_place else buffers.out
    sums = dist.AllreduceOptions()  # by default a sum

    # These work in place in torch, so out of place means that the input is copied first.
    def allreduce() -> Any:
        if not in_place:
            out.copy_(source)
        return group.allreduce([out], sums)

    def broadcast() -> Any:
        if ranks.rank == 0:
            out.copy_(source)
        return group.broadcast(out, 0)

    starts: dict[str, Callable[[], Any]] = {
        "allreduce": allreduce,
        "broadcast": broadcast,
        "allgather": lambda: group._allgather_base(out, source),
        "reduce_scatter": lambda: group._reduce_scatter_base(out, source),
        "all_to_all": lambda: group.alltoall_base(out, source, [], []),  # []: in equal parts
    }

    def run() -> Tensor:
        starts[collective]().wait()
        return out

    return run


def check(what: str, result: Tensor, right: Tensor) -> None:
    """Raise RuntimeError unless every element of a result is right."""
    if result.shape != right.shape:
        raise RuntimeError(f"{what} returned {result.numel()} elements instead of {right.numel()}")
    wrong = torch.nonzero(result != right)
    if wrong.numel():
        first = int(wrong[0])
        problem = f"element {first} is {result[first].item():g}, and {right[first].item():g} by the backend"
        raise RuntimeError(f"{what} gave a wrong result: {problem}; {len(wrong)} of {right.numel()} are wrong")
