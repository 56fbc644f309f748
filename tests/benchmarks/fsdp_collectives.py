"""FSDP's predicted collectives and peaks of memory against real ranks, over random modules and settings.

    python -m tests.benchmarks.fsdp_collectives               # 30 modules on each of 2, 3 and 4 ranks
    python -m tests.benchmarks.fsdp_collectives --models 100 --seed 5

Each module has random nesting, wrapping, resharding, prefetching, frozen parameters, mixed precision and HSDP
(tests/train/fsdp/models.py). The prediction comes from a run in
one process. A row counts in how many cases order, kinds and bytes of all collectives equal the recorded ones.
"""

from __future__ import annotations

import argparse
from statistics import median

import torch

from rankscope.train import fsdp
from rankscope.train.fsdp.running import run_jobs
from rankscope.train.fsdp.where import Where
from tests.train.fsdp.models import DrawnCase, drawn_case, job_of

NO_COST = fsdp.FSDPCosts(*[lambda num_bytes: 0.0] * 3)


def peak_error(case: DrawnCase, observed: fsdp.FSDPRun) -> float:
    """Return by what share the predicted peak differs from that of live tensors."""
    step = fsdp.observed_step(case.module, case.loss, case.wrap, param_dtype=case.settings.get("param_dtype"))
    predicted = fsdp.predict(step, NO_COST, wrap=case.wrap, overlap=False, **case.settings)
    return predicted.memory.peak_bytes / observed.peak_bytes - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=30, help="modules for each number of ranks")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(f"{'ranks':>5} {'modules':>8} {'collectives':>12} {'equal':>8} {'peak, median':>13} {'worst':>8}")
    for num_ranks in (2, 3, 4):
        cases = [
            drawn_case(arguments.seed + 1000 * num_ranks + number, num_ranks) for number in range(arguments.models)
        ]
        runs = run_jobs([job_of(case, torch.optim.Adam) for case in cases], Where(timeout_s=600.0))
        num_equal = 0
        num_collectives = 0
        errors = []
        for case, observed in zip(cases, runs, strict=True):
            num_collectives += len(observed.collectives)
            predicted = fsdp.collectives(case.module, case.loss, wrap=case.wrap, **case.settings)
            num_equal += predicted == observed.collectives
            errors.append(abs(peak_error(case, observed)))
        print(
            f"{num_ranks:>5} {len(cases):>8} {num_collectives:>12} {num_equal:>8} "
            f"{median(errors):>13.2%} {max(errors):>8.2%}"
        )


if __name__ == "__main__":
    main()
