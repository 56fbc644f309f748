"""The packages of tests/peers.txt, for the tests that compare with them; nothing else can import them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
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


@contextmanager
def streaming_modules(*paths: str) -> Iterator[list[Any] | None]:
    """Yield modules of mosaicml-streaming by their paths below `base`, or None if it is not installed.

    They need numpy alone, but the package's `__init__` imports the clients of all clouds.
    """
    with importable():
        spec = importlib.util.find_spec("streaming")
        if spec is None or not spec.submodule_search_locations:
            yield None
            return
        folder = Path(next(iter(spec.submodule_search_locations)))
        before = dict(sys.modules)
        for name in ("streaming", "streaming.base", "streaming.base.shuffle"):
            package = types.ModuleType(name)
            package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
            sys.modules[name] = package
        try:
            yield [importlib.import_module("streaming.base." + path.replace("/", ".")) for path in paths]
        finally:
            for name in [name for name in sys.modules if name.startswith("streaming") and name not in before]:
                del sys.modules[name]
