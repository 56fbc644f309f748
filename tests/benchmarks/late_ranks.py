"""Healthy jobs accused, and late ranks named, by the rule of `diagnose`: python -m tests.benchmarks.late_ranks

Options: [--jobs 200] a cell, half as many with 32 ranks. Own times are made up, see `tests.diagnose.traces.late_jobs`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.diagnose.traces.late_jobs import CASES, NOISES, WANDERING, healthy, named

NUM_RANKS = (2, 4, 8, 16, 32)
NUM_STEPS = (11, 20, 50)


def share(judge: Callable[[Any], bool], noise: str, num_ranks: int, num_steps: int, num_jobs: int) -> str:
    if num_ranks >= 32:
        num_jobs //= 2
    first_seed = 10_000
    judged = [judge(healthy(noise, num_ranks, num_steps, first_seed + seed)) for seed in range(num_jobs)]
    return f"{np.mean(judged):8.1%}"


def is_right(phase_s: Any) -> bool:
    CASES["one rank"].spoil(phase_s)
    return named(phase_s) == CASES["one rank"].causes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    num_jobs = parser.parse_args().jobs
    for title, judge in (
        ("healthy jobs accused", lambda phase_s: bool(named(phase_s))),
        ("one rank 40 ms late in each step: it alone is named, with its phase", is_right),
    ):
        print(f"{title}\n{'':24}steps" + "".join(f"{num_ranks:>2} ranks" for num_ranks in NUM_RANKS), flush=True)
        for noise in ("", *NOISES, *WANDERING):
            for num_steps in NUM_STEPS:
                cells = [share(judge, noise, num_ranks, num_steps, num_jobs) for num_ranks in NUM_RANKS]
                print(f"{noise or 'quiet':24}{num_steps:5}{''.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
