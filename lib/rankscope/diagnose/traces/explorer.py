"""The explorer of notebook 11: a job with one late rank, who waits for it, and what `diagnose` says."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from ...drawing.bars import draw_bars
from ...drawing.drawing import Drawing
from ...panel.explorer import Explorer, Now, Setting, Steps, jitter
from ...pipeline.service import Lognormal
from .late_ranks import Lateness, lateness
from .trace import PHASES
from .verdict import in_ms, sentences

_USUAL_MS = {"optimizer": 5, "loader": 5, "forward": 20, "backward": 40}  # from one allreduce to the next
_ALLREDUCE_MS = 6
_NUM_STEPS = 30
_LEAST_RANKS = 4  # so that each of the first four can be the late one
PRESETS: dict[str, dict[str, Any]] = {
    "no rank is late": {"delay_ms": 0},
    "a slow backward pass, 8 ranks": {"num_ranks": 8, "late_rank": 3, "cause": "backward"},
    "40 ms, hidden in the jitter": {"num_ranks": 16, "jitter": 50},
}


@lru_cache(maxsize=8)
def verdict(now: Now) -> Lateness:
    """Return what `diagnose` finds in a simulated job."""
    random = np.random.default_rng(now.seed)
    shape = (_NUM_STEPS, now.num_ranks, len(PHASES))
    factors = Lognormal(1.0, now.jitter / 100).draw(random, math.prod(shape)).reshape(shape)
    phase_s = factors * [_USUAL_MS.get(phase, 0) / 1e3 for phase in PHASES]
    phase_s[:, now.late_rank, PHASES.index(now.cause)] += now.delay_ms / 1e3
    step_s = phase_s.sum(axis=2).max(axis=1, keepdims=True) + _ALLREDUCE_MS / 1e3
    return lateness(range(now.num_ranks), step_s, phase_s)


def draw(now: Now) -> list[Drawing]:
    """The mean step of all ranks; the title says which rank is late, by how much, and who waits."""
    found = verdict(now)
    idle_s = found.waits_s.mean(axis=0)
    rows = {}
    for rank, phase_s in enumerate(found.phase_s.mean(axis=0)):
        works = {phase: 1e3 * phase_s[PHASES.index(phase)] for phase in _USUAL_MS}
        rows[f"rank {rank}"] = {**works, "idle": 1e3 * idle_s[rank], "allreduce": _ALLREDUCE_MS}
    title = "No rank is late"
    deck = f"Mean of {_NUM_STEPS} steps: rank {idle_s.argmax()} idles longest, {in_ms(idle_s.max())}"
    if found.culprits:
        late = found.culprits[0]
        others_s = np.delete(idle_s, late.rank).mean()
        title = f"Rank {late.rank}'s {late.cause} keeps others idle for {in_ms(others_s)}"
        deck = f"Mean of {_NUM_STEPS} steps: it is {in_ms(late.late_s)} late, and a fix saves {in_ms(late.cost_s)}"
    elif now.delay_ms:
        title = f"Rank {now.late_rank} is {now.delay_ms} ms late: diagnose does not name it"
    return [draw_bars(rows, "time [ms]", title, deck)]


def report(now: Now) -> list[str]:
    """What `diagnose` says of all steps."""
    return sentences(verdict(now), range(_NUM_STEPS), is_complete=True)


def slow_rank() -> Explorer:
    """Return controls over a simulated job with one late rank, and what `diagnose` says of it."""
    settings = (
        Setting("num_ranks", 4, range(_LEAST_RANKS, 17), "ranks"),
        Setting("late_rank", 2, range(_LEAST_RANKS), "late rank"),
        Setting("delay_ms", 40, Steps((0, 2, 5, 10, 20, 40, 80, 160)), "delay per step [ms]"),
        Setting("cause", "loader", ("loader", "forward", "backward"), "cause", lambda now: now.delay_ms > 0),
        jitter(10),
        Setting("seed", 0, range(21), "seed", lambda now: now.jitter > 0),
    )
    return Explorer(settings, draw, report, PRESETS)
