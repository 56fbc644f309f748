"""`launch` beside torch.multiprocessing.spawn and torchrun, in the same run: python -m tests.benchmarks.launch

Each way 8 ranks meet in a group of Gloo, sum a number, and are gone. The ways take turns, and the medians are told.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing

from rankscope.ranks import launch

from ..ranks.functions import total

NUM_RANKS, ROUNDS, WARM = 8, 3, 5
SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
tensor = torch.tensor([dist.get_rank()])
dist.all_reduce(tensor)
dist.destroy_process_group()
"""


def _spawned(rank: int, folder: str) -> None:
    store = dist.FileStore(f"{folder}/store", NUM_RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=NUM_RANKS)
    total()
    dist.destroy_process_group()


def by_spawn() -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_spawned, (folder,), NUM_RANKS)


def by_torchrun() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "script.py")
        path.write_text(SCRIPT)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={NUM_RANKS}", path]
        subprocess.run(command, check=True, capture_output=True)


def by_launch() -> None:
    assert launch(total, NUM_RANKS) == [NUM_RANKS * (NUM_RANKS - 1) // 2] * NUM_RANKS


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _array() -> np.ndarray:
    return np.ones(12_500_000)


def _tensor() -> torch.Tensor:
    return torch.ones(25_000_000)


def main() -> None:
    first = seconds(by_launch)
    times: dict[str, list[float]] = {"launch, warm": [], "torch.multiprocessing.spawn": [], "torchrun": []}
    for _ in range(ROUNDS):
        times["launch, warm"] += [seconds(by_launch) for _ in range(WARM)]
        times["torch.multiprocessing.spawn"].append(seconds(by_spawn))
        times["torchrun"].append(seconds(by_torchrun))
    ours = statistics.median(times["launch, warm"])
    print(f"{f'{NUM_RANKS} ranks up, one allreduce, all gone':<40}{'median s':>10}{'best':>8}{'ratio':>8}   bar")
    print(f"{'launch, first call':<40}{first:>10.2f}{first:>8.2f}{first / ours:>8.1f}")
    for name, each in times.items():
        bar = "   ≤ 0.5 s" if "launch" in name else ""
        median = statistics.median(each)
        print(f"{name:<40}{median:>10.2f}{min(each):>8.2f}{median / ours:>8.1f}{bar}")
    print(f"\n{'100 MB from each of 2 ranks':<40}{'median s':>10}{'best':>8}")
    for name, work in (("array", _array), ("tensor", _tensor)):
        each = [seconds(lambda work=work: launch(work, 2)) for _ in range(WARM)]
        print(f"{name:<40}{statistics.median(each):>10.2f}{min(each):>8.2f}")


if __name__ == "__main__":
    main()
