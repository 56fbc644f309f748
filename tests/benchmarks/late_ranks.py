"""Late ranks and healthy noise in made-up jobs, as `diagnose` sees them.

    python -m tests.benchmarks.late_ranks [--seeds 200]

For each way to be late, three kinds of noise and 2, 4 and 8 ranks: how often exactly the late ranks are named with
their causes, how often nobody is, how often somebody else, and how often a job in which a rank waits for others for
more than 15 % of a step is called balanced. For each healthy noise: how often somebody is accused. The thresholds of
the rule were chosen on other draws.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rankscope.diagnose import diagnose
from tests.diagnose.late_jobs import CASES, HEALTHY, Job, late, noisy
from tests.diagnose.made_jobs import job

FIRST_SEED = 10_000
NUM_STEPS = 12
NUM_RANKS = (2, 4, 8)
NOISES = (("even", 0.05), ("lognormal", 0.1), ("pauses", 0.05))
MOST_WAITING = 0.15  # of a step, in a job that may be called balanced


class Answer(NamedTuple):
    """The ranks that were named with their causes, and whether "balanced" was said of a job in which ranks wait."""

    named: dict[int, set[str]]
    balanced_though_waiting: bool


def answer(seconds: Job) -> Answer:
    found = diagnose(job(seconds))
    named = dict[int, set[str]]()
    for culprit in found.culprits:
        named.setdefault(culprit.rank, set()).add(culprit.cause)
    own_s = found.phase_s.sum(axis=2)
    longest_wait_s = (own_s.max(axis=1, keepdims=True) - own_s).mean(axis=0).max()
    is_waiting = longest_wait_s > MOST_WAITING * found.step_s
    return Answer(named, bool(is_waiting and "balanced" in str(found)))


def cases(seeds: range) -> Iterator[str]:
    yield f"{'':28}{'noise':18}{'ranks':>6}{'right':>8}{'nobody':>8}{'others':>8}{'balanced, though waiting':>26}"
    for case in CASES:
        for noise, strength in NOISES:
            for num_ranks in NUM_RANKS:
                if num_ranks < CASES[case].least_ranks:
                    continue
                right, nobody, others, balanced = [], [], [], []
                for seed in seeds:
                    seconds, causes = late(case, noise, strength, num_ranks, NUM_STEPS, seed)
                    named, balanced_though_waiting = answer(seconds)
                    right.append(named == causes)
                    nobody.append(not named)
                    others.append(bool(named.keys() - causes.keys()))
                    balanced.append(balanced_though_waiting)
                shares = "".join(f"{np.mean(one):8.1%}" for one in (right, nobody, others))
                yield f"{case:28}{f'{noise} {strength}':18}{num_ranks:6}{shares}{np.mean(balanced):26.1%}"


def healthy(seeds: range) -> Iterator[str]:
    heads = "".join(f"{f'{num_ranks} ranks':>10}" for num_ranks in NUM_RANKS)
    yield f"healthy jobs accused{'':8}{heads}{'balanced, though waiting':>26}"
    accused_of_all = list[bool]()
    for noise, strengths in HEALTHY.items():
        for strength in strengths:
            shares = []
            balanced = list[bool]()
            for num_ranks in NUM_RANKS:
                answers = [answer(noisy(noise, strength, num_ranks, NUM_STEPS, seed)) for seed in seeds]
                accused = [bool(one.named) for one in answers]
                shares.append(f"{np.mean(accused):10.1%}")
                accused_of_all += accused
                balanced += [one.balanced_though_waiting for one in answers]
            yield f"{f'{noise} {strength}':28}{''.join(shares)}{np.mean(balanced):26.1%}"
    yield f"{'all':28}{np.mean(accused_of_all):10.1%} of {len(accused_of_all)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    arguments = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
    for lines in (cases(seeds), healthy(seeds)):
        for line in lines:
            print(line, flush=True)
        print()


if __name__ == "__main__":
    main()
