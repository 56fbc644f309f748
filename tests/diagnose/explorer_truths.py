"""What the explorers of `diagnose` must say, worked out another way, for `tests/explorers/test_true.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

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
    idle_s = found.waits_s.mean(axis=0)
    idle = ("rank # idles longest, #", idle_s.argmax(), idle_s.max())
    if found.culprits:
        late = found.culprits[0]
        others_s = sum(idle_s[rank] for rank in range(now.num_ranks) if rank != late.rank) / (now.num_ranks - 1)
        title = (f"^Rank #'s {late.cause} keeps others idle for #", late.rank, others_s)
        return [title, ("it is # late, and a fix saves #", late.late_s, late.cost_s)]
    if now.delay_ms:
        return [idle, ("Rank # is # late: diagnose does not name it", now.late_rank, now.delay_ms / 1e3)]
    return [idle, ("No rank is late",)]


def paste(now: Any) -> list[tuple[Any, ...]]:
    """What stands in the examples."""
    if "busbw" in now.text:
        return [("allreduce at # reaches #/s, # of the #/s", 2**28, 260.71e9, 260.71 / 450, 450e9)]
    if "nvbandwidth" in now.text:
        return [("Copies reach #/s to #/s", 25.94e9, 276.07e9)]
    if "GPU3" in now.text:
        return [("# GPUs, # pair NV4, # pairs NODE, # pairs SYS", 4, 1, 2, 3)]
    return [("Look at rank #", 2), ("Rank # did not reach collective #", 2, 808)] if now.text else []


TRUTHS = {"slow_rank": ({}, slow_rank), "paste": ({}, paste)}
