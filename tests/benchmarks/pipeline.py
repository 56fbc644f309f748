"""Pipelines, each against its peer in one run: python -m tests.benchmarks.pipeline

The simulator against SimPy, its predictions against runs, the runner against torchdata.nodes, DataLoader and the bound
of its slowest stage, shared memory against the queues of torch and of Python.

Rounds are interleaved, and the median is printed unless it says otherwise.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset
from torchdata.nodes import IterableWrapper, Loader, ParallelMapper, Prefetcher

from rankscope.pipeline import Lognormal, Pipeline, Stage, run, simulate
from rankscope.ranks.pool import WorkerPool
from rankscope.ranks.worker import answer

from ..distributions import Exponential
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


# ---- prediction against execution

PATHS = {
    "constant": [Stage("read", 0.004), Stage("decode", 0.012, num_workers=4), Stage("train", 0.0035)],
    "lognormal, in order": [
        Stage("read", Lognormal(0.006, 0.5), num_workers=2),
        Stage("decode", Lognormal(0.02, 0.8), num_workers=6),
        Stage("train", 0.004),
    ],
    "lognormal, as they are done": [
        Stage("read", Lognormal(0.006, 0.5), num_workers=2, ordered=False),
        Stage("decode", Lognormal(0.02, 0.8), num_workers=6, ordered=False),
        Stage("train", 0.004),
    ],
    "balanced, exponential, queues of 1": [Stage(f"s{n}", Exponential(0.008), capacity=1) for n in range(4)],
    "balanced, exponential, queues of 16": [Stage(f"s{n}", Exponential(0.008), capacity=16) for n in range(4)],
}


def predictions() -> None:
    print(f"\n{'300 items, sleeping stages':<44}{'predicted':>10}{'executed':>10}{'residual':>10}   bar: within 2 %")
    for name, stages in PATHS.items():
        path = Pipeline(stages)
        predicted = simulate(path, 300).makespan_s
        executed = statistics.median(run(path, range(300)).makespan_s for _ in range(3))
        print(f"{name:<44}{predicted:>9.3f}s{executed:>9.3f}s{executed / predicted - 1:>+10.1%}")


# ---- the runner


def same(value: Any) -> Any:
    return value


class Numbers(Dataset[int]):
    def __init__(self, size: int, times_s: tuple[float, ...] = ()) -> None:
        self.size, self.times_s = size, times_s

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if index >= self.size:
            raise IndexError
        for time_s in self.times_s:
            time.sleep(time_s)
        return index


def nodes(size: int, *fns: Callable[[Any], Any], workers: int = 1) -> None:
    node: Any = IterableWrapper(range(size))
    for fn in fns:
        node = ParallelMapper(node, fn, num_workers=workers, method="thread")
    for _ in Loader(Prefetcher(node, prefetch_factor=2)):
        pass


def loader(dataset: Dataset[Any], num_workers: int, **more: Any) -> None:
    for _ in DataLoader(dataset, batch_size=None, num_workers=num_workers, **more):
        pass


def overhead() -> None:
    size = 20_000
    title = f"{size:,} items through 3 stages of nothing"
    print(f"\n{title:<44}{'µs/item':>10}{'ratio':>8}   bar: ≤ 60, and less than the others")
    default = Pipeline([Stage("a", fn=same), Stage("b", fn=same), Stage("c", fn=same)])
    wide = Pipeline([Stage("a", fn=same, capacity=16), Stage("b", fn=same, capacity=16), Stage("c", fn=same)])
    taken = rounds(
        {
            "run, 3 thread stages, queues of 2": lambda: run(default, range(size)),
            "run, 3 thread stages, queues of 16": lambda: run(wide, range(size)),
            "torchdata.nodes, 3 ParallelMapper threads": lambda: nodes(size, same, same, same),
            "DataLoader, 1 worker, no batching": lambda: loader(Numbers(size), 1),
        },
        3,
    )
    first = next(iter(taken.values()))
    for name, value in taken.items():
        print(f"{name:<44}{value / size * 1e6:>10.0f}{value / first:>8.1f}")


def bound() -> None:
    size, times_s = 300, (0.004, 0.010, 0.003)
    path = Pipeline([Stage("a", times_s[0]), Stage("b", times_s[1], num_workers=2), Stage("c", times_s[2])])
    first = sum(times_s)
    least = first + (size - 1) * 0.005  # the first item passes all stages, then one leaves every 5 ms
    fns = [lambda value, time_s=time_s: (time.sleep(time_s), value)[1] for time_s in times_s]
    executed = [run(path, range(size)).makespan_s for _ in range(3)]
    dataset = Numbers(size, times_s[:2])
    taken = rounds(
        {
            "torchdata.nodes, 2 workers a stage": lambda: nodes(size, *fns, workers=2),
            "DataLoader, 2 workers, then 3 ms in the loop": lambda: loop_after(dataset, times_s[2], 2),
            "DataLoader, 3 workers, then 3 ms in the loop": lambda: loop_after(dataset, times_s[2], 3),
        },
        3,
    )
    title = f"{size} items: 4 ms, 10 ms (two workers), 3 ms"
    print(f"\n{title:<44}{'share of the bound':>20}   bar: ≥ 97 %, and no less than the others")
    print(f"{'run':<44}{least / statistics.median(executed):>20.1%}")
    for name, value in taken.items():
        print(f"{name:<44}{least / value:>20.1%}")


def loop_after(dataset: Dataset[Any], step_s: float, num_workers: int) -> None:
    for _ in DataLoader(dataset, batch_size=None, num_workers=num_workers):
        time.sleep(step_s)


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
    with WorkerPool() as pool:
        (worker,) = pool.start(pool.pack(partial(answer, batches)), ["worker"])
        worker.ready()
        for place in range(batches.number):
            yield worker.ask(place)[0]


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
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    simulator()
    predictions()
    overhead()
    bound()
    between_processes()


if __name__ == "__main__":
    main()
