"""Packages that not everybody has: what is imported when first used, and the extra to install, as in pyproject.toml."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

# The extra that brings each package, by the name under which the package is imported.
EXTRAS = {"torch": "torch", "cloudpickle": "torch", "ipywidgets": "notebooks", "matplotlib": "notebooks"}


@contextmanager
def naming_extra() -> Iterator[None]:
    """Add a line that names the extra to an error about a missing package of one; also a decorator.

    >>> with naming_extra():
    ...     raise ModuleNotFoundError("No module named 'torch'", name="torch")
    Traceback (most recent call last):
    ModuleNotFoundError: No module named 'torch'
    pip install 'rankscope[torch]' installs it
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name in EXTRAS and not hasattr(error, "__notes__"):  # an inner door has named it already
            error.add_note(f"pip install 'rankscope[{EXTRAS[error.name]}]' installs it")
        raise


def when_used(package: str, **modules: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package, some of whose public names are imported when first used.

    That imports torch. `modules` are the package's modules by the names that they define. What the package lists, also
    before that, is its ``__all__``.
    """

    @naming_extra()
    def public_name(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return public_name, lambda: list(sys.modules[package].__all__)
