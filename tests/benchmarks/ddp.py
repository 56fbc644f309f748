"""What a what-if of DDP takes: python -m tests.benchmarks.ddp

10,000 gradients at 1,024 ranks, bucket assignment included, beside a SimPy simulation of the same step and, for the
assignment alone, torch's own; and what the explorer takes to make its pictures. The bars are 50 and 100 ms.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from rankscope import explorers
from rankscope.cluster import Link
from rankscope.explorers.explorer import explorer_of
from rankscope.train.ddp import Contention, LocalStep, buckets, recommend, simulate
from rankscope.train.ddp import cost as cost_of
from rankscope.train.ddp.architectures import ARCHITECTURES
from rankscope.train.ddp.recommend import DEFAULT_CAPS_MB
from rankscope.train.ddp.step import default_buckets, last_backward, launches
from tests.train.ddp.simpy_reference import reference

NUM_TENSORS, NUM_RANKS, ROUNDS = 10_000, 1024, 9
LINK, HELD = Link(alpha_s=5e-6, bytes_per_s=25e9), Contention(1.2, 1.1)


def median_ms(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def torch_assignment(sizes: list[int]) -> Callable[[], object]:
    import torch
    import torch.distributed as dist

    tensors = [torch.empty(size // 4, device="meta") for size in sizes]
    return lambda: dist._compute_bucket_assignment_by_size(tensors, [1 << 20, 25 << 20])


def main() -> None:
    sizes = (4 * 2 ** np.random.default_rng(0).integers(6, 20, NUM_TENSORS)).tolist()
    cost = cost_of(LINK, NUM_RANKS)

    def made() -> LocalStep:
        return LocalStep.modelled(sizes, backward_s=0.5)

    def end_s(local: LocalStep, cap_mb: float | None) -> float:
        return last_backward(local, launches(local, default_buckets(local, cap_mb)), cost, HELD).end_s

    local, fresh = made(), iter([made() for _ in range(ROUNDS)])
    options: dict[str, Any] = {"contention": HELD}
    rows: list[tuple[str, Callable[[], object], int]] = [
        ("the local step, from 10,000 sizes", made, ROUNDS),
        ("what-if: the first of a local step", lambda: end_s(next(fresh), None), ROUNDS),
        ("what-if: a step's seconds, default cap", lambda: end_s(local, None), ROUNDS),
        ("what-if: a step's seconds, 1 MiB", lambda: end_s(local, 1), ROUNDS),
        ("what-if: its Timeline, default cap", lambda: simulate(local, cost, **options), ROUNDS),
        (f"recommendation: {len(DEFAULT_CAPS_MB)} caps", lambda: recommend(local, cost, **options), ROUNDS),
        (
            "peer: the same step as SimPy processes",
            lambda: reference(local, default_buckets(local), lambda size: float(cost(size)), HELD),
            3,
        ),
        ("assignment alone, parameter by parameter", lambda: buckets(local.parameters), ROUNDS),
        ("peer: torch's assignment, C++", torch_assignment(sizes), ROUNDS),
    ]
    print(f"{NUM_TENSORS} gradients of {local.num_bytes / 1e9:.1f} GB, {NUM_RANKS} ranks", flush=True)
    for name, work, rounds in rows:
        print(f"  {name:<50}{median_ms(work, rounds):>10.1f} ms", flush=True)
    explorer, latencies = explorer_of(explorers.ddp), count()
    print("explorer: step, caps and report")
    for name in ARCHITECTURES:
        for cap in (True, False):

            def repaint(name: str = name, cap: bool = cap) -> None:  # nothing is painted twice at the same settings
                now = explorer.at(model=name, cap="default" if cap else "1 MiB", network="latency and bandwidth")
                explorer.html(now._replace(alpha_us=next(latencies)))

            took = median_ms(repaint)
            print(f"  {name + (', default' if cap else ', 1 MiB'):<50}{took:>10.1f} ms", flush=True)


if __name__ == "__main__":
    main()
