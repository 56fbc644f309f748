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
from .timing import Ranks, TimedTask, times_in_a_row

MOST_ITEM = 61  # sums of so large whole numbers over up to 270,000 ranks are exact in float32


def collective_tasks(keys: Sequence[PointKey], ranks: Ranks) -> dict[PointKey, TimedTask]:
    """Return this rank's tasks for keys of one collective and size, after checking the result of each.

    All ranks must call this at the same point. Raises RuntimeError for a wrong result.
    """
    collective = keys[0].what
    numbers, out = buffers(collective, keys[0].num_bytes, ranks)
    source = numbers.clone()
    right = native(collective, source, out, ranks)().clone()

    def fill() -> None:  # a collective in place has overwritten the source; in a row, sums become larger
        source.copy_(numbers)

    tasks = {}
    for key in keys:
        options: dict[str, Any] = dict(key.options)
        name = options.pop("algorithm")
        is_in_place = options.pop("in_place")
        if name == NATIVE:
            run = native(collective, source, source if is_in_place else out, ranks)
        else:
            run = partial(execute, build(collective, name, ranks.size, **options), source, ranks.group)
        fill()
        result = run()
        if not torch.equal(result, right):
            raise RuntimeError(f"{words_of(key)} gave another result than the backend's own")
        tasks[key] = TimedTask(run, fill, times_in_a_row(key.num_bytes))
    return tasks


def buffers(collective: str, num_bytes: int, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """Return a rank's input to a collective, of whole numbers of its own, and an output."""
    elements = num_bytes // ITEM_BYTES
    share = elements // ranks.size  # elements of a rank if each has a part of the buffer
    in_elements = share if collective == "allgather" else elements
    out_elements = share if collective == "reduce_scatter" else elements
    random = torch.Generator().manual_seed(ranks.rank)
    numbers = torch.randint(1, MOST_ITEM + 1, (in_elements,), generator=random).float()
    return numbers.to(ranks.device), torch.empty(out_elements, device=ranks.device)


def native(collective: str, source: Tensor, out: Tensor, ranks: Ranks) -> Callable[[], Any]:
    """Return an iteration of the backend's own collective. It fills and returns `out`, which is `source` in place."""
    group = ranks.group  # its own methods also work for a group that torch.distributed does not know
    sums = dist.AllreduceOptions()  # by default a sum
    starts: dict[str, Callable[[], Any]] = {
        "allreduce": lambda: group.allreduce([out.copy_(source)], sums),  # in place in torch, so copied before
        "allgather": lambda: group._allgather_base(out, source),
        "reduce_scatter": lambda: group._reduce_scatter_base(out, source),
    }

    def run() -> Tensor:
        starts[collective]().wait()
        return out

    return run
