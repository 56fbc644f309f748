"""The DataLoader's twin against real ones, and advice checked by following it: python -m tests.benchmarks.dataloader

A loader with one worker is recorded, for each spread of the read times; from that alone the twin predicts epochs of
other settings, which then run, plain and unrecorded, one after the other in rounds. Real times are medians.
With --record the comparison of the settings is kept for notebook 02.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from rankscope.pipeline import Lognormal, advise, record_dataloader, simulate_dataloader
from rankscope.pipeline.profile import LoaderProfile, LoaderSettings
from rankscope.pipeline.profile import predicted_s as predicted
from rankscope.pipeline.service import draw

from ._record import write_record

PROFILE = Path(__file__).parents[2] / "notebooks" / "profiles" / "dataloader_twin.json"
BATCHES = 100
READ_S, STEP_S = 0.012, 0.003
ROUNDS = 5


class Sleeping(Dataset[torch.Tensor]):
    """Reads that take times of their own, by waiting, and the step that they are for."""

    read_s, step_s = READ_S, STEP_S

    def __init__(self, cv: float) -> None:
        self.times_s = draw("read", Lognormal(self.read_s, cv), BATCHES, 7).tolist()

    def __len__(self) -> int:
        return len(self.times_s)

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.times_s[index])
        return torch.full((64, 64), float(index))


class Quick(Sleeping):
    """With 1, 2 and 4 workers a batch every 4, 2 and 1 ms: hand-over and late sleeps weigh."""

    read_s, step_s = 0.004, 0.001


class Computing(Sleeping):
    """The same times, spent computing."""

    def __getitem__(self, index: int) -> torch.Tensor:
        stop = time.thread_time() + self.times_s[index]
        while time.thread_time() < stop:
            pass
        return torch.full((64, 64), float(index))


def loader(dataset: Dataset[torch.Tensor], settings: LoaderSettings) -> DataLoader[torch.Tensor]:
    window = settings.prefetch_factor if settings.num_workers else None
    workers, in_order = settings.num_workers, settings.in_order
    return DataLoader(dataset, batch_size=1, num_workers=workers, prefetch_factor=window, in_order=in_order)


def epoch_s(batches: Iterable[torch.Tensor], step_s: float = STEP_S) -> float:
    """Seconds from the making of the iterator to the end of the last step."""
    start = stop = time.perf_counter()
    for _ in batches:
        time.sleep(step_s)
        stop = time.perf_counter()
    return stop - start


def profile(dataset: Sleeping, num_workers: int = 1) -> LoaderProfile:
    recorded = record_dataloader(loader(dataset, LoaderSettings(num_workers)))
    for _ in range(2):
        epoch_s(recorded, dataset.step_s)
    return recorded.profile()


def medians(runs: dict[str, Callable[[], float]]) -> dict[str, float]:
    """The median of each, measured in rounds."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            taken[name].append(run())
    return {name: statistics.median(times) for name, times in taken.items()}


def compare(
    title: str, cases: list[tuple[float, LoaderSettings]], kind: type[Sleeping], num_workers: int = 1
) -> list[dict[str, Any]]:
    """Print predictions beside measurements, and return a row for each."""
    datasets = {cv: kind(cv) for cv, _ in cases}
    profiles = {cv: profile(dataset, num_workers) for cv, dataset in datasets.items()}
    runs = {
        f"{cv}{settings}": lambda c=cv, s=settings: epoch_s(loader(datasets[c], s), kind.step_s)
        for cv, settings in cases
    }
    real_s = medians(runs)
    print(f"\n{title:<52}{'cv':>5}{'real ms':>10}{'predicted':>10}{'error %':>9}{'nominal, error %':>18}")
    errors, blind, rows = [], [], []
    for cv, settings in cases:
        measured_s = real_s[f"{cv}{settings}"]
        predicted_s = predicted(profiles[cv], settings)
        nominal_s = simulate_dataloader(
            datasets[cv].times_s,
            kind.step_s,
            BATCHES,
            num_workers=settings.num_workers,
            prefetch_factor=settings.prefetch_factor,
            in_order=settings.in_order,
        ).makespan_s
        errors.append(100 * (predicted_s / measured_s - 1))
        blind.append(100 * (nominal_s / measured_s - 1))
        print(
            f"  {settings!s:<50}{cv:>5}{measured_s * 1e3:>10.1f}{predicted_s * 1e3:>10.1f}{errors[-1]:>9.1f}"
            f"{blind[-1]:>18.1f}"
        )
        chosen = {name: getattr(settings, name) for name in ("num_workers", "prefetch_factor", "in_order")}
        rows.append({"cv": cv, **chosen, "measured_s": round(measured_s, 4), "predicted_s": round(predicted_s, 4)})
    off = np.abs([errors, blind])
    print(
        f"  {'median (bar: 6) and worst |error| %':<50}{'':>25}{np.median(off[0]):>5.1f}{off[0].max():>5.1f}"
        f"{np.median(off[1]):>12.1f}{off[1].max():>5.1f}"
    )
    return rows


