"""The packages of tests/peers.txt, for the tests that compare with them; nothing else can import them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / ".venv" / "peers"
HOW = "`make oracles` installs tests/peers.txt"


@contextmanager
def importable() -> Iterator[None]:
    """Let the peers be imported, after all other packages; afterwards they are forgotten."""
    path = sys.path
    modules = set(sys.modules)
    sys.path = [*path, str(FOLDER)]
    try:
        yield
    finally:
        sys.path = path
        for name in set(sys.modules) - modules:
            if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


def peer(module: str) -> Any:
    """Return a module of a peer, or None if it is not installed. Call it within `importable`."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None
