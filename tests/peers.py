"""The packages of tests/peers.txt, for the tests that compare with them; nothing else can import them."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).parents[1] / ".venv" / "peers"
HOW = "`make oracles` installs tests/peers.txt"
# Clouds, images and tokenizers that peers import, and that the tests never use.
UNUSED = {"boto3", "botocore", "transformers", "torchvision", "google", "oci", "azure", "paramiko"}


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Supplies something in the place of every module of `UNUSED` that is not installed."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name.partition(".")[0] in UNUSED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        module = ModuleType(spec.name)
        module.__getattr__ = _empty_class  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def _empty_class(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


@contextmanager
def importable() -> Iterator[None]:
    """Let the peers be imported, after all other packages; afterwards they are forgotten."""
    path = sys.path
    modules = set(sys.modules)
    stand_ins = StandIns()
    sys.path = [*path, str(FOLDER)]
    sys.meta_path.append(stand_ins)
    try:
        yield
    finally:
        sys.path = path
        sys.meta_path.remove(stand_ins)
        for name in set(sys.modules) - modules:
            is_peer = str(FOLDER) in str(getattr(sys.modules[name], "__file__", ""))
            if is_peer or name.partition(".")[0] in UNUSED:
                del sys.modules[name]


def peer(module: str) -> Any:
    """Return a module of a peer, or None if it is not installed. Call it within `importable`."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None
