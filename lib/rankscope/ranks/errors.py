"""Errors of ranks and of other processes that this library starts."""

from __future__ import annotations


class MachineError(RuntimeError):
    """What this machine cannot do, or stopped doing, in a sentence for its user. A bug is never one."""


class RankError(MachineError):
    """A rank failed. `rank` is its number."""

    def __init__(self, message: str, rank: int = -1) -> None:  # pickle calls it without, and sets `rank` itself
        super().__init__(message)
        self.rank = rank
