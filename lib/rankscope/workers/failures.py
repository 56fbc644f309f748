"""How an error that was raised in another process is told here."""

from __future__ import annotations

import pickle
import traceback


def portable(error: BaseException) -> BaseException:
    """Return an error that survives a pickle, the same or its text, with a note of where it was raised."""
    note = "raised in another process:\n" + "".join(traceback.format_exception(error)).rstrip()
    try:
        error = pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(note)
    return error
