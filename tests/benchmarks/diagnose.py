"""Late ranks in real Gloo jobs, named by `diagnose`: python -m tests.benchmarks.diagnose [--seeds 10] [--short].

With --sharded the jobs are FSDP's (`fully_shard`, each layer for itself) on four ranks: each cause by 20 and 60 ms, and
its twin without the cause, so that six seeds are 60 late ranks and 60 balanced jobs.

Each cause on each of four ranks, by 20 and 60 ms in steps of 40 ms; with buffers that are broadcast in forward, with a
metric that is reduced after each step, with a delay in every fourth step, on two ranks. Next to a sick job runs its
twin without the cause: what the steps are shorter there is what the cause costs. The thresholds of the rule were chosen
on seeds below 300.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rankscope.diagnose import diagnose, read_traces
from tests.diagnose.jobs import CAUSES, Job, run_jobs

FIRST_SEED = 300
RIGHT_BAR, FALSE_BAR, COST_BAR = 0.95, 0.02, 0.1
SHARDED_RIGHT_BAR = 0.9
_STEPS = 10
_DELAYS_S = (0.02, 0.06)


class Judged(NamedTuple):
    """A job, what was said of it, and the mean seconds of its steps; `group` is the line of the table."""

    group: str
    job: Job
    rank: bool
    cause: bool
    others: bool  # whether a rank was named that nothing is wrong with
    said: str
    cost_s: float
    step_s: float


def settings(seed: int, short: bool) -> Iterator[tuple[int, list[tuple[str, Job]]]]:
    """For a number of ranks the jobs of a seed, each with the line of the table that it belongs to."""
    jobs = []
    for place, cause in enumerate(CAUSES):
        rank = (seed + place) % 4
        for delay_s in _DELAYS_S:
            name, own = f"{delay_s * 1e3:.0f} ms", Job(cause, rank, delay_s, seed=seed)
            jobs += [(name, own), ("balanced", own._replace(cause=""))]
            others = () if short else (other for other in range(4) if other != rank)
            jobs += [(name, own._replace(rank=other)) for other in others]
        jobs.append(("with buffers", Job(cause, rank, seed=seed, batch_norm=True)))
        jobs.append(("with a metric", Job(cause, rank, seed=seed, metric=True)))
        jobs.append(("every fourth step", Job(cause, rank, every=4, seed=seed)))
    jobs.append(("balanced", Job(seed=seed, batch_norm=True, metric=True)))
    yield 4, [(name, job._replace(num_steps=_STEPS)) for name, job in jobs]
    two = [("two ranks", Job(cause, place % 2, seed=seed)) for place, cause in enumerate(CAUSES)]
    two.append(("balanced", Job(seed=seed)))
    yield 2, [(name, job._replace(num_steps=_STEPS)) for name, job in two]


def sharded_settings(seed: int) -> Iterator[tuple[int, list[tuple[str, Job]]]]:
    """FSDP's jobs of a seed, each sick one followed by its twin."""
    jobs = []
    for place, cause in enumerate(CAUSES):
        for delay_s in _DELAYS_S:
            job = Job(cause, (seed + place) % 4, delay_s, seed=seed, num_steps=_STEPS, is_sharded=True)
            jobs += [(f"{delay_s * 1e3:.0f} ms", job), ("balanced", job._replace(cause=""))]
    yield 4, jobs


def run(seed: int, short: bool, is_sharded: bool = False) -> Iterator[Judged]:
    for num_ranks, jobs in sharded_settings(seed) if is_sharded else settings(seed, short):
        with tempfile.TemporaryDirectory() as folder:
            ran = run_jobs(Path(folder), [job for _, job in jobs], num_ranks)
            for (group, job), ran_job in zip(jobs, ran, strict=True):
                said = diagnose(read_traces(ran_job.folder))
                first = said.culprits[0] if said.culprits else None
                rank = first is not None and bool(job.cause) and first.rank == job.rank
                cause = rank and first is not None and first.cause == job.cause
                others = any(not job.cause or culprit.rank != job.rank for culprit in said.culprits)
                words = ", ".join(
                    f"{culprit.rank} {culprit.cause} {culprit.cost_s * 1e3:.1f} ms" for culprit in said.culprits
                )
                cost_s = sum(culprit.cost_s for culprit in said.culprits if culprit.rank == job.rank)
                yield Judged(group, job, rank, cause, others, words or "nobody", cost_s, said.step_s)


def report(runs: list[Judged], right_bar: float = RIGHT_BAR) -> list[str]:
    groups = defaultdict[str, list[Judged]](list)
    for run in runs:
        groups[run.group].append(run)
    lines = [f"{'':20}{'runs':>6}{'right rank':>12}{'and cause':>12}{'others named':>14}"]
    for name, runs_of_group in groups.items():
        right = (
            f"{np.mean([run.rank for run in runs_of_group]):.1%}",
            f"{np.mean([run.cause for run in runs_of_group]):.1%}",
        )
        rank, cause = ("", "") if name == "balanced" else right
        others = np.mean([run.others for run in runs_of_group])
        lines.append(f"{name:20}{len(runs_of_group):6}{rank:>12}{cause:>12}{others:14.1%}")
    sick = [run for run in runs if run.job.cause]
    lines.append(
        f"right rank and cause in {np.mean([run.cause for run in sick]):.1%} of {len(sick)}, bar {right_bar:.0%}"
    )
    healthy = [run for run in runs if not run.job.cause]
    lines.append(
        f"false alarms in {np.mean([run.others for run in healthy]):.1%} of {len(healthy)}, bar {FALSE_BAR:.0%}"
    )
    lines += ["", "cost stated / what the twin without the cause is faster by, in ms per step: medians over seeds"]
    pairs = defaultdict[tuple[str, str], list[tuple[float, float]]](list)
    for run, twin in pairwise(runs):
        if run.group in ("20 ms", "60 ms") and twin.group == "balanced":
            pairs[run.group, run.job.cause].append((run.cost_s * 1e3, (run.step_s - twin.step_s) * 1e3))
    for (name, cause), costs in pairs.items():
        stated, saved = np.median(costs, axis=0)
        held = "" if abs(stated / saved - 1) <= COST_BAR else f"  outside of {COST_BAR:.0%}"
        lines.append(f"{name:>8} {cause:10}{stated:7.1f} / {saved:5.1f} = {stated / saved:.2f}{held}")
    lines += ["", "not right:"]
    for run in runs:
        if run.others or (run.job.cause and not run.cause):
            place = f"{run.job.cause or 'nothing'} on rank {run.job.rank}" if run.job.cause else "nothing"
            lines.append(
                f"  seed {run.job.seed}, {run.group}: {place}; named: {run.said}; step {run.step_s * 1e3:.0f} ms"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--short", action="store_true", help="one rank for each cause and delay, not all four")
    parser.add_argument("--sharded", action="store_true", help="jobs of FSDP in place of DDP's")
    arguments = parser.parse_args()
    judged: list[Judged] = []
    for seed in range(FIRST_SEED, FIRST_SEED + arguments.seeds):
        begin_s = time.monotonic()
        judged += run(seed, arguments.short, arguments.sharded)
        print(f"seed {seed}: {len(judged)} runs, {time.monotonic() - begin_s:.0f} s", flush=True)
    print("\n".join(report(judged, SHARDED_RIGHT_BAR if arguments.sharded else RIGHT_BAR)))


if __name__ == "__main__":
    main()