def record(rows: list[dict[str, Any]]) -> None:
    what = (
        f"An epoch has {BATCHES} batches of one sample. A read takes {READ_S * 1e3:g} ms on average "
        f"(lognormal) and only sleeps; a step takes {STEP_S * 1e3:g} ms. Each epoch is predicted from a recording with "
        f"one worker, and its measured time is the median of {ROUNDS} runs."
    )
    write_record(PROFILE, "dataloader", what, epochs=rows)


def follow(title: str, dataset: Sleeping) -> None:
    """Record with one worker, take the advice, run it."""
    measured = profile(dataset)
    advice = advise(measured, num_batches=BATCHES)
    real_s = medians(
        {
            "before": lambda: epoch_s(loader(dataset, measured.settings)),
            "after": lambda: epoch_s(loader(dataset, advice.best.settings)),
        }
    )
    gained = real_s["before"] / real_s["after"]
    print(f"\n{title}\n{advice}\n  so it was: {real_s['after']:.3g} s, {gained:.2f} times as fast")


def overhead() -> None:
    """What recording costs, for batches that cost nothing."""
    dataset = torch.utils.data.TensorDataset(torch.zeros(2000, 64))
    ways = {}
    for workers in (0, 2):
        plain = DataLoader(dataset, batch_size=4, num_workers=workers)
        recorded = record_dataloader(DataLoader(dataset, batch_size=4, num_workers=workers))
        for name, batches in (("plain", plain), ("recorded", recorded)):
            ways[f"{workers} workers, {name}"] = lambda b=batches: seconds_a_batch(b)
    print(f"\n{'a batch of nothing, median':<52}{'µs':>15}")
    for name, taken_s in medians(ways).items():
        print(f"  {name:<50}{taken_s * 1e6:>15.0f}")


def seconds_a_batch(batches: Iterable[object]) -> float:
    start = time.perf_counter()
    count = sum(1 for _ in batches)
    return (time.perf_counter() - start) / count


def main() -> None:
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    spreads, windows = (0.25, 0.5, 1.0), (1, 2, 4)
    cases = [
        (spreads[(number + turn) % 3], LoaderSettings(workers, windows[(number + turn // 2) % 3], in_order))
        for number, workers in enumerate((1, 2, 4, 8))
        for turn, in_order in enumerate((True, False, True, False))
    ]
    rows = compare("reads that wait", cases, Sleeping)
    if "--record" in sys.argv[1:]:
        record(rows)
    compare("quick reads, 1 to 4 ms a batch", cases[:12], Quick)
    cores = [(0.5, LoaderSettings(workers)) for workers in (0, 1, 2, 4)]
    compare("reads that compute, recorded with 1 worker", cores, Computing)
    compare("reads that compute, recorded with 4 workers", cores, Computing, num_workers=4)
    follow("advice for reads that wait:", Sleeping(0.5))
    follow("advice for reads that compute:", Computing(0.5))
    overhead()


if __name__ == "__main__":
    main()
