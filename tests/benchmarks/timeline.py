"""What recording and handling spans costs, against the usual ways, in one run: python -m tests.benchmarks.timeline"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import torch

from rankscope.timeline import Recorder, Timeline

SPANS = 20_000
REPEATS = 7


def span_cost_us(record: Callable[[int], object]) -> float:
    """Microseconds for a span round nothing, the empty loop taken off."""
    start = time.perf_counter()
    for item in range(SPANS):
        record(item)
    return (time.perf_counter() - start) / SPANS * 1e6


def recorders() -> dict[str, Callable[[int], object]]:
    recorder, kept = Recorder(), []

    def ours(item: int) -> None:
        with recorder.span("loader", "read", item):
            pass

    def direct(item: int) -> None:
        start = time.perf_counter_ns()
        recorder.add("loader", "read", item, start, time.perf_counter_ns())

    @contextlib.contextmanager
    def timed(item: int) -> Iterator[None]:
        start = time.perf_counter_ns()
        yield
        kept.append((item, start, time.perf_counter_ns()))

    def by_contextlib(item: int) -> None:
        with timed(item):
            pass

    def by_torch(item: int) -> None:
        with torch.profiler.record_function("read"):
            pass

    return {
        "Recorder.span (bar: under 2)": ours,
        "Recorder.add": direct,
        "contextlib and a list (this process only)": by_contextlib,
        "torch.profiler.record_function": by_torch,
    }


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    print(f"{'a span of nothing':<48}{'median µs':>10}{'ratio':>8}")
    ways = recorders()
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPEATS):
        for name, record in ways.items():
            costs[name].append(span_cost_us(record))
    first = statistics.median(next(iter(costs.values())))
    for name, measured in costs.items():
        print(f"{name:<48}{statistics.median(measured):>10.2f}{statistics.median(measured) / first:>8.1f}")

    count = 200_000
    start_s = np.arange(count) * 1e-3
    columns = (np.arange(count) % 4, np.arange(count) // 4 % 5, np.zeros(count, int), np.arange(count) // 20)
    timeline = Timeline(*columns, start_s, start_s + 9e-4, tuple("abcde"), ("work",))
    lanes = np.array(timeline.lanes)[timeline.lane]
    frame = pd.DataFrame({"rank": timeline.rank, "lane": lanes, "start_s": start_s, "stop_s": timeline.stop_s})
    print(f"\n{f'{count:,} spans':<48}{'ms':>10}")
    for name, work in {
        "utilisation of 20 lanes": timeline.utilisation,
        "the same by pandas groupby (no overlaps seen)": lambda: (
            (frame.stop_s - frame.start_s).groupby([frame["rank"], frame.lane]).sum()
        ),
        "check": timeline.check,
    }.items():
        print(f"{name:<48}{statistics.median(seconds(work) for _ in range(REPEATS)) * 1e3:>10.1f}")


if __name__ == "__main__":
    main()
