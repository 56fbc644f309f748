"""Public names of a package whose modules load at their first use, so that importing the package loads little."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from .extras import naming_extras


def lazy(
    package: str, modules: Mapping[str, str], submodules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's `__getattr__` and `__dir__`, so that all its public names can be completed with Tab.

    `modules` maps each lazy name to the module of the package that defines it; `submodules` are the names of the
    package's public submodules. If a module needs a package of an extra that is not installed, the error names the
    extra. Raises ValueError for a lazy name that is also the name of a module: after an import of that module, Python
    would return the module.

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
        if name not in modules and name not in submodules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with naming_extras(f"{package}.{name}"):
            if name in submodules:
                return import_module(f".{name}", package)
            module = import_module(f".{modules[name]}", package)
        return getattr(module, name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules, *submodules})

    return attribute, names
