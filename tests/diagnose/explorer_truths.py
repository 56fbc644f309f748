"""What the explorer of `diagnose` must say, worked out another way, for `tests/explorers/test_true.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.common.words import listed
from rankscope.diagnose import diagnose
from rankscope.diagnose.traces.explorer import verdict
from rankscope.diagnose.traces.trace import PHASES

from .traces.made_jobs import USUAL_S, job


def slow_rank(now: Any) -> list[tuple[Any, ...]]:
    """Traces of such a job, which `diagnose` reads: each step begins with the optimizer of the step before."""
    own_s = verdict(now).phase_s
    nothing_s = np.zeros_like(own_s[:1, :, 0])
    phase_s = {}
    for phase in USUAL_S:
        seconds = own_s[:, :, PHASES.index(phase)]
        parts = (seconds, nothing_s) if phase == "optimizer" else (nothing_s, seconds)
        phase_s[phase] = np.concatenate(parts)
    found = diagnose(job(phase_s, wire_s=0.006))
    waits_s = found.waits_s[10]
    waiting = ("rank # waits # for rank #", waits_s.argmax(), waits_s.max(), waits_s.argmin())
    if found.culprits:
        named = listed("rank", [culprit.rank for culprit in found.culprits])
        return [waiting, (f"names {named}: # per step", sum(culprit.cost_s for culprit in found.culprits))]
    return [waiting, ("not name. rank #", now.late_rank) if now.delay_ms else ("names no rank",)]


def paste(now: Any) -> list[tuple[Any, ...]]:
    """What stands in two of the examples."""
    if "busbw" in now.text:
        return [("allreduce at # reaches #/s, # of the #/s", 2**28, 260.71e9, 260.71 / 450, 450e9)]
    return [("# GPUs, # pair NV4, # pairs NODE, # pairs SYS", 4, 1, 2, 3)] if "GPU3" in now.text else []


TRUTHS = {"slow_rank": ({}, slow_rank), "paste": ({}, paste)}
