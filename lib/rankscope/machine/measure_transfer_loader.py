"""Epochs of a DataLoader whose batches go to a device and are worked on there, with pin_memory and without."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .measure import stolen_ticks
from .points import Point

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
    points = []
    for num_workers in workers:
        found: dict[bool, list[tuple[float, bool]]] = {pin: [] for pin in pins}
        loaders = {pin: _loader(sample_bytes, num_batches, pin, num_workers) for pin in pins}
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
    is_cuda = torch.device(device).type == "cuda"
    begin = time.perf_counter()
    sums = []
    for batch in loader:
        here = batch.to(device, non_blocking=pin)
        step(here)
        sums.append(here[:, -1].sum())
    if is_cuda:
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - begin
    for place, total in enumerate(sums):
        right = sum(range(place * BATCH_SIZE, (place + 1) * BATCH_SIZE))
        if total.item() != right:
            raise RuntimeError(
                f"batch {place} has wrong data: its last elements sum up to {total.item():g}, not {right}"
            )
    return seconds


def _loader(sample_bytes: int, num_batches: int, pin: bool, num_workers: int) -> Any:
    samples = Samples(num_batches * BATCH_SIZE, sample_bytes)
    kept = {"persistent_workers": True, "timeout": TIMEOUT_S} if num_workers else {}
    return DataLoader(samples, BATCH_SIZE, num_workers=num_workers, pin_memory=pin, **kept)  # type: ignore[arg-type]
