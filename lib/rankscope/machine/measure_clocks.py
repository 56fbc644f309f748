"""Which ranks share a machine, a network and a clock, and how far apart the clocks of different machines are."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..collectives.wire.group import TAGS, backend_of

ROUND_TRIPS = 20


def boot_id() -> str:
    """Return what no two machines have in common, nor one before and after it was started again."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def network_id() -> str:
    """Return what ranks have in common that can talk over loopback."""
    try:
        return f"{boot_id()} {os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return boot_id()


def numbered(group: Any, mine: str) -> list[int]:
    """Return for each rank the number of its text, in the order in which they first come by rank.

    >>> from ..ranks import in_threads
    >>> in_threads(3, lambda rank, group: numbered(group, ["b", "a", "b"][rank]))[0]
    [0, 1, 0]
    """
    digest = int.from_bytes(hashlib.sha256(mine.encode()).digest()[:8], "little", signed=True)
    row = torch.tensor([digest])
    rows = [torch.zeros_like(row) for _ in range(group.size())]
    group.allgather([rows], [row]).wait()
    order: dict[int, int] = {}
    return [order.setdefault(int(one.item()), len(order)) for one in rows]


def clock_offset(group: Any, clock: Callable[[], float], machine: str) -> tuple[float, float]:
    """Return how far this rank's clock is ahead of rank 0's, and how far off that may be; (0, 0) on one machine.

    Rank 0 asks each rank of another machine for the time; of several answers the quickest counts (Cristian, 1989).
    """
    machines = numbered(group, machine)
    ahead = (0.0, 0.0)
    for peer in [rank for rank, number in enumerate(machines) if number]:
        if group.rank() == 0:
            _ask(group, peer, clock)
        elif group.rank() == peer:
            ahead = _answer(group, clock)
    return ahead


def _ask(group: Any, peer: int, clock: Callable[[], float]) -> None:
    asked, told = torch.zeros(2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    trips = []
    for _ in range(ROUND_TRIPS):
        answer = _receive(group, told, peer)
        asked[0] = begin = clock()
        _send(group, asked, peer).wait()
        answer.wait()
        end = clock()
        trips.append((end - begin, told.item() - (begin + end) / 2))
    took, ahead = min(trips)
    _send(group, torch.tensor([ahead, took / 2], dtype=torch.float64), peer).wait()


def _answer(group: Any, clock: Callable[[], float]) -> tuple[float, float]:
    asked, told = torch.zeros(2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    for _ in range(ROUND_TRIPS):
        _receive(group, asked, 0).wait()
        told[0] = clock()
        _send(group, told, 0).wait()
    _receive(group, asked, 0).wait()
    ahead, uncertain = asked.tolist()
    return ahead, uncertain


def _send(group: Any, tensor: Tensor, peer: int) -> Any:
    return backend_of(group, tensor).send([tensor], peer, TAGS)


def _receive(group: Any, tensor: Tensor, peer: int) -> Any:
    return backend_of(group, tensor).recv([tensor], peer, TAGS)
