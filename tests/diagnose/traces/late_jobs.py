"""Own times of jobs with noise and with ranks that are late on purpose, steps by ranks by `PHASES`; known by a seed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from rankscope.diagnose.traces.late_ranks import Lateness, lateness
from rankscope.diagnose.traces.trace import PHASES

USUAL_S = np.array([0.002, 0.001, 0.0005, 0.020, 0.040, 0.006, 0.002])  # by phase
_STEP_S = float(USUAL_S.sum())
_FORWARD, _LOADER, _BACKWARD, _HOST = (PHASES.index(phase) for phase in ("forward", "loader", "backward", "host"))
_DELAY_S = 0.04


def _spells(random: np.random.Generator, shape: tuple[int, int], num_steps: int) -> Any:
    """Return slow spells of so many steps, in which a rank is in a tenth of the time."""
    begins = random.random((num_steps - 1 + shape[0], shape[1])) < 0.1 / num_steps
    return 0.7 * np.any([begins[place : place + shape[0]] for place in range(num_steps)], axis=0)


def _wandering(random: np.random.Generator, shape: tuple[int, int], deviation: float) -> Any:
    """Return what depends on the step before by 0.9, and has this standard deviation."""
    values = random.standard_normal(shape)
    for before, now in pairwise(values):
        now[:] = 0.9 * before + np.sqrt(1 - 0.9**2) * now
    return deviation * values


# Healthy ranks: what a step of a rank takes longer, in steps, for a generator and a shape.
NOISES: dict[str, Callable[[np.random.Generator, tuple[int, int]], Any]] = {
    "gaussian, sd 0.05": lambda random, shape: 0.05 * random.standard_normal(shape),
    "gaussian, sd 0.2": lambda random, shape: 0.2 * random.standard_normal(shape),
    "lognormal, sigma 0.3": lambda random, shape: np.exp(0.3 * random.standard_normal(shape)),
    "lognormal, sigma 1": lambda random, shape: np.exp(random.standard_normal(shape)),
    "bimodal, 0.6 in half": lambda random, shape: 0.6 * (random.random(shape) < 0.5),
    "pauses of 0.7, 2 %": lambda random, shape: 0.7 * (random.random(shape) < 0.02),
    "pauses of 1.4, 10 %": lambda random, shape: 1.4 * (random.random(shape) < 0.1),
    "pauses of 0.4, 20 %": lambda random, shape: 0.4 * (random.random(shape) < 0.2),
    "spells of 2": lambda random, shape: _spells(random, shape, 2),
    "spells of 3": lambda random, shape: _spells(random, shape, 3),
    "spells of 5": lambda random, shape: _spells(random, shape, 5),
    "walk, sd 0.02": lambda random, shape: np.cumsum(0.02 * random.standard_normal(shape), axis=0),
    "walk, sd 0.05": lambda random, shape: np.cumsum(0.05 * random.standard_normal(shape), axis=0),
    "same batch": lambda random, shape: 0.3 * random.standard_normal((shape[0], 1)),
}


# Healthy ranks whose speeds stay apart for long, of which few steps are independent
WANDERING: dict[str, Callable[[np.random.Generator, tuple[int, int]], Any]] = {
    "walk, sd 0.1": lambda random, shape: np.cumsum(0.1 * random.standard_normal(shape), axis=0),
    "AR(0.9), sd 0.2": lambda random, shape: _wandering(random, shape, 0.2),
    "AR(0.9), sd 0.4": lambda random, shape: _wandering(random, shape, 0.4),
    "constant spread, 0.05": lambda random, shape: 0.05 * random.standard_normal((1, shape[1])) + np.zeros(shape),
}


def healthy(noise: str, num_ranks: int, num_steps: int, seed: int) -> Any:
    """Return own times whose ranks all draw from the same distribution; each phase varies by a percent, too."""
    random = np.random.default_rng((seed, num_ranks, num_steps))
    phase_s = USUAL_S * (1 + 0.01 * random.standard_normal((num_steps, num_ranks, len(PHASES))))
    if noise:
        phase_s[..., _FORWARD] += _STEP_S * (1 + (NOISES | WANDERING)[noise](random, (num_steps, num_ranks)))
    return phase_s


class Case(NamedTuple):
    """A way to be late: `spoil` changes own times in place; and the phases of each late rank."""

    spoil: Callable[[Any], object]
    causes: dict[int, set[str]]


def _add(phase_s: Any, ranks: Any, phase: int, steps: Any = slice(None)) -> None:
    phase_s[steps, ranks, phase] += _DELAY_S


def _in_turn(phase_s: Any) -> None:
    _add(phase_s, 0, _LOADER, slice(0, None, 2))
    _add(phase_s, 1, _BACKWARD, slice(1, None, 2))


def _two_reasons(phase_s: Any) -> None:
    _add(phase_s, 0, _LOADER)
    _add(phase_s, 1, _BACKWARD)


CASES = {
    "one rank": Case(lambda phase_s: _add(phase_s, 1, _BACKWARD), {1: {"backward"}}),
    "every second step": Case(lambda phase_s: _add(phase_s, 1, _HOST, slice(0, None, 2)), {1: {"host"}}),
    "in turn": Case(_in_turn, {0: {"loader"}, 1: {"backward"}}),
    "two reasons": Case(_two_reasons, {0: {"loader"}, 1: {"backward"}}),
    "half": Case(lambda phase_s: _add(phase_s, [0, 1], _LOADER), {0: {"loader"}, 1: {"loader"}}),
    "one pause": Case(lambda phase_s: _add(phase_s, 1, _HOST, [5] * 1), {}),
}
NUM_RANKS = 4  # for which the cases are what their names say


def judged(phase_s: Any) -> Lateness:
    """Return the verdict on a job in which ranks wait for the last one, and communicate for 4 ms."""
    window_s = phase_s.sum(axis=2).max(axis=1, keepdims=True) + 0.004
    ranks = phase_s.shape[1]
    return lateness(range(ranks), np.repeat(window_s, ranks, axis=1), phase_s)


def named(phase_s: Any) -> dict[int, set[str]]:
    return {culprit.rank: {culprit.cause} for culprit in judged(phase_s).culprits}
