"""A GPU as the measuring of copies sees it: memory of three kinds, two lanes of work, marks in them, a host clock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ..values.checks import whole
from .measure_plan import ITEM_BYTES
from .provenance import free_bytes

DTYPE = torch.int32  # of ITEM_BYTES
Pairs = Sequence[tuple[Tensor, Tensor]]  # where to, where from


class Device(Protocol):
    """What stands for a GPU; tests have one with a clock of its own.

    Work on a lane, 0 or 1, goes in its order, and beside that on the other lane. All memory is of int32 elements.
    """

    index: int
    num_gpus: int

    def at(self, gpu: int) -> Device:
        """Return the GPU of that number."""

    def free_bytes(self) -> tuple[int, int]:
        """Return how much memory of the host, and of the GPU, may be taken."""

    def pageable(self, num_bytes: int) -> Tensor:
        """Return memory of the host as any program has it."""

    def pinned(self, num_bytes: int) -> Tensor:
        """Return memory of the host that stays where it is, from what was let go of where that is enough."""

    def memory(self, num_bytes: int, gpu: int | None = None) -> Tensor:
        """Return memory of this GPU, or of another."""

    def pin(self, tensor: Tensor) -> Tensor:
        """Return a copy in pinned memory."""

    def forget_pinned(self) -> None:
        """Give pinned memory that was let go of back to the system."""

    def copy(self, pairs: Pairs, non_blocking: bool, lane: int) -> None:
        """Start copies on a lane, one after the other."""

    def mark(self, lane: int) -> Any:
        """Return a mark that is passed when all work of the lane before it is done."""

    def follow(self, lane: int, mark: Any) -> None:
        """Let the work of a lane that comes from now on wait for a mark."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the time between two marks that have been passed."""

    def synchronize(self) -> None:
        """Wait until all work is done."""

    def clock(self) -> float:
        """Return the host's time in seconds."""


class Cuda:
    """A `Device` of torch's. Raises ValueError for a GPU that is not there."""

    def __init__(self, device: str = "cuda:0") -> None:
        try:
            found = torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"device must be a GPU like 'cuda:0', got {device!r}") from error
        self.num_gpus = torch.cuda.device_count()
        if found.type != "cuda" or not self.num_gpus:
            why = "" if self.num_gpus else ", and there is none"
            raise ValueError(f"device must be a GPU like 'cuda:0'{why}, got {device!r}")
        self.index = whole("device", found.index or 0, 0, self.num_gpus - 1)
        self._device = torch.device("cuda", self.index)
        stream: Any = torch.cuda.Stream
        self._lanes = [stream(device=self._device) for _ in range(2)]

    def at(self, gpu: int) -> Cuda:
        return self if gpu == self.index else Cuda(f"cuda:{gpu}")

    def free_bytes(self) -> tuple[int, int]:
        return free_bytes(), torch.cuda.mem_get_info(self._device)[0]

    def pageable(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes // ITEM_BYTES, dtype=DTYPE)

    def pinned(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes // ITEM_BYTES, dtype=DTYPE, pin_memory=True)

    def memory(self, num_bytes: int, gpu: int | None = None) -> Tensor:
        return torch.empty(num_bytes // ITEM_BYTES, dtype=DTYPE, device=f"cuda:{self.index if gpu is None else gpu}")

    def pin(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory()

    def forget_pinned(self) -> None:
        self.synchronize()
        own: Any = getattr(torch.accelerator, "empty_host_cache", None) or getattr(torch._C, "_host_emptyCache", None)
        if own is None:
            raise RuntimeError(f"torch {torch.__version__} cannot give pinned memory back, so pinning cannot be timed")
        own()

    def copy(self, pairs: Pairs, non_blocking: bool, lane: int) -> None:
        with torch.cuda.stream(self._lanes[lane]):
            for to, source in pairs:
                to.copy_(source, non_blocking=non_blocking)

    def mark(self, lane: int) -> Any:
        event: Any = torch.cuda.Event
        mark = event(enable_timing=True)
        mark.record(self._lanes[lane])
        return mark

    def follow(self, lane: int, mark: Any) -> None:
        self._lanes[lane].wait_event(mark)

    def seconds(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) * 1e-3

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def clock(self) -> float:
        return time.perf_counter()
