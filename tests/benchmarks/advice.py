"""Advice that is followed: python -m tests.benchmarks.advice, on a quiet machine; it takes about 4 minutes.

Each loader is recorded for two epochs. Then epochs with the recorded and with the advised settings run in turn, none of
them recorded, and each of the two has the median of its times. Persistent workers have started before.
"""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from msgspec.structs import asdict
from torch.utils.data import DataLoader, Dataset, default_collate

from rankscope.pipeline import advise, record_dataloader

BATCH_SIZE = 4
ROUNDS = 4
BAR = 0.15  # by which a measured gain may differ from the promised one


def compute(units: int) -> None:
    """Keep a core busy for about 0.1 ms per unit."""
    for _ in range(units):
        sum(range(7_000))


class Samples(Dataset[torch.Tensor]):
    """Samples whose reading waits and computes; every `slow_every`-th waits for ten times as long."""

    def __init__(self, size: int, wait_s: float = 0.0, units: int = 0, floats: int = 64, slow_every: int = 0) -> None:
        self.size = size
        self.wait_s = wait_s
        self.units = units
        self.slow_every = slow_every
        self.content = torch.zeros(floats)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        wait_s = self.wait_s
        if self.slow_every and index % self.slow_every == 0:
            wait_s *= 10
        if wait_s:
            time.sleep(wait_s)
        compute(self.units)
        return self.content.clone()


def waiting_collate(samples: Any) -> Any:
    time.sleep(0.010)
    return default_collate(samples)


def computing_collate(samples: Any) -> Any:
    compute(80)
    return default_collate(samples)


def start_slowly(worker: int) -> None:
    time.sleep(0.4)


class Case(NamedTuple):
    name: str
    dataset: Samples
    options: dict[str, Any]  # of the DataLoader
    step_s: float = 0.005  # a step waits for so long
    step_units: int = 0  # and computes for so long

    def loader(self, **settings: Any) -> DataLoader[torch.Tensor]:
        return DataLoader(self.dataset, batch_size=BATCH_SIZE, **{**self.options, **settings})

    def epoch_s(self, batches: Iterable[Any]) -> float:
        """Seconds from the making of the iterator to the end of the last step."""
        start_s = time.perf_counter()
        for _ in batches:
            time.sleep(self.step_s)
            compute(self.step_units)
        return time.perf_counter() - start_s


CASES = [
    Case("waits, 1 worker", Samples(240, 0.004), {"num_workers": 1}),
    Case("waits, 2 workers", Samples(400, 0.005), {"num_workers": 2}),
    Case("waits, 10 workers", Samples(1000, 0.020), {"num_workers": 10}),
    Case("waits, 4 kept workers", Samples(400, 0.010), {"num_workers": 4, "persistent_workers": True}),
    Case("waits, out of order", Samples(400, 0.005), {"num_workers": 2, "in_order": False}),
    Case("waits, no workers", Samples(240, 0.004), {"num_workers": 0}),
    Case("computes, 1 worker", Samples(400, units=30), {"num_workers": 1}),
    Case("computes, 8 workers", Samples(800, units=30), {"num_workers": 8}),
    Case("computes, 4 workers, step too", Samples(400, units=30), {"num_workers": 4}, 0.0, 60),
    Case("mixed, 1 worker", Samples(240, 0.004, 10), {"num_workers": 1}),
    Case("mixed, 4 workers", Samples(400, 0.010, 10), {"num_workers": 4}),
    Case("every 8th slow, 2 workers", Samples(400, 0.003, slow_every=8), {"num_workers": 2}),
    Case("every 40th slow, 4 workers", Samples(800, 0.004, slow_every=40), {"num_workers": 4}),
    Case("in memory, 4 workers", Samples(4000), {"num_workers": 4}, 0.001),
    Case("in memory, 1 worker", Samples(2000), {"num_workers": 1, "pin_memory": True}),
    Case("large, 1 worker", Samples(240, 0.002, floats=1_000_000), {"num_workers": 1}),
    Case("large, 2 workers, pinned", Samples(240, 0.004, floats=1_000_000), {"num_workers": 2, "pin_memory": True}),
    Case("collate waits", Samples(320, 0.001), {"num_workers": 1, "collate_fn": waiting_collate}),
    Case("collate computes", Samples(320, 0.001), {"num_workers": 1, "collate_fn": computing_collate}),
    Case("slow start", Samples(400, 0.001), {"num_workers": 2, "worker_init_fn": start_slowly}, 0.006),
]


def follow(case: Case) -> float | None:
    """Print a row of the table; return how far the measured gain is from the promised one, or None for no promise."""
    recorded = record_dataloader(case.loader())
    for _ in range(2):
        case.epoch_s(recorded)
    advice = advise(recorded)
    settings = asdict(advice.best.settings)
    if not settings["num_workers"]:
        settings["prefetch_factor"] = None
    before, after = case.loader(), case.loader(**settings)
    for batches in (before, after):
        case.epoch_s(batches)
    rounds_s = [(case.epoch_s(before), case.epoch_s(after)) for _ in range(ROUNDS)]
    before_s, after_s = map(statistics.median, zip(*rounds_s, strict=True))
    if advice.best is advice.current:
        after_s = before_s
    promised = advice.best.speedup
    gain = before_s / after_s
    error = gain / promised - 1
    times = f"{advice.recorded_s:9.2f}{advice.reproduced_s:11.2f}{before_s:10.2f}"
    told = "      cannot tell     " if advice.doubt else f"{promised:9.2f}{gain:6.2f}{error:+7.0%}"
    print(f"{case.name:30}{times}{told}  {advice.best.settings}", flush=True)
    return None if advice.doubt else error


def main() -> None:
    warnings.filterwarnings("ignore")
    start_s = time.perf_counter()
    print(f"load average {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores")
    print(f"{'':30}{'recorded':>9}{'predicted':>11}{'measured':>10}{'promised':>9}{'gain':>6}{'error':>7}  advised")
    errors = [follow(case) for case in CASES]
    promised = np.abs([error for error in errors if error is not None])
    right = int((promised <= BAR).sum())
    print(f"of {len(promised)} promises {right} are within {BAR:.0%}; {len(errors) - len(promised)} cannot be told")
    print(f"{time.perf_counter() - start_s:.0f} s, load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
