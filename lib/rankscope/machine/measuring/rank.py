"""What a rank of a measuring run does: find out where it is, or measure some keys."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..profile import TRANSFERS, Key, Point
from ..provenance import free_bytes, of_machine
from .experiments import measure_loader, measure_traps
from .plan import Protocol, node_sizes
from .tasks import collective_tasks, link_task
from .timing import Ranks, Task, go_first, measure_all, network_id
from .transfers import Cuda, most_bytes, transfer_points


def survey(device: str) -> dict[str, Any]:
    """Return what this rank's machine is, which ranks share one, and how much memory a rank may take of it.

    Rank 0 says how large a copy to and from its GPU may be, which is 0 where there is none.
    """
    ranks = Ranks(device=_own(device))
    nodes = ranks.numbered(network_id())
    free = _free_bytes(device, node_sizes(nodes)[nodes[ranks.rank]])
    return {
        **of_machine(),
        "nodes": nodes,
        "free_bytes": -int(ranks.slowest([-float(free)])[0]),  # the least of all ranks
        "transfer_bytes": most_bytes(Cuda(_gpu())) if ranks.rank == 0 and torch.cuda.is_available() else 0,
        "clock_offset_s": ranks.slowest([ranks.clock_offset_s])[0],
    }


def measure_keys(keys: Sequence[Key], nodes: Sequence[int], device: str, protocol: Protocol) -> list[Point]:
    """Return a point for each key; keys of one thing and size, which stand side by side, take turns.

    Copies to and from a GPU are rank 0's alone.
    """
    if protocol.real_time:
        go_first()
    ranks = Ranks(device=_own(device))
    points = []
    for _, some in itertools.groupby(keys, lambda key: key[:2]):
        chosen = list(some)
        if chosen[0][0] not in TRANSFERS:
            points += points_of(chosen, nodes, ranks, protocol)
        elif ranks.rank == 0:
            points += transfer_points(chosen, protocol, Cuda(_gpu()))
    return points


def experiment() -> list[Point]:
    """Return the points of all experiments on copies, on rank 0."""
    if dist.get_rank() != 0:
        return []
    return measure_traps(_gpu()) + measure_loader(_gpu())


def points_of(keys: Sequence[Key], nodes: Sequence[int], ranks: Ranks, protocol: Protocol) -> list[Point]:
    """Return the points of keys that take turns."""
    divided: dict[Key, int] = dict.fromkeys(keys, 1)
    tasks: dict[Key, Task] = {}
    if "algorithm" in dict(keys[0][2]):
        tasks = collective_tasks(keys, ranks)
    else:
        for key in keys:
            tasks[key], divided[key] = link_task(key, ranks, nodes)
    found = measure_all(tasks, ranks, protocol)
    points = []
    for key in keys:
        seconds, clean = found[key]
        points.append(Point(key[0], key[1], tuple(one / divided[key] for one in seconds), clean, dict(key[2])))
    return points


def _own(device: str) -> str:
    """This rank's device: NCCL's ranks have taken their GPU, those of other backends take theirs in turn."""
    if device != "cuda":
        return device
    if dist.get_backend() != "nccl":
        place = int(os.environ.get("LOCAL_RANK", dist.get_rank()))
        torch.cuda.set_device(place % torch.cuda.device_count())
    return _gpu()


def _free_bytes(device: str, num_ranks: int) -> int:
    """What a rank may take where its buffers are, as one of so many on its node; Gloo copies a GPU's to the host."""
    on_host = free_bytes() // num_ranks
    if device != "cuda":
        return on_host
    on_gpu = int(torch.cuda.mem_get_info()[0]) // -(-num_ranks // torch.cuda.device_count())
    return on_gpu if dist.get_backend() == "nccl" else min(on_host, on_gpu)


def _gpu() -> str:
    return f"cuda:{torch.cuda.current_device()}"
