"""The error by which every kind of rank tells that it failed, and how a process ended."""

from __future__ import annotations

import signal


class RankError(RuntimeError):
    """A rank failed: `rank` is its number, the cause what it raised."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


def how_it_ended(code: int) -> str:
    """Say what an exit code of `subprocess` means.

    >>> how_it_ended(-9), how_it_ended(3)
    ('was killed by SIGKILL', 'ended with exit code 3')
    """
    if -code in set(signal.Signals):
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
