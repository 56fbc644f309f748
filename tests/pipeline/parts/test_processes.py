"""A process of its own for a worker, and what it leaves behind."""

from __future__ import annotations

import os
import time

from rankscope.pipeline.processes import Process
from tests.processes import gone


def start_another(value: object) -> int:
    """Leave a process behind, which holds all that its parent held."""
    if child := os.fork():
        return child
    time.sleep(600)
    return 0


def test_what_a_worker_has_started_ends_with_it() -> None:
    process = Process(start_another, timeout_s=100.0)
    child = process.call(None)
    process.end()
    assert gone([child])
