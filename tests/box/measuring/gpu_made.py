"""A GPU of plain memory, whose clock only work moves: what copies take, and when they arrive, is known."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
from torch import Tensor, empty, int32

from rankscope.box import Protocol
from rankscope.box.measuring import rank
from rankscope.box.measuring.plan import DIRECTIONS, METHODS, key_of
from rankscope.box.measuring.transfers import transfer_points
from rankscope.box.points import Point, PointKey

from ..made import PROVENANCE

CALL_S, LATENCY_S = 2e-6, 8e-6  # of starting a copy, and of a copy that is under way
RATES = {"pageable": 5e9, "pinned": 20e9}  # bytes/s of a copy to or from such memory
PIN_BYTES_PER_S, HOST_BYTES_PER_S = 2e9, 10e9  # of pinning what comes from the system, and of copying to it


class Made:
    """A made GPU in the place of `Gpu`. Copies of pinned memory arrive when the clock says so, not before."""

    def __init__(self) -> None:
        self.kinds: dict[int, str] = {}  # by where memory begins
        self.host_s = 0.0  # when the host has done what it was given
        self.link_s = 0.0  # when the link has
        self.pending: list[tuple[Tensor, Tensor]] = []
        self.kept: list[int] = []  # pinned memory that was let go of, in bytes

    def memory(self, num_bytes: int, kind: str) -> Tensor:
        made = empty(num_bytes // 4, dtype=int32)
        self.kinds[made.data_ptr()] = kind
        if kind == "pinned":
            if num_bytes in self.kept:
                self.kept.remove(num_bytes)
            else:
                self.host_s += num_bytes / PIN_BYTES_PER_S
            weakref.finalize(made, self.kept.append, num_bytes)
        return made

    def pin(self, tensor: Tensor) -> Tensor:
        made = self.memory(tensor.numel() * 4, "pinned")
        self.host_s += tensor.numel() * 4 / HOST_BYTES_PER_S
        return made.copy_(tensor)

    def forget_pinned(self) -> None:
        self.kept.clear()

    def copy(self, target: Tensor, source: Tensor) -> None:
        kinds = {self.kinds[tensor.data_ptr()] for tensor in (target, source)}
        (host,) = kinds - {"gpu"}
        self.host_s += CALL_S
        self.link_s = max(self.host_s, self.link_s) + LATENCY_S + target.numel() * 4 / RATES[host]
        self.pending.append((target, source))
        self.synchronize()

    def mark(self) -> float:
        return max(self.host_s, self.link_s)

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    def synchronize(self) -> None:
        self.host_s = self.mark()
        for target, source in self.pending:
            target.copy_(source)
        self.pending.clear()


def ways(size: int) -> list[PointKey]:
    """Return the keys of all copies of a size."""
    options = [{"direction": way, "method": method} for way in DIRECTIONS for method in METHODS]
    return [key_of("transfer", size, pieces=1, both=False, **one) for one in options]


def copies(gpu: Any, protocol: Protocol, *sizes: int) -> list[Point]:
    """Return the points of all copies of these sizes."""
    return [point for size in sizes for point in transfer_points(ways(size), protocol, gpu)]


# ---- a made GPU in the ranks of a measuring run


def put_into_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `measure` find a made GPU on rank 0."""
    monkeypatch.setattr(rank, "survey", _survey)
    monkeypatch.setattr(rank, "measure_keys", _measure_keys)


def _survey(*args: Any) -> Any:  # in a rank, where nothing is patched
    machine, *others = rank.survey(*args)
    return {**machine, "gpus": PROVENANCE["gpus"]}, *others


def _measure_keys(*args: Any) -> list[Point]:
    rank.Gpu = Made  # type: ignore[assignment,misc]
    return rank.measure_keys(*args)
