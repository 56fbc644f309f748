"""Exercises of notebook 00: one step of several ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..collectives import build, traffic
from ..ddp import LocalStep, simulate
from ..ddp.buckets import ParameterSpec
from ..sampling import assign
from .answers import Check, is_near


def _reads(answer: Any) -> str | None:
    """How many reads 8 ranks make of 100 samples in an epoch."""
    right = sum(indices.size for indices in assign(100, 8).ranks)
    return None if answer == right else f"the 8 ranks do not read {answer!r} samples in all, but as many each"


def _sent(answer: Any) -> str | None:
    """How many MiB each of 16 ranks sends in a ring allreduce of 64 MiB."""
    right = float(traffic(build("allreduce", "ring", 16), 64 * 2**20).sent_bytes.max()) / 2**20
    return None if is_near(answer, right) else f"a rank does not send {answer!r} MiB: how many messages?"


def _exposed(answer: Any) -> str | None:
    """How many ms a rank waits for two allreduces of 25 ms, of gradients that are ready after 10 and 40 ms."""
    halves = ParameterSpec("first", 100), ParameterSpec("last", 100)
    local = LocalStep(halves, np.array([0.040, 0.010]), forward_s=0.0, backward_s=0.040)
    step = simulate(local, lambda num_bytes: num_bytes * 0.00025, buckets=[[1], [0]])
    right = step.select(kind="wait").busy_s * 1e3
    return None if is_near(answer, right) else f"it does not wait for {answer!r} ms: when does the second half start?"


EXERCISES: dict[str, Check] = {
    "00.1": _reads,
    "00.2": _sent,
    "00.3": _exposed,
}
