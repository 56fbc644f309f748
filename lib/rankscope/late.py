"""Names of a room whose modules are imported only when one is asked for, so that importing the room loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def late_names(room: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a room: `modules` says in which of its modules each late name stands.

    Behind a colon stands what it is called there, where that is another name.

    >>> late_names("rankscope.figures", {"curves": "lines:to_curves"})("curves").__name__
    'to_curves'
    >>> late_names("rankscope.figures", {})("squares")
    Traceback (most recent call last):
    AttributeError: module 'rankscope.figures' has no attribute 'squares'
    """

    def attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        module, _, own = modules[name].partition(":")
        return getattr(import_module(f".{module}", room), own or name)

    return attribute
