"""What the operating system tells of the machine and its processes."""

from __future__ import annotations

import os
import signal


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def how_it_ended(code: int | None) -> str:
    """Say what an exit code of `subprocess` or `multiprocessing` means.

    >>> how_it_ended(-9), how_it_ended(3)
    ('was killed by SIGKILL', 'ended with exit code 3')
    """
    if code is not None and -code in set(signal.Signals):
        return f"was killed by {signal.Signals(-code).name}"
    return "has not ended" if code is None else f"ended with exit code {code}"
