"""Public names of a package whose modules load when one is first used, so that importing the package loads little."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from .extras import naming_extras


def lazy(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's `__getattr__` and `__dir__`, so that every name in its `__all__` can be completed.

    `modules` maps each lazy name to the module of the package that defines it. If that module needs a package of an
    extra that is not installed, the error names the extra. Raises ValueError for a name that is a module's name, too:
    once that module was imported, Python would return the module.

    >>> getattribute, names = lazy("rankscope.sampling", {"assign": "assignment"})
    >>> getattribute("assign").__name__
    'assign'
    >>> getattribute("squares")
    Traceback (most recent call last):
    AttributeError: module 'rankscope.sampling' has no attribute 'squares'
    """
    for name in modules:
        if name in modules.values():
            raise ValueError(f"modules must have other names than what is lazy in them, got {name!r} in {package!r}")

    def attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with naming_extras(f"{package}.{name}"):
            module = import_module(f".{modules[name]}", package)
        return getattr(module, name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return attribute, names
