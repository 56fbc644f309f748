"""Experiments on copies: what goes wrong with those that do not block, and what pinning does for a DataLoader."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..profile import Point
from .plan import ITEM_BYTES
from .timing import stolen_ticks
from .transfers import Buffers, Cuda, most_bytes

NUM_BYTES = 2**28  # long enough on its way for the end of it to be reached first
LOOKED_AT = 2**14  # elements, the last: a copy brings them last
TRIES = 5
METHODS = ("pinned_non_blocking", "pageable_non_blocking")


# ---- a target that is read, and a source that is changed, too early


def measure_traps(device: str | Cuda = "cuda:0", num_bytes: int = NUM_BYTES) -> list[Point]:
    """Return a "too_early" and a "changed_source" point for each of `METHODS`.

    In the first a copy to the host is read, in the second the source of one to the GPU is set to 0, as soon as the call
    has returned. Options: ``method``, ``num_looked_at``, the elements that were read or set, the last of the copy, and
    ``num_wrong`` of them, the fewest of several tries; the seconds are the copy's. `num_bytes` may become less, so that
    it fits into memory. Raises ValueError where there is no such GPU, RuntimeError where data never come.
    """
    chosen = Cuda(device) if isinstance(device, str) else device
    size = min(num_bytes, most_bytes(chosen) // ITEM_BYTES * ITEM_BYTES)
    buffers = Buffers(size, chosen)
    right = buffers.source("pageable")[-LOOKED_AT:].clone()
    points = []
    for what, trap in {"too_early": read_too_early, "changed_source": change_source}.items():
        for method in METHODS:
            seconds, clean, wrong = [], [], []
            for _ in range(TRIES):
                stolen = stolen_ticks()
                took_s, found = trap(method.removesuffix("_non_blocking"), buffers)
                seconds.append(took_s)
                clean.append(stolen_ticks() == stolen)
                wrong.append(int((found != right).sum()))
            options = {"method": method, "num_wrong": min(wrong), "num_looked_at": right.numel()}
            points.append(Point(what, size, tuple(seconds), tuple(clean), options))
    del buffers
    chosen.forget_pinned()
    return points


def read_too_early(kind: str, buffers: Buffers) -> tuple[float, Tensor]:
    """Return the copy's seconds and the last elements, as they were read right after the call."""
    device, target = buffers.device, buffers.target(kind).zero_()
    source = buffers.source(device.index)
    read: list[Tensor] = []
    seconds = _copied_s(device, target, source, lambda: read.append(target[-LOOKED_AT:].clone()))
    if not torch.equal(target, torch.arange(1, target.numel() + 1, dtype=target.dtype)):
        raise RuntimeError(f"a copy from the GPU to {kind} memory brought wrong data")
    return seconds, read[0]


def change_source(kind: str, buffers: Buffers) -> tuple[float, Tensor]:
    """Return the copy's seconds and the last elements that arrived, with the source set to 0 right after the call."""
    device, target = buffers.device, buffers.target(buffers.device.index).zero_()
    source = buffers.source(kind)
    last = source[-LOOKED_AT:]
    right = last.clone()
    seconds = _copied_s(device, target, source, last.zero_)
    last.copy_(right)
    return seconds, target[-LOOKED_AT:].cpu()


def _copied_s(device: Cuda, target: Tensor, source: Tensor, then: Callable[[], object]) -> float:
    """Start a copy that does not block, do something right after the call, and return the copy's seconds."""
    device.synchronize()
    begin = device.mark(0)
    device.copy([(target, source)], True, 0)
    end = device.mark(0)
    then()
    device.synchronize()
    return device.seconds(begin, end)


# ---- epochs of a DataLoader, with pin_memory and without

BATCH_SIZE, NUM_BATCHES, SAMPLE_BYTES = 32, 40, 2**18
EPOCHS, WORKERS = 5, (0, 2)
SHARED, BATCHES_SHARED = Path("/dev/shm"), 32  # workers' batches lie there
TIMEOUT_S = 60.0
MATRIX, PRODUCTS = 4096, 4

Step = Callable[[Tensor], object]


class Samples(Dataset[Tensor]):
    """Samples made when they are asked for: number i is full of i."""

    def __init__(self, number: int, num_bytes: int) -> None:
        self._number, self._elements = number, num_bytes // 4

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((self._elements,), float(index))


def measure_loader(
    device: str = "cuda:0",
    sample_bytes: int = SAMPLE_BYTES,
    num_batches: int = NUM_BATCHES,
    pins: tuple[bool, ...] = (False, True),
    workers: tuple[int, ...] = WORKERS,
    step: Step | None = None,
) -> list[Point]:
    """Return a "loader" point for each number of workers, with and without pin_memory: an epoch's mean batch.

    Options: ``pin_memory``, which goes with ``.to(device, non_blocking=True)`` as ``False`` does with a copy that
    blocks, and ``num_workers``. `step` is what the device does with each batch, by default some matrix products. Epochs
    with and without take turns; the first of each, in which workers start, does not count. Samples become smaller where
    there is little shared memory. Raises RuntimeError where a batch comes with wrong data or not at all.
    """
    if SHARED.exists():
        most = shutil.disk_usage(SHARED).free // (BATCHES_SHARED * BATCH_SIZE)
        sample_bytes = max(4, min(sample_bytes, most) // 4 * 4)
    step = step or products(device)
    samples = Samples(num_batches * BATCH_SIZE, sample_bytes)
    points = []
    for num_workers in workers:
        kept: Any = {"persistent_workers": True, "timeout": TIMEOUT_S} if num_workers else {}
        loaders = {
            pin: DataLoader(samples, BATCH_SIZE, num_workers=num_workers, pin_memory=pin, **kept) for pin in pins
        }
        found: dict[bool, list[tuple[float, bool]]] = {pin: [] for pin in pins}
        for _ in range(EPOCHS + 1):
            for pin, loader in loaders.items():
                stolen = stolen_ticks()
                seconds = epoch_s(loader, device, pin, step) / num_batches
                found[pin].append((seconds, stolen_ticks() == stolen))
        del loaders, loader
        for pin, runs in found.items():
            seconds_each, clean = zip(*runs[1:], strict=True)
            options = {"pin_memory": pin, "num_workers": num_workers}
            points.append(Point("loader", sample_bytes * BATCH_SIZE, seconds_each, clean, options))
    return points


def products(device: str) -> Step:
    """Return a step that multiplies matrices, some milliseconds long on a large GPU, whatever the batch."""
    matrix = torch.ones(MATRIX, MATRIX, device=device)

    def step(batch: Tensor) -> Tensor:
        for _ in range(PRODUCTS):
            torch.mm(matrix, matrix)
        return batch

    return step


def epoch_s(loader: Any, device: str, pin: bool, step: Step) -> float:
    """Return the seconds of an epoch to the end of all work; raises RuntimeError for a batch with wrong data."""
    begin = time.perf_counter()
    sums = []
    for batch in loader:
        here = batch.to(device, non_blocking=pin)
        step(here)
        sums.append(here[:, -1].sum())
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - begin
    for place, total in enumerate(sums):
        right = sum(range(place * BATCH_SIZE, (place + 1) * BATCH_SIZE))
        if total.item() != right:
            wrong = f"its last elements sum up to {total.item():g}, not {right}"
            raise RuntimeError(f"batch {place} has wrong data: {wrong}")
    return seconds
