"""Errors of ranks and workers, and how an error is passed from one process to another."""

from __future__ import annotations

import pickle
import traceback
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


class WorkerError(MachineError):
    """A worker process ended, or did not answer in time."""


def portable(error: BaseException) -> BaseException:
    """Return an error that can be pickled, with its traceback as a note, because pickle drops the traceback.

    It is a copy of `error` or, if that cannot be pickled, a RuntimeError with its text.
    """
    note = "raised in another process:\n" + "".join(traceback.format_exception(error)).rstrip()
    try:
        error = pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(note)
    return error
