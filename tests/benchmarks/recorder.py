"""What recording costs: steps with ten collectives, recorded and not, and under a dispatch mode that does nothing.

    python -m tests.benchmarks.recorder

Times are those that the training thread spends on a core: waits for other ranks vary more than what is measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from rankscope.ranks import launch, recording

ROUNDS = 41
STEPS = 5


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


WAYS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "not recorded": nullcontext,
    "recorded": recording,
    "dispatch mode": DispatchMode,
}


def loop() -> Callable[[], object]:
    tensor = torch.ones(1000)
    return lambda: [dist.all_reduce(tensor) for _ in range(10)]


def ddp(depth: int = 10) -> Callable[[], object]:
    layers = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU()) for _ in range(depth)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.016)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.ones(8, 64)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return step


def cpu_us(make_step: Callable[[], Callable[[], object]]) -> dict[str, float]:
    """The microseconds of a core that the training thread takes for a step in each way; the ways take turns."""
    torch.set_num_threads(1)
    step = make_step()
    times_us: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way, context in WAYS.items():
            with context():
                step()
                start_s = time.thread_time()
                for _ in range(STEPS):
                    step()
                times_us[way].append((time.thread_time() - start_s) / STEPS * 1e6)
    return {way: statistics.median(values) for way, values in times_us.items()}


def print_row(name: str, step_us: dict[str, float]) -> None:
    base_us = step_us["not recorded"]
    more = [f"{value - base_us:+8.0f} {way}" for way, value in step_us.items() if way != "not recorded"]
    print(f"{name:30}{base_us:8.0f} µs per step{''.join(more)}")


def main() -> None:
    for num_ranks in (1, 2):
        for make_step in (loop, ddp):
            print_row(f"{make_step.__name__}, {num_ranks} ranks on Gloo", launch(cpu_us, num_ranks, (make_step,))[0])
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    print_row("loop, collectives do nothing", cpu_us(loop))


if __name__ == "__main__":
    main()
