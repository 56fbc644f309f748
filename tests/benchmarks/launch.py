"""What a warm launch takes next to ``torch.multiprocessing.spawn``.

    python -m tests.benchmarks.launch [ROUNDS]

The ways take turns, so that other work on the machine slows all. Medians of ROUNDS; the ratio is that of the medians.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import rankscope.train  # noqa: F401  # which names its modules to the server
from rankscope.ranks import launch

from ..ranks import functions

Work = Callable[[], object]


def spawned(rank: int, work: Work, num_ranks: int, store: str) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks)
    work()
    dist.destroy_process_group()


def spawn(work: Work, num_ranks: int) -> None:
    import torch.multiprocessing

    with tempfile.TemporaryDirectory() as folder:
        arguments = (work, num_ranks, str(Path(folder, "store")))
        torch.multiprocessing.spawn(spawned, arguments, num_ranks)  # type: ignore[attr-defined]


def seconds(call: Callable[..., object], *args: object) -> float:
    begin_s = time.perf_counter()
    call(*args)
    return time.perf_counter() - begin_s


def print_row(name: str, ours: list[float], theirs: list[float], bar_s: float) -> None:
    our_s = statistics.median(ours)
    their_s = statistics.median(theirs)
    print(f"{name:44}{our_s:7.2f} s{their_s:9.2f} s{their_s / our_s:8.1f}{bar_s:9.1f} s")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    launch(functions.use_train, 8)
    print(f"{'':44}{'launch':>9}{'peer':>11}{'ratio':>8}{'bar':>11}")
    for work in (functions.rank, functions.use_train):
        for num_ranks, bar_s in ((4, 0.3), (8, 0.5)):
            ours = []
            theirs = []
            for _ in range(rounds):
                ours.append(seconds(launch, work, num_ranks))
                theirs.append(seconds(spawn, work, num_ranks))
            print_row(f"{num_ranks} ranks, {work.__name__}; peer: spawn", ours, theirs, bar_s)


if __name__ == "__main__":
    main()
