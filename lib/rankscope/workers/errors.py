"""The error by which every kind of rank tells that it failed."""

from __future__ import annotations

MOST_RANKS = 256


class RankError(RuntimeError):
    """A rank failed: `rank` is its number, the cause what it raised."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank
