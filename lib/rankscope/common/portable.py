"""`portable`: the error of another process."""

from __future__ import annotations

import pickle
import traceback

from .words import error_words


def portable(error: BaseException) -> BaseException:
    """Return an error that can be pickled, with its traceback as a note, because pickle drops the traceback.

    It is a copy of `error` or, if that cannot be pickled, a RuntimeError with its text.
    """
    note = "raised in another process:\n" + "".join(traceback.format_exception(error)).rstrip()
    try:
        error = pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(error_words(error))
    error.add_note(note)
    return error
