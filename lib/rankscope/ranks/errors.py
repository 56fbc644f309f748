"""Errors of ranks and of other processes that this library starts."""

from __future__ import annotations

from typing import Any


class MachineError(RuntimeError):
    """What this machine cannot do, or stopped doing, in a sentence for its user. A bug is never one."""


class RankError(MachineError):
    """A rank failed. `rank` is its number; `__cause__` is the exception that it raised."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.rank), self.__dict__  # pickle would call the class with the message alone
