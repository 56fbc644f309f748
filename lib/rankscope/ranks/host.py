"""What the operating system says about the machine and its processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

MOST_RANKS = 256  # that a machine is asked to run
MOST_TIMEOUT_S = 10**6  # for waiting in poll(2), whose 32-bit milliseconds end at about 2 * 10**6 s
_PF_EXITING = 4  # among the flags in /proc/PID/stat
_UNKNOWN = ["?", *"000000"]  # a state and six numbers, for a process that does not exist


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


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped (SIGSTOP), where the system says so."""
    return _stat(pid)[0] in "Tt"  # by a signal, or by a debugger


def is_ending(pid: int) -> bool:
    """Whether a process has ended or is about to, where the system says so."""
    if not os.path.exists("/proc/self/stat"):  # then "?" does not mean that the process is gone
        return False
    state, *_, flags = _stat(pid)[:7]  # Z is a process that was not waited for yet, X one that is gone
    return state in "?ZX" or bool(int(flags) & _PF_EXITING)


def _stat(pid: int) -> list[str]:
    """Return the fields of proc_pid_stat(5) that follow the program's name: the state, numbers, and later the flags."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except OSError:
        return _UNKNOWN
    return after_name.split() or _UNKNOWN
