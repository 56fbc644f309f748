"""A GPU of plain memory, whose clock only work moves: what copies take, and when they arrive, is known."""

from __future__ import annotations

import copy as shallow
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from rankscope.box import Protocol
from rankscope.box.measuring import run
from rankscope.box.measuring.plan import transfer_keys
from rankscope.box.measuring.transfers import most_bytes, transfer_points
from rankscope.box.profile import Point

from .made import PROVENANCE

CALL_S, LATENCY_S = 2e-6, 8e-6  # of starting a copy, and of a copy that is under way
RATES = {"pageable": 5e9, "pinned": 20e9, "d2d": 1e12, "p2p": 40e9}  # bytes/s
PIN_BYTES_PER_S, HOST_BYTES_PER_S = 2e9, 10e9  # of pinning what comes from the system, and of copying to it


class Made:
    """A made GPU in the place of `MeasuredGpu`.

    Copies on it and of pinned memory arrive when the clock says so, not before.

    With `duplex` both directions have an engine of their own. Copies of pageable memory hold the host to their end.
    """

    def __init__(self, num_gpus: int = 1, duplex: bool = True, free: tuple[int, int] = (1 << 40, 1 << 40)) -> None:
        self.index, self.num_gpus, self._duplex, self._free = 0, num_gpus, duplex, free
        self._kinds: dict[int, str | int] = {}  # by where memory begins
        self._ends = {"host": 0.0}  # when the host, each lane and each engine have done what they were given
        self._pending: list[tuple[float, Tensor, Tensor]] = []
        self._kept: list[int] = []  # pinned memory that was let go of, in bytes
        self.forgot = 0

    def at(self, gpu: int) -> Made:
        if gpu == self.index:
            return self
        other = shallow.copy(self)
        other.index = gpu
        return other

    def free_bytes(self) -> tuple[int, int]:
        return self._free

    def pageable(self, num_bytes: int) -> Tensor:
        return self._new(num_bytes, "pageable")

    def pinned(self, num_bytes: int) -> Tensor:
        if num_bytes in self._kept:
            self._kept.remove(num_bytes)
        else:
            self._ends["host"] += num_bytes / PIN_BYTES_PER_S
        made = self._new(num_bytes, "pinned")
        weakref.finalize(made, self._kept.append, num_bytes)
        return made

    def memory(self, num_bytes: int, gpu: int | None = None) -> Tensor:
        return self._new(num_bytes, self.index if gpu is None else gpu)

    def pin(self, tensor: Tensor) -> Tensor:
        made = self.pinned(tensor.numel() * 4)
        self._ends["host"] += tensor.numel() * 4 / HOST_BYTES_PER_S
        return made.copy_(tensor)

    def forget_pinned(self) -> None:
        self._kept.clear()
        self.forgot += 1

    def copy(self, pairs: Any, non_blocking: bool, lane: int) -> None:
        for to, source in pairs:
            self._ends["host"] += CALL_S
            kinds = [self._kind(one) for one in (source, to)]
            engine, rate = self._way(*kinds)
            begin = max(self._ends["host"], self._end(lane), self._end(engine))
            end = begin + LATENCY_S + to.numel() * 4 / rate
            self._ends |= {str(lane): end, engine: end}
            self._pending.append((end, to, source))
            if "pageable" in kinds or not non_blocking:
                self._wait(end)

    def _way(self, source: str | int, to: str | int) -> tuple[str, float]:
        if isinstance(source, int) and isinstance(to, int):
            return (f"{source} to {to}", RATES["p2p"]) if source != to else ("d2d", RATES["d2d"])
        host, engine = (source, "h2d") if isinstance(source, str) else (to, "d2h")
        return engine if self._duplex else "copies", RATES[str(host)]

    def mark(self, lane: int) -> float:
        return max(self._ends["host"], self._end(lane))

    def follow(self, lane: int, mark: float) -> None:
        self._ends[str(lane)] = max(self._end(lane), mark)

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    def synchronize(self) -> None:
        self._wait(max(self._ends.values()))

    def clock(self) -> float:
        return self._ends["host"]

    def _end(self, name: str | int) -> float:
        return self._ends.get(str(name), 0.0)

    def _wait(self, until_s: float) -> None:
        self._ends["host"] = max(self._ends["host"], until_s)
        for entry in sorted(self._pending, key=lambda entry: entry[0]):
            if entry[0] <= until_s:
                self._pending[:] = [one for one in self._pending if one is not entry]
                entry[1].copy_(entry[2])

    def _new(self, num_bytes: int, kind: str | int) -> Tensor:
        made = torch.empty(num_bytes // 4, dtype=torch.int32)
        self._kinds[made.untyped_storage().data_ptr()] = kind
        return made

    def _kind(self, tensor: Tensor) -> str | int:
        return self._kinds[tensor.untyped_storage().data_ptr()]


def copies(device: Made, protocol: Protocol, *sizes: int) -> list[Point]:
    """Return the points of all copies of these sizes on a made GPU, but of those that do not fit into its memory."""
    fitting = [size for size in sizes if size <= most_bytes(device)]
    return transfer_points([key for size in fitting for key in transfer_keys(size, device.num_gpus)], protocol, device)


# ---- a made GPU in the ranks of a measuring run


def put_into_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `measure` find a made GPU on rank 0, with copies up to 128 KiB."""
    monkeypatch.setattr(run, "_in_rank", _in_rank)


def _in_rank(name: str, *args: Any) -> Any:
    from rankscope.box.measuring import rank

    rank.MeasuredGpu = lambda _: Made()  # type: ignore[assignment,misc]
    rank._gpu = lambda: "cuda:0"
    found = getattr(rank, name)(*args)
    return found | {"gpus": PROVENANCE["gpus"], "transfer_bytes": 2**17} if name == "survey" else found
