"""`read_pickle`: what a pickle contains, if that is containers, texts and numbers. No pickle is executed."""

from __future__ import annotations

import io
import pickle
from typing import Any


def read_pickle(raw: bytes) -> Any:
    """Return what a pickle contains: containers, texts, numbers, bools and None.

    Raises ValueError if it asks for a class or a function. A damaged pickle raises whatever Python's own unpickler
    does, such as EOFError and IndexError.
    """
    return _Unpickler(io.BytesIO(raw)).load()


class _Unpickler(pickle.Unpickler):
    """Refuses every class and function, so that nothing in the file can be called."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"it asks for {module}.{name}, which no dump has; nothing was executed")
