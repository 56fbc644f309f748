"""How a failure in another process is told: what ended it, and the error that was raised there."""

from __future__ import annotations

import pickle
import signal
import traceback


def how_it_ended(code: int | None) -> str:
    """Say what an exit code of `subprocess` or `multiprocessing` means.

    >>> how_it_ended(-9), how_it_ended(3)
    ('was killed by SIGKILL', 'ended with exit code 3')
    """
    if code is not None and -code in set(signal.Signals):
        return f"was killed by {signal.Signals(-code).name}"
    return "has not ended" if code is None else f"ended with exit code {code}"


def portable(error: BaseException) -> BaseException:
    """Return an error that survives a pickle, the same or its text, with a note of where it was raised."""
    note = "raised in another process:\n" + "".join(traceback.format_exception(error)).rstrip()
    try:
        error = pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(note)
    return error
