"""What a rank of a measuring run does: describe its machine, and measure keys in turns with the other ranks."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ...provenance import of_machine
from ..points import Point, PointKey
from .collectives import collective_tasks
from .links import link_task
from .plan import Protocol, measure_in_turns
from .timing import Ranks
from .transfers import Gpu, transfer_points


def survey() -> tuple[dict[str, Any], list[int]]:
    """Return a description of this rank's machine, and the number of each rank's node."""
    ids = [""] * dist.get_world_size()
    dist.all_gather_object(ids, network_id())
    first_seen = list(dict.fromkeys(ids))
    return of_machine(), [first_seen.index(node) for node in ids]


def network_id() -> str:
    """Return an id shared by the ranks that can communicate over loopback."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot_id} {os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return socket.gethostname()


def measure_keys(keys: Sequence[PointKey], nodes: Sequence[int], protocol: Protocol) -> list[Point]:
    """Return a point for each key; `nodes` has the node of each rank.

    Adjacent keys of the same operation and size take turns. Only rank 0 copies to and from a GPU.
    """
    ranks = Ranks(device=_device())
    points = []
    for (operation, _), group in itertools.groupby(keys, lambda key: (key.what, key.num_bytes)):
        if operation != "transfer":
            points += points_of(list(group), nodes, ranks, protocol)
        elif ranks.rank == 0:
            points += transfer_points(list(group), protocol, Gpu())
    return points


def points_of(keys: Sequence[PointKey], nodes: Sequence[int], ranks: Ranks, protocol: Protocol) -> list[Point]:
    """Return the points of keys that take turns; all are of the same operation and size."""
    if "algorithm" in dict(keys[0].options):
        tasks = collective_tasks(keys, ranks)
    else:
        tasks = {key: link_task(key, ranks, nodes) for key in keys}

    return measure_in_turns(keys, lambda key: ranks.seconds(tasks[key]), protocol, ranks.slowest)


def _device() -> str:
    """Return the device of this rank's buffers; a rank of NCCL has selected its GPU before."""
    return f"cuda:{torch.cuda.current_device()}" if dist.get_backend() == "nccl" else "cpu"
