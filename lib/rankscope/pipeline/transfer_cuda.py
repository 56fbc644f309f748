"""The few operations of CUDA that a prefetcher is made of, in one place so that a test can put a late one there."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..values.checks import whole

_now = time.perf_counter_ns
_FAR_MS = 10_000.0  # further than this from where it counts from, a time in CUDA's single precision is coarse


class Cuda:
    """A device with a copy stream of its own; the consumer's stream is whichever is current.

    Raises ValueError where the device is not there.
    """

    def __init__(self, device: torch.device) -> None:
        if not torch.cuda.is_available():
            raise ValueError(f"device must be one that is here, and no CUDA device is; got {str(device)!r}")
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", whole("the device's number", index, 0, torch.cuda.device_count() - 1))
        self._copy_stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def copying(self) -> AbstractContextManager[object]:
        """Return a context in which the copy stream is the current one."""
        return torch.cuda.stream(self._copy_stream)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """Return a pinned buffer from torch's pool of them."""
        with torch.inference_mode(False):  # a tensor made inside cannot be written to outside
            return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, source: Any) -> Any:
        """Return where the copy of a pinned tensor or object will be; the current stream makes it in its turn."""
        return source.to(self.device, non_blocking=True)

    def mark(self, timed: bool) -> torch.cuda.Event:
        """Return an event that completes when the current stream has done all that it was given so far."""
        # blocking: who waits for it leaves the core to others
        event = torch.cuda.Event(enable_timing=timed, blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait_for(self, event: torch.cuda.Event) -> None:
        """Have the current stream wait; the host goes on."""
        torch.cuda.current_stream(self.device).wait_event(event)

    def hand_over(self, tensor: torch.Tensor) -> None:
        """Have the allocator give the tensor's memory to nobody before what the current stream does with it is done."""
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(self.device))

    def clock(self) -> Callable[[torch.cuda.Event], int]:
        """Return what tells when a completed, timed event was, as `time.perf_counter_ns` would have told.

        One moment is read on both clocks, to about 10 µs; from there on the device's clock counts.
        """
        _, anchor, anchor_ns = min((self._moment() for _ in range(5)), key=lambda moment: moment[0])

        def read(event: torch.cuda.Event) -> int:
            nonlocal anchor, anchor_ns
            elapsed_ms: float = anchor.elapsed_time(event)
            event_ns: int = anchor_ns + round(elapsed_ms * 1e6)
            if elapsed_ms > _FAR_MS:
                anchor, anchor_ns = event, event_ns
            return event_ns

        return read

    def _moment(self) -> tuple[int, torch.cuda.Event, int]:
        """How long the host was in doubt, an event of the copy stream, and when it was."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        before_ns = _now()
        event.record(self._copy_stream)
        event.synchronize()
        after_ns = _now()
        return after_ns - before_ns, event, (before_ns + after_ns) // 2
