"""Copies between host and GPU, timed by the GPU's clock; each is checked for correct data before it is timed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...ranks.recorder import cuda_event
from ..points import Point, PointKey
from .plan import ITEM_BYTES, Protocol, measure_in_turns, words_of

KINDS = ("pageable", "pinned", "gpu")  # of memory


class Gpu:
    """The GPU whose copies are measured: memory, copies and events.

    All memory has int32 elements. Tests use another class with these methods.
    """

    def memory(self, num_bytes: int, kind: str) -> Tensor:
        """Return "pageable", "pinned" or "gpu" memory."""
        device = "cuda" if kind == "gpu" else "cpu"
        return torch.empty(num_bytes // ITEM_BYTES, dtype=torch.int32, device=device, pin_memory=kind == "pinned")

    def pin(self, tensor: Tensor) -> Tensor:
        """Return a copy in pinned memory."""
        return tensor.pin_memory()

    def forget_pinned(self) -> None:
        """Give pinned memory that was released back to the system; PyTorch would use it again."""
        self.synchronize()  # memory that a copy still uses would stay
        release: Any = getattr(torch.accelerator, "empty_host_cache", None)
        if release is None:  # older versions of torch
            release = torch._C._host_emptyCache
        release()

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy, and wait until the target can be used."""
        target.copy_(source)

    def mark(self) -> Any:
        """Return an event that is passed when all earlier work is done."""
        return cuda_event()

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the seconds between two passed marks."""
        return float(begin.elapsed_time(end)) * 1e-3

    def synchronize(self) -> None:
        """Wait until all work is done."""
        torch.cuda.synchronize()


def transfer_points(keys: Sequence[PointKey], protocol: Protocol, gpu: Gpu) -> list[Point]:
    """Return the "transfer" points of keys of one size, which take turns.

    The seconds are by the GPU's clock, from before the call on an idle GPU to the end of the copy. Options:
    ``direction`` "h2d" or "d2h"; ``method``, one of METHODS, of which "pin_on_the_fly" pins new memory for the copy;
    ``pieces`` is 1 and ``both`` False, as other programs have copies in pieces or both ways at once. Raises
    RuntimeError if a copy delivers wrong data.
    """
    num_bytes = keys[0].num_bytes
    numbers = gpu.memory(num_bytes, "pageable").random_()
    sources = {kind: gpu.memory(num_bytes, kind).copy_(numbers) for kind in KINDS}
    targets = {kind: gpu.memory(num_bytes, kind) for kind in KINDS}

    def copied(key: PointKey) -> Tensor:
        """Make a copy, and return the memory that it fills."""
        options: dict[str, Any] = dict(key.options)
        method = options["method"]
        if options["direction"] == "h2d":
            target = targets["gpu"]
            source = gpu.pin(sources["pageable"]) if method == "pin_on_the_fly" else sources[method]
        else:
            target = gpu.memory(num_bytes, "pinned") if method == "pin_on_the_fly" else targets[method]
            source = sources["gpu"]
        gpu.copy(target, source)
        return target

    def seconds(key: PointKey) -> float:
        gpu.forget_pinned()
        begin = gpu.mark()
        target = copied(key)
        end = gpu.mark()
        gpu.synchronize()
        del target  # only now, so that no memory is released while a copy still uses it
        return gpu.seconds(begin, end)

    for key in keys:
        for source in sources.values():
            source.add_(1)  # so that data from earlier copies are wrong
        target = copied(key)
        gpu.synchronize()
        if not torch.equal(target.cpu(), sources["pageable"]):
            raise RuntimeError(f"{words_of(key)} delivered wrong data")
    points = measure_in_turns(keys, seconds, protocol)
    gpu.forget_pinned()
    return points
