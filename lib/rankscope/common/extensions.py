"""What each part of the library adds to the common tables: explorers, figures, networks, commands and fixtures.

The core and each subpackage have a module `extension` with an `Extension`. The common tables are made of these records.
So nothing in the core names a subpackage, and a subpackage that is not installed adds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from .frozen import ReadOnly, frozen


@frozen
class Extension:
    """What one part of the library adds; modules are given by their whole names.

    `explorers` and `commands` are packages. Each module in them is imported for the explorers or commands that it
    declares, so a new one needs no entry here. `figures` maps the name of a figure to the module that has its function,
    which is called like the figure, or `draw_` and its name if it returns a drawing. `networks` are functions that
    return networks, as "module:function". `fixtures` are modules of pytest fixtures.
    """

    explorers: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    figures: Mapping[str, str] = ReadOnly()
    networks: tuple[str, ...] = ()
    fixtures: tuple[str, ...] = ()


@cache
def extensions() -> tuple[Extension, ...]:
    """Return what the core adds, then what each subpackage that is installed adds, in alphabetical order.

    >>> [extension.networks for extension in extensions()][0]
    ()
    """
    root = __name__.partition(".")[0]
    folders = sorted(Path(path) for path in import_module(root).__path__)
    found = [import_module(f"{root}.extension").EXTENSION]
    for folder in folders:
        for file in sorted(folder.glob("*/extension.py")):
            found.append(import_module(f"{root}.{file.parent.name}.extension").EXTENSION)
    return tuple(found)


@cache
def import_all(package: str) -> None:
    """Import every module of a package, so that each can declare what it adds."""
    for module in iter_modules(import_module(package).__path__):
        import_module(f"{package}.{module.name}")


def load(place: str) -> Any:
    """Return what "module:name" names.

    >>> load("math:pi")
    3.141592653589793
    """
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
