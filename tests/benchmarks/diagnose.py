"""Late ranks in real Gloo jobs, named by `diagnose`: python -m tests.benchmarks.diagnose [--seeds 10] [--sharded].

Each cause by 20 and 60 ms in steps of 40 ms, next to the same job without the cause; with buffers that are broadcast in
forward, with a metric that is reduced after each step, with a delay in every fourth step, and on two ranks. With
--sharded the jobs are FSDP's (`fully_shard`, each layer for itself), with and without the cause. The thresholds of the
rule were chosen on seeds below 300.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rankscope.diagnose import diagnose, read_traces
from tests.diagnose.traces.jobs import CAUSES, Job, run_jobs

FIRST_SEED = 300
RIGHT_BAR, SHARDED_RIGHT_BAR, FALSE_BAR = 0.95, 0.9, 0.02
BALANCED = "balanced"
Named = list[tuple[str, Job]]  # each with the line of the table that it belongs to


class Judged(NamedTuple):
    """Whether the right rank was named, with its cause, and whether one was that nothing is wrong with."""

    rank: bool
    cause: bool
    others: bool


def with_twins(seed: int, is_sharded: bool) -> Named:
    """Return jobs of four ranks, each followed by the same without its cause."""
    jobs = []
    for place, cause in enumerate(CAUSES):
        for delay_s in (0.02, 0.06):
            job = Job(cause, (seed + place) % 4, delay_s, seed=seed, num_steps=10, is_sharded=is_sharded)
            jobs += [(f"{delay_s * 1e3:.0f} ms", job), (BALANCED, job._replace(cause=""))]
    return jobs


def variants(seed: int) -> Named:
    jobs = []
    for place, cause in enumerate(CAUSES):
        job = Job(cause, (seed + place) % 4, seed=seed, num_steps=10)
        jobs.append(("with buffers", job._replace(batch_norm=True)))
        jobs.append(("with a metric", job._replace(metric=True)))
        jobs.append(("every fourth step", job._replace(every=4)))
    return jobs


def on_two_ranks(seed: int) -> Named:
    return [("two ranks", Job(cause, place % 2, seed=seed, num_steps=10)) for place, cause in enumerate(CAUSES)]


def judge(job: Job, folder: Path) -> Judged:
    culprits = diagnose(read_traces(folder)).culprits
    others = any(not job.cause or culprit.rank != job.rank for culprit in culprits)
    if not job.cause or not culprits or culprits[0].rank != job.rank:
        return Judged(False, False, others)
    return Judged(True, culprits[0].cause == job.cause, others)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--sharded", action="store_true", help="jobs of FSDP in place of DDP's")
    arguments = parser.parse_args()
    groups = defaultdict[str, list[Judged]](list)
    for seed in range(FIRST_SEED, FIRST_SEED + arguments.seeds):
        begin_s = time.monotonic()
        launches = [(4, with_twins(seed, arguments.sharded))]
        if not arguments.sharded:
            launches += [(4, variants(seed)), (2, on_two_ranks(seed))]
        for num_ranks, jobs in launches:
            with tempfile.TemporaryDirectory() as folder:
                ran = run_jobs(Path(folder), [job for _, job in jobs], num_ranks)
                for (group, job), ran_job in zip(jobs, ran, strict=True):
                    groups[group].append(judge(job, ran_job.folder))
        print(f"seed {seed}: {time.monotonic() - begin_s:.0f} s", flush=True)
    print(f"{'':20}{'runs':>6}{'right rank':>12}{'and cause':>12}{'others named':>14}")
    for name, judged in groups.items():
        shares = "".join(f"{share:12.1%}" for share in np.mean(judged, axis=0))
        print(f"{name:20}{len(judged):6}{shares}")
    sick = [judged for name, group in groups.items() if name != BALANCED for judged in group]
    bar = SHARDED_RIGHT_BAR if arguments.sharded else RIGHT_BAR
    print(f"right rank and cause in {np.mean([judged.cause for judged in sick]):.1%} of {len(sick)}, bar {bar:.0%}")
    false_alarms = np.mean([judged.others for judged in groups[BALANCED]])
    print(f"false alarms in {false_alarms:.1%} of {len(groups[BALANCED])}, bar {FALSE_BAR:.0%}")


if __name__ == "__main__":
    main()
