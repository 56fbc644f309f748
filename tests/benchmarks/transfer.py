"""What `prefetched` gives, each way in one run: python -m tests.benchmarks.transfer

On a GPU, milliseconds a step by size of batch, where a step computes about as long as its copy takes: batches moved by
`.to(device)`, by DataLoader(pin_memory=True) and `.to(device, non_blocking=True)`, and prefetched from either. The
bound is max(copy, compute), measured alone; the last column is the share of it that `overlap_share` finds. Without a
GPU, what the wrapper costs a batch. Rounds are interleaved, and the median is printed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch.utils.data import DataLoader

from rankscope.common.units import bytes_words
from rankscope.timeline import Recorder
from rankscope.transfer import overlap_share, prefetched

ROUNDS = 5
NUM_BATCHES = 40
SIZES = [2**power for power in range(16, 29, 2)]


def rounds(works: dict[str, Callable[[], float]]) -> dict[str, float]:
    """The median of each, in interleaved rounds, after one that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(ROUNDS + 1):
        for name, work in works.items():
            seconds = work()
            if turn:
                taken[name].append(seconds)
    return {name: statistics.median(times) for name, times in taken.items()}


# ---- on a GPU


def seconds_a_step(batches: Iterable[torch.Tensor], step: Callable[[], None], non_blocking: bool = False) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for batch in batches:
        batch.to("cuda", non_blocking=non_blocking)
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / NUM_BATCHES


def device_seconds(work: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def computing(seconds: float) -> Callable[[], None]:
    """Matrix products that take about that long."""
    matrix = torch.ones(1024, 1024, device="cuda", dtype=torch.bfloat16)

    def compute(repeats: int) -> None:
        for _ in range(repeats):
            matrix @ matrix

    compute(100)
    return partial(compute, max(1, round(seconds * 500 / device_seconds(lambda: compute(500)))))


def compare(num_bytes: int) -> None:
    batches = [torch.ones(num_bytes // 4) for _ in range(4)] * (NUM_BATCHES // 4)
    pinned = batches[0].pin_memory()
    target = torch.empty_like(pinned, device="cuda")
    copy = partial(target.copy_, pinned, non_blocking=True)
    step = computing(statistics.median(device_seconds(copy) for _ in range(20)))
    loader = DataLoader(batches, batch_size=None, num_workers=2, pin_memory=True, persistent_workers=True)  # type: ignore[arg-type]
    found = rounds(
        {
            "copy": partial(device_seconds, copy),
            "compute": partial(device_seconds, step),
            "to": partial(seconds_a_step, batches, step),
            "pinned": partial(seconds_a_step, loader, step, True),
            "prefetched": partial(seconds_a_step, prefetched(batches, "cuda"), step),
            "prefetched pinned": partial(seconds_a_step, prefetched(loader, "cuda"), step),
            "prefetched from pinned memory": partial(seconds_a_step, prefetched([pinned] * NUM_BATCHES, "cuda"), step),
        }
    )
    recorder = Recorder()
    seconds_a_step(prefetched([pinned] * NUM_BATCHES, "cuda", recorder=recorder), step)
    bound_s = max(found.pop("copy"), found.pop("compute"))
    cells = "".join(f"{seconds * 1e3:>14.3f}" for seconds in (bound_s, *found.values()))
    print(f"{bytes_words(num_bytes):>10}{cells}{overlap_share(recorder.timeline()):>10.1%}")


def on_a_gpu() -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: ms a step, {NUM_BATCHES} steps")
    names = ["bound", ".to", "loader pins", "prefetched", "…loader pins", "…all pinned"]
    print(f"{'batch':>10}{''.join(f'{name:>14}' for name in names)}{'share':>10}")
    for num_bytes in SIZES:
        compare(num_bytes)


# ---- without one


def seconds_a_batch(batches: Iterable[object]) -> float:
    start = time.perf_counter()
    count = sum(1 for _ in batches)
    return (time.perf_counter() - start) / count


def without_a_gpu() -> None:
    print("There is no GPU here, and so nothing to overlap. What the wrapper costs on the CPU, µs a batch:")
    batches = [{"x": torch.ones(64, 3), "y": torch.ones(64)}] * 5000
    found = rounds(
        {
            "a plain list": partial(seconds_a_batch, batches),
            "prefetched": partial(seconds_a_batch, prefetched(batches, "cpu")),
            "prefetched, recorded": partial(seconds_a_batch, prefetched(batches, "cpu", recorder=Recorder())),
        }
    )
    for name, seconds in found.items():
        print(f"  {name:<24}{seconds * 1e6:>8.3f}")


def main() -> None:
    if torch.cuda.is_available():
        on_a_gpu()
    else:
        without_a_gpu()


if __name__ == "__main__":
    main()
