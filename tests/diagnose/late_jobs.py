"""Jobs with noise and with ranks that are late on purpose: seconds by step and rank of each phase, as `job` takes them.

A draw is known by its seed. `HEALTHY` are kinds of noise and their strengths, `CASES` ways to be late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]
Job = dict[str, Seconds]

USUAL_S = {"loader": 0.004, "host": 0.002, "forward": 0.030, "backward": 0.045, "optimizer": 0.004}
_SHARES = np.array([*USUAL_S.values()]) / sum(USUAL_S.values())
_PAUSE_S = 0.06  # the mean of pauses
_DELAY_S = 0.06
_ONE_PAUSE_S = 2.0

HEALTHY = {
    "even": (0.05, 0.2, 0.5),
    "lognormal": (0.1, 0.3, 0.6),
    "whole steps": (0.05, 0.15, 0.3),
    "same batch": (0.3,),
    "pauses": (0.02, 0.05, 0.1, 0.2),
    "heavy tail": (0.05, 0.2),
    "shared cores": (0.3, 1.0),
    "slow spells": (0.05, 0.15),
}


def noisy(noise: str, strength: float, num_ranks: int, num_steps: int, seed: int) -> Job:
    """Return a healthy job: all ranks draw from the same distribution.

    "even" and "lognormal": each phase for itself. "whole steps": all phases of a step and rank by one factor. "same
    batch": all ranks by one factor per step. "pauses": a phase pauses for 60 ms in the mean, with this probability per
    step and rank. "heavy tail": each phase by a Pareto variable without a variance. "shared cores": three phases in ten
    are stretched by an exponential variable. "slow spells": as "whole steps", with 0.8 of the factor from the step
    before, so that a rank is slow for several steps.
    """
    random = np.random.default_rng((seed, num_ranks, num_steps))
    shape = (num_steps, num_ranks, len(USUAL_S))
    factor = random.uniform(0.95, 1.05, shape)
    extra_s = np.zeros(shape)
    if noise == "even":
        factor = random.uniform(1 - strength, 1 + strength, shape)
    elif noise == "lognormal":
        factor = np.exp(strength * random.standard_normal(shape))
    elif noise == "whole steps":
        factor = factor * np.exp(strength * random.standard_normal((num_steps, num_ranks, 1)))
    elif noise == "same batch":
        factor = factor * np.exp(strength * random.standard_normal((num_steps, 1, 1)))
    elif noise == "pauses":
        steps, ranks = np.nonzero(random.random((num_steps, num_ranks)) < strength)
        places = random.choice(len(USUAL_S), size=len(steps), p=_SHARES)
        extra_s[steps, ranks, places] = random.exponential(_PAUSE_S, len(steps))
    elif noise == "heavy tail":
        factor = factor + strength * random.pareto(1.5, shape)
    elif noise == "shared cores":
        factor = factor * (1 + strength * random.exponential(1.0, shape) * (random.random(shape) < 0.3))
    elif noise == "slow spells":
        spell = random.standard_normal((num_steps, num_ranks))
        for step in range(1, num_steps):
            spell[step] = 0.8 * spell[step - 1] + 0.6 * spell[step]
        factor = factor * np.exp(strength * spell)[:, :, None]
    seconds = np.array([*USUAL_S.values()]) * factor + extra_s
    return dict(zip(USUAL_S, np.moveaxis(seconds, 2, 0), strict=True))


class Case(NamedTuple):
    """How ranks are late: `spoil` changes a job by a random generator, and returns the causes of each late rank."""

    spoil: Callable[[Job, np.random.Generator], dict[int, set[str]]]
    least_ranks: int = 3


def _delay_s(random: np.random.Generator, size: int) -> Seconds:
    """60 ms, within 2 %."""
    return random.uniform(0.98 * _DELAY_S, 1.02 * _DELAY_S, size)


def _one(job: Job, random: np.random.Generator) -> dict[int, set[str]]:
    job["loader"][:, 1] += _delay_s(random, len(job["loader"]))
    return {1: {"loader"}}


def _every_fourth(job: Job, random: np.random.Generator) -> dict[int, set[str]]:
    job["loader"][::4, 1] += 2 * _delay_s(random, len(job["loader"][::4]))
    return {1: {"loader"}}


def _in_turn(job: Job, random: np.random.Generator) -> dict[int, set[str]]:
    job["loader"][::2, 0] += _delay_s(random, len(job["loader"][::2]))
    job["loader"][1::2, 1] += _delay_s(random, len(job["loader"][1::2]))
    return {0: {"loader"}, 1: {"loader"}}


def _in_turn_for_two_reasons(job: Job, random: np.random.Generator) -> dict[int, set[str]]:
    job["loader"][::2, 0] += _delay_s(random, len(job["loader"][::2]))
    job["backward"][1::2, 1] += _delay_s(random, len(job["backward"][1::2]))
    return {0: {"loader"}, 1: {"backward"}}


def _for_the_same_reason(job: Job, random: np.random.Generator) -> dict[int, set[str]]:
    return _first_ranks(job, random, 2)


def _for_two_reasons(job: Job, random: np.random.Generator) -> dict[int, set[str]]:
    job["loader"][:, 0] += _delay_s(random, len(job["loader"]))
    job["backward"][:, 1] += _delay_s(random, len(job["backward"]))
    return {0: {"loader"}, 1: {"backward"}}


def _half(job: Job, random: np.random.Generator) -> dict[int, set[str]]:
    return _first_ranks(job, random, job["loader"].shape[1] // 2)


def _all_but_one(job: Job, random: np.random.Generator) -> dict[int, set[str]]:
    return _first_ranks(job, random, job["loader"].shape[1] - 1)


def _first_ranks(job: Job, random: np.random.Generator, num_late: int) -> dict[int, set[str]]:
    for rank in range(num_late):
        job["loader"][:, rank] += _delay_s(random, len(job["loader"]))
    return {rank: {"loader"} for rank in range(num_late)}


def _one_pause(job: Job, random: np.random.Generator) -> dict[int, set[str]]:
    job["host"][int(random.integers(2, len(job["host"]))), 1] += _ONE_PAUSE_S
    return {}


CASES = {
    "one rank": Case(_one, 2),
    "one rank, every fourth step": Case(_every_fourth, 2),
    "two in turn": Case(_in_turn),
    "two in turn, two reasons": Case(_in_turn_for_two_reasons),
    "two, same reason": Case(_for_the_same_reason),
    "two, two reasons": Case(_for_two_reasons),
    "half": Case(_half),
    "all but one": Case(_all_but_one),
    "one pause of 2 s": Case(_one_pause, 2),
}


def late(
    case: str, noise: str, strength: float, num_ranks: int, num_steps: int, seed: int
) -> tuple[Job, dict[int, set[str]]]:
    """Return a job with late ranks, and their causes."""
    job = noisy(noise, strength, num_ranks, num_steps, seed)
    return job, CASES[case].spoil(job, np.random.default_rng((seed, num_ranks, num_steps, 1)))
