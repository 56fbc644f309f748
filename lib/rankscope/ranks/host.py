"""What the operating system says about the machine and its processes, and how it ends them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

MOST_RANKS = 256  # that a machine is asked to run
_PR_SET_PDEATHSIG = 1  # of prctl(2): the signal that this process gets when its parent ends


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def how_it_ended(code: int) -> str:
    """Say what an exit code of `subprocess` or `multiprocessing` means.

    >>> how_it_ended(-9), how_it_ended(3)
    ('was killed by SIGKILL', 'ended with exit code 3')
    """
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped (SIGSTOP), where the system says so."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except OSError:
        return False
    return after_name.split()[0] in "Tt"  # by a signal, or by a debugger


def end_with(parent_pid: int) -> None:
    """Let this process be killed when its parent ends. Other systems than Linux have no such call.

    More exactly, it is killed when the thread of the parent that has forked it ends.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it has ended before the call
        os._exit(1)


def kill_group(pid: int) -> None:
    """Kill a process that leads a group, and the processes that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter on macOS, for one that has ended
        os.killpg(pid, signal.SIGKILL)
