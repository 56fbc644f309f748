"""What goes wrong with copies that do not block, shown: a target that is read, a source that is changed, too early."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .measure import stolen_ticks
from .measure_plan import ITEM_BYTES
from .measure_transfer_device import Cuda, Device
from .measure_transfers import Buffers, most_bytes
from .points import Point

NUM_BYTES = 2**28  # long enough on its way for the end of it to be reached first
LOOKED_AT = 2**14  # elements, the last: a copy brings them last
TRIES = 5
METHODS = ("pinned_non_blocking", "pageable_non_blocking")


def measure_traps(device: str | Device = "cuda:0", num_bytes: int = NUM_BYTES) -> list[Point]:
    """Return a "too_early" and a "changed_source" point for each of `METHODS`.

    In the first a copy to the host is read, in the second the source of one to the GPU is set to 0, as soon as the call
    has returned. Options: ``method``, ``num_looked_at``, the elements that were read or set, the last of the copy, and
    ``num_wrong`` of them, the fewest of several tries; the seconds are the copy's. `num_bytes` may become less, so that
    it fits into memory. Raises ValueError where there is no such GPU, RuntimeError where data never come.
    """
    chosen: Device = Cuda(device) if isinstance(device, str) else device
    size = min(num_bytes, most_bytes(chosen) // ITEM_BYTES * ITEM_BYTES)
    buffers = Buffers(size, chosen)
    points = [_point(what, one, method, buffers) for what, one in TRAPS.items() for method in METHODS]
    del buffers
    chosen.forget_pinned()
    return points


def read_too_early(kind: str, buffers: Buffers) -> tuple[float, Tensor]:
    """Return the copy's seconds and the last elements, as they were read right after the call."""
    device, target = buffers.device, buffers.target(kind).zero_()
    source = buffers.source(device.index)
    device.synchronize()
    begin = device.mark(0)
    device.copy([(target, source)], True, 0)
    end = device.mark(0)
    read = target[-LOOKED_AT:].clone()
    device.synchronize()
    if not torch.equal(target, torch.arange(1, target.numel() + 1, dtype=target.dtype)):
        raise RuntimeError(f"a copy from the GPU to {kind} memory brought wrong data")
    return device.seconds(begin, end), read


def change_source(kind: str, buffers: Buffers) -> tuple[float, Tensor]:
    """Return the copy's seconds and the last elements that arrived, with the source set to 0 right after the call."""
    device, target = buffers.device, buffers.target(buffers.device.index).zero_()
    source = buffers.source(kind)
    last, right = source[-LOOKED_AT:], source[-LOOKED_AT:].clone()
    device.synchronize()
    begin = device.mark(0)
    device.copy([(target, source)], True, 0)
    end = device.mark(0)
    last.zero_()
    device.synchronize()
    last.copy_(right)
    return device.seconds(begin, end), target[-LOOKED_AT:].cpu()


Trap = Callable[[str, Buffers], tuple[float, Tensor]]
TRAPS: dict[str, Trap] = {"too_early": read_too_early, "changed_source": change_source}


def _point(what: str, trap: Trap, method: str, buffers: Buffers) -> Point:
    right = buffers.source("pageable")[-LOOKED_AT:]
    seconds, clean, wrong = [], [], []
    for _ in range(TRIES):
        stolen = stolen_ticks()
        took_s, found = trap(method.removesuffix("_non_blocking"), buffers)
        seconds.append(took_s)
        clean.append(stolen_ticks() == stolen)
        wrong.append(int((found != right).sum()))
    options = {"method": method, "num_wrong": min(wrong), "num_looked_at": right.numel()}
    return Point(what, buffers.num_bytes, tuple(seconds), tuple(clean), options)
