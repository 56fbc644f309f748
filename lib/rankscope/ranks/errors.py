"""Errors of ranks and of other processes that this library starts."""

from __future__ import annotations

import pickle
from typing import Any

from ..common.words import error_words


class MachineError(RuntimeError):
    """What this machine cannot do, or stopped doing, in a sentence for its user. A bug is never one."""


class RankError(MachineError):
    """A rank failed. `rank` is its number, or None if several have not returned and nothing tells which one hangs."""

    def __init__(self, message: str, rank: int | None = None) -> None:  # pickle calls it without, and sets `rank`
        super().__init__(message)
        self.rank = rank


def unpickled(outcome: bytes, rank: int) -> Any:
    """Return what a rank has pickled, or raise RankError if that cannot be unpickled in this process."""
    try:
        return pickle.loads(outcome)
    except Exception as error:
        raise RankError(f"the result of rank {rank} cannot be unpickled: {error_words(error)}", rank) from error
