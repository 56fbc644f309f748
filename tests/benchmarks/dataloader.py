"""The simulated DataLoader against real ones: python -m tests.benchmarks.dataloader [--record]

A loader with one worker is recorded, for each spread of the read times. From that alone epochs of other settings are
predicted, which then run unrecorded, in rounds; real times are medians. With --record they are kept for notebook 02.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from rankscope.pipeline import Lognormal, record_dataloader
from rankscope.pipeline.dataloader.profile import LoaderProfile, LoaderSettings, predicted_s
from rankscope.pipeline.service import draw

from ._record import write_record

PROFILE = Path(__file__).parents[2] / "notebooks" / "profiles" / "dataloader_twin.json"
BATCHES = 100
READ_S, STEP_S = 0.012, 0.003
ROUNDS = 5
SPREADS, WINDOWS = (0.25, 0.5, 1.0), (1, 2, 4)


class Sleeping(Dataset[torch.Tensor]):
    """Reads that take times of their own, by waiting."""

    def __init__(self, cv: float) -> None:
        self.times_s = draw("read", Lognormal(READ_S, cv), BATCHES, 7).tolist()

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.times_s[index])
        return torch.full((64, 64), float(index))


def loader(cv: float, settings: LoaderSettings) -> DataLoader[torch.Tensor]:
    options = {"num_workers": settings.num_workers, "in_order": settings.in_order}
    return DataLoader(Sleeping(cv), batch_size=1, prefetch_factor=settings.prefetch_factor, **options)


def epoch_s(batches: DataLoader[torch.Tensor]) -> float:
    """Seconds from the making of the iterator to the end of the last step."""
    start_s = stop_s = time.perf_counter()
    for _ in batches:
        time.sleep(STEP_S)
        stop_s = time.perf_counter()
    return stop_s - start_s


def profile(cv: float) -> LoaderProfile:
    recorded = record_dataloader(loader(cv, LoaderSettings(1)))
    for _ in range(2):
        epoch_s(recorded)
    return recorded.profile()


def main() -> None:
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    cases = [
        (SPREADS[(number + turn) % 3], LoaderSettings(workers, WINDOWS[(number + turn // 2) % 3], in_order))
        for number, workers in enumerate((1, 2, 4, 8))
        for turn, in_order in enumerate((True, False, True, False))
    ]
    profiles = {cv: profile(cv) for cv in SPREADS}
    rounds = [[epoch_s(loader(cv, settings)) for cv, settings in cases] for _ in range(ROUNDS)]
    rows = []
    errors = []
    print(f"{'':52}{'cv':>5}{'real ms':>10}{'predicted':>10}{'error':>9}")
    for (cv, settings), times_s in zip(cases, zip(*rounds, strict=True), strict=True):
        times = {"measured_s": statistics.median(times_s), "predicted_s": predicted_s(profiles[cv], settings)}
        errors.append(times["predicted_s"] / times["measured_s"] - 1)
        real_ms, predicted_ms = (seconds * 1e3 for seconds in times.values())
        print(f"{settings!s:52}{cv:>5}{real_ms:>10.1f}{predicted_ms:>10.1f}{errors[-1]:>+9.1%}")
        chosen = {name: getattr(settings, name) for name in ("num_workers", "prefetch_factor", "in_order")}
        rows.append({"cv": cv, **chosen, **{name: round(seconds, 4) for name, seconds in times.items()}})
    sizes = [abs(error) for error in errors]
    print(f"off by {statistics.median(sizes):.1%} (median, bar: 6 %), {max(sizes):.1%} (worst)")
    if "--record" in sys.argv[1:]:
        what = (
            f"An epoch has {BATCHES} batches of one sample. A read takes {READ_S * 1e3:g} ms on average "
            f"(lognormal) and only sleeps; a step takes {STEP_S * 1e3:g} ms. Each epoch is predicted from a recording "
            f"with one worker, and its measured time is the median of {ROUNDS} runs."
        )
        write_record(PROFILE, "dataloader", what, epochs=rows)


if __name__ == "__main__":
    main()
