"""What a rank of a measuring run does: describe its machine, and measure keys in turns with the other ranks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ...provenance import of_machine
from ..points import TRANSFERS, Point, PointKey
from .collectives import collective_tasks
from .links import link_task
from .plan import Protocol, operation_and_size
from .timing import Ranks, go_first, network_id
from .transfers import Gpu, transfer_points


def survey(stored: Any) -> dict[str, Any]:
    """Return a description of this rank's machine, and which ranks share it; and the argument.

    Also by how much the clock of a rank may differ from rank 0's after its correction, at most.
    """
    ranks = Ranks(device=_device())
    return {
        **of_machine(),
        "nodes": ranks.numbered(network_id()),  # the number of each rank's node
        "clock_offset_s": ranks.slowest([ranks.clock_offset_s])[0],
        "stored": stored,
    }


def measure_keys(keys: Sequence[PointKey], nodes: Sequence[int], protocol: Protocol) -> list[Point]:
    """Return a point for each key; `nodes` has the node of each rank.

    Adjacent keys of the same operation and size take turns. Only rank 0 copies to and from a GPU.
    """
    if protocol.real_time:
        go_first()
    ranks = Ranks(device=_device())
    points = []
    for (operation, _), group in itertools.groupby(keys, operation_and_size):  # the size only separates groups
        if operation not in TRANSFERS:
            points += points_of(list(group), nodes, ranks, protocol)
        elif ranks.rank == 0:
            points += transfer_points(list(group), protocol, Gpu())
    return points


def points_of(keys: Sequence[PointKey], nodes: Sequence[int], ranks: Ranks, protocol: Protocol) -> list[Point]:
    """Return the points of keys that take turns; all are of the same operation and size.

    An iteration counts with the seconds of its slowest rank, and is clean if no rank was disturbed.
    """
    if "algorithm" in dict(keys[0].options):
        tasks = collective_tasks(keys, ranks)
    else:
        tasks = {key: link_task(key, ranks, nodes) for key in keys}
    samples = protocol.in_turns(keys, lambda key: ranks.once(tasks[key]), time.monotonic, ranks.slowest)
    points = []
    for key, of_rank in samples.items():
        seconds = ranks.slowest([own_s / tasks[key].times for own_s, _ in of_rank])
        disturbed = ranks.slowest([float(not is_clean) for _, is_clean in of_rank])
        clean = tuple(not was_disturbed for was_disturbed in disturbed)
        points.append(Point(key.what, key.num_bytes, tuple(seconds), clean, dict(key.options)))
    return points


def _device() -> str:
    """Return the device of this rank's buffers; a rank of NCCL has selected its GPU before."""
    return f"cuda:{torch.cuda.current_device()}" if dist.get_backend() == "nccl" else "cpu"
