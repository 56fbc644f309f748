"""Errors of processes: what a rank or a worker did, and an error that was raised elsewhere."""

from __future__ import annotations

import pickle
import traceback


class MachineError(RuntimeError):
    """What this machine cannot do, or stopped doing, in a sentence for its user. A bug is never one."""


class RankError(MachineError):
    """A rank failed. `rank` is its number; `__cause__` is the exception that it raised."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


class WorkerError(MachineError):
    """A worker process ended, or did not answer in time."""


def portable(error: BaseException) -> BaseException:
    """Return an error that survives a pickle, the same or its text, with a note of where it was raised."""
    note = "raised in another process:\n" + "".join(traceback.format_exception(error)).rstrip()
    try:
        error = pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(note)
    return error
