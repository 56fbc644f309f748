"""Pipelines, each against its peer in one run: python -m tests.benchmarks.pipeline

The simulator against SimPy, and shared memory against the queues of torch and of Python.

Rounds are interleaved, and the median is printed unless it says otherwise.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.multiprocessing

from rankscope.pipeline import Lognormal, Pipeline, Stage, simulate
from rankscope.pipeline.processes import Process

from ..pipeline.simpy_reference import reference


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def rounds(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The median seconds of each, in interleaved rounds."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            taken[name].append(seconds(work))
    return {name: statistics.median(times) for name, times in taken.items()}


# ---- the simulator


def simulator() -> None:
    print(f"\n{'simulating 100,000 items × 5 stages [s]':<44}{'ours':>9}{'SimPy':>9}{'ratio':>8}   bar: ≥ 10")
    for ordered in (True, False):
        stages = [
            Stage(f"s{place}", Lognormal(0.01, 0.5), num_workers=workers, capacity=4, ordered=ordered)
            for place, workers in enumerate([1, 4, 2, 1, 1])
        ]
        path = Pipeline(stages)
        taken = rounds({"ours": partial(simulate, path, 100_000), "SimPy": partial(reference, path, 100_000)}, 3)
        name = "workers 1, 4, 2, 1, 1, " + ("in order" if ordered else "as they are done")
        print(f"{name:<44}{taken['ours']:>9.2f}{taken['SimPy']:>9.2f}{taken['SimPy'] / taken['ours']:>8.1f}")


# ---- between processes


class Batches:
    """Makes each batch when it is asked for, or has made all of them before: no two share memory."""

    def __init__(self, batch: Any, number: int, made: bool) -> None:
        self.batch, self.number, self.made = batch, number, made
        self.all: list[Any] = []

    def __call__(self, place: int) -> Any:
        if not self.made:
            return self.batch + 1
        if not self.all:
            self.all = [self.batch + 1 for _ in range(self.number)]
        return self.all[place]


def exchanged(batches: Batches) -> Iterator[Any]:
    process = Process(batches, timeout_s=60)
    for place in range(batches.number):
        yield process.call(place)
    process.end()


def put(queue: Any, done: Any, batches: Batches) -> None:
    torch.set_num_threads(1)
    for place in range(batches.number):
        queue.put(batches(place))
    done.wait()


def queued(module: Any, batches: Batches) -> Iterator[Any]:
    context = module.get_context("fork")
    queue, done = context.Queue(maxsize=2), context.Event()
    process = context.Process(target=put, args=(queue, done, batches))
    process.start()
    for _ in range(batches.number):
        yield queue.get()
    done.set()
    process.join()


def gigabytes_per_s(values: Iterator[Any], batches: Batches) -> float:
    """From the third value to the last, each looked at: the first ones make the memory."""
    for _ in range(3):
        next(values).ravel()[-1].item()
    start = time.perf_counter()
    for value in values:
        last = value.ravel()[-1].item()
    taken = time.perf_counter() - start
    assert last == batches.batch.ravel()[-1].item() + 1
    return float(batches.batch.nbytes * (batches.number - 3) / taken / 1e9)


def copied(batch: Any) -> float:
    """GB/s of plain copies between arrays that are too many for the caches."""
    arrays = [batch + number for number in range(max(4, 100_000_000 // batch.nbytes))]
    start = time.perf_counter()
    for target, source in zip(arrays[1:], arrays, strict=False):
        np.copyto(target, source)
    return float(batch.nbytes * (len(arrays) - 1) / (time.perf_counter() - start) / 1e9)


def between_processes() -> None:
    for made, words, bar in ((False, "making it included", ""), (True, "made before", "   bar at 8 MB: ≥ 8, ≥ 70 %")):
        title = f"a new batch from one process to another, {words}"
        print(f"\n{title:<64}{'ours':>8}{'torch':>8}{'numpy':>8}{'copy':>8}   GB/s{'to torch':>12}{'to copy':>10}{bar}")
        for size_bytes, number in ((600_000, 200), (8_000_000, 60), (64_000_000, 12)):
            array = np.random.default_rng(0).random(size_bytes // 8)
            arrays, tensors = Batches(array, number, made), Batches(torch.from_numpy(array), number, made)
            found: dict[str, list[float]] = {"ours": [], "torch": [], "numpy": [], "copy": []}
            for _ in range(3):
                found["ours"].append(gigabytes_per_s(exchanged(arrays), arrays))
                found["torch"].append(gigabytes_per_s(queued(torch.multiprocessing, tensors), tensors))
                found["numpy"].append(gigabytes_per_s(queued(multiprocessing, arrays), arrays))
                found["copy"].append(copied(array))
            rates = {name: statistics.median(each) for name, each in found.items()}
            row = "".join(f"{rate:>8.2f}" for rate in rates.values())
            ours = rates["ours"]
            print(f"{f'{size_bytes / 1e6:g} MB':<64}{row}{ours / rates['torch']:>19.1f}{ours / rates['copy']:>10.0%}")


def main() -> None:
    simulator()
    between_processes()


if __name__ == "__main__":
    main()
