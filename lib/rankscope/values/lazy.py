"""Public names of a room whose modules load when one is first used, so that importing the room loads no torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from .extras import naming_extras


def lazy(room: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a room's `__getattr__` and `__dir__`, so that every name in its `__all__` can be completed.

    `modules` maps each lazy name to the module of the room that defines it. If that module needs a package of an extra
    that is not installed, the error names the extra.

    >>> getattribute, names = lazy("rankscope.figures", {"curves": "lines"})
    >>> getattribute("curves").__name__
    'curves'
    >>> getattribute("squares")
    Traceback (most recent call last):
    AttributeError: module 'rankscope.figures' has no attribute 'squares'
    """

    def attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        with naming_extras(f"{room}.{name}"):
            module = import_module(f".{modules[name]}", room)
        return getattr(module, name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[room]), *modules})

    return attribute, names
