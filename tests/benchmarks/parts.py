"""Part files loaded by trainers in lock-step or ahead of them, measured and simulated: python -m tests.benchmarks.parts

Four trainers, a thread each with a real Gloo group; loads and steps sleep. The simulation is blind: it knows the times
that loads and steps are to take, and nothing of the run. With --record the figures are kept for notebook 02.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.pipeline import (
    AsyncPartDataset,
    Lognormal,
    SyncPartDataset,
    idle_share,
    in_step,
    simulate_parts,
)
from rankscope.ranks import in_threads
from rankscope.timeline import Recorder, Timeline

from ._record import write_record

TRAINERS = 4
PARTS = 10  # of each trainer
STEPS = 4  # a part
STEP_S = 0.060
LOAD_S = 0.192  # the mean: 80 % of a part's steps
QUEUES = (None, 1, 2, 4)
PROFILE = Path(__file__).parents[2] / "notebooks" / "profiles" / "part_files.json"


def train(files: list[Path], load: Callable[[str], Any], queue_size: int | None) -> Timeline:
    recorder = Recorder()

    def run(rank: int, group: Any) -> None:
        record = recorder.for_rank(rank)
        setting: dict[str, Any] = {"load": load, "recorder": recorder}
        dataset = SyncPartDataset(files, 1, TRAINERS, rank, **setting)
        if queue_size is not None:
            dataset = AsyncPartDataset(files, 1, TRAINERS, rank, queue_size=queue_size, **setting)
        for step, batch in enumerate(in_step(dataset, group, record)):
            if batch is not None:
                with record.span("trainer", "step", step):
                    time.sleep(STEP_S)

    in_threads(TRAINERS, run)
    timeline = recorder.timeline()
    timeline.check()
    return timeline


def delayed(load_s: dict[str, float], file: str) -> Any:
    """Load a part after its time."""
    time.sleep(load_s[file])
    return dict(np.load(file))


def sizes(aligned: bool) -> dict[int, int]:
    """Rows of each part, by its number: the same for all, or so that the parts of no two trainers end together."""
    names = [f"part-{number:05d}.npz" for number in range(TRAINERS * PARTS)]
    rows = {}
    for rank in range(TRAINERS):
        for place, name in enumerate(SyncPartDataset(names, 1, TRAINERS, rank).shard):
            rows[int(name[5:10])] = STEPS - rank if place == 0 and not aligned else STEPS
    return rows


def main() -> None:
    """Print a row a setting."""
    print(f"{TRAINERS} trainers in lock-step, {PARTS} parts each of {STEPS} steps of {STEP_S * 1e3:.0f} ms")
    print(f"{'loads, parts, queue':26}{'idle, measured':>16}{'simulated':>11}{'makespan s':>12}{'error':>8}")
    runs = []
    errors = []
    for cv in (0.5, 1.0):
        for aligned in (True, False):
            rows = sizes(aligned)
            counts = [rows[number] for number in sorted(rows)]
            with tempfile.TemporaryDirectory() as folder:
                files = [Path(folder) / f"part-{number:05d}.npz" for number in range(len(counts))]
                for file, count in zip(files, counts, strict=True):
                    np.savez(file, x=np.arange(count))
                times_s = Lognormal(LOAD_S, cv).draw(np.random.default_rng(1), len(files)).tolist()
                load_s = dict(zip(map(str, files), times_s, strict=True))
                shards = [SyncPartDataset(files, 1, TRAINERS, rank).shard for rank in range(TRAINERS)]
                loads = [[load_s[file] for file in shard] for shard in shards]
                steps = [[rows[int(Path(file).stem[5:])] for file in shard] for shard in shards]
                for queue_size in QUEUES:
                    measured = train(files, partial(delayed, load_s), queue_size)
                    blind = simulate_parts(loads, steps, STEP_S, queue_size=queue_size)
                    errors.append(blind.makespan_s / measured.makespan_s - 1)
                    name = f"cv {cv}, {'aligned' if aligned else 'apart'}, {queue_size or 'none'}"
                    shares = f"{idle_share(measured):16.1%}{idle_share(blind):11.1%}"
                    print(f"{name:26}{shares}{measured.makespan_s:12.3f}{errors[-1]:+8.1%}", flush=True)
                    idle = {"measured_idle": idle_share(measured), "simulated_idle": idle_share(blind)}
                    rounded = {key: round(share, 4) for key, share in idle.items()}
                    runs.append({"cv": cv, "aligned": aligned, "queue_size": queue_size, **rounded})
    print(f"largest error of a makespan: {max(map(abs, errors)):.1%} (bar: 10 %)")
    if "--record" in sys.argv[1:]:
        record(runs)


def record(runs: list[dict[str, Any]]) -> None:
    what = (
        f"{TRAINERS} trainers in lock-step. Each reads {PARTS} parts; a part takes {LOAD_S * 1e3:.0f} ms on "
        f"average to load (lognormal) and lasts {STEPS} steps of {STEP_S * 1e3:.0f} ms. Loads and steps only sleep."
    )
    write_record(PROFILE, "parts", what, runs=runs)


if __name__ == "__main__":
    main()
