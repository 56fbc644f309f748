"""What each part of the library adds: explorers, figures, networks, commands and pytest fixtures.

The core and each subpackage have a module `extension` with an `Extension`. The explorers' catalogue, the command line
and the other tables are made of these records. So no module of the core imports a subpackage, and one that is not
installed, or that lacks another one that it needs, adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.resources import files
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Any, NamedTuple

_ROOT = __name__.partition(".")[0]


class Extension(NamedTuple):
    """What one part of the library adds; modules are given by their whole names.

    `explorers` and `commands` are packages. Each module in them is imported for the explorers or commands that it
    declares, so a new one needs no entry here. `figures` maps the name of a figure to the module that has its function,
    which is called like the figure, or `draw_` and its name if it returns a drawing. `networks` are functions that
    return networks, as "module:function". `fixtures` are modules of pytest fixtures. `needs` are the subpackages
    without which this one does not work: if one of them is not installed, this one adds nothing.
    """

    explorers: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    figures: Mapping[str, str] = MappingProxyType({})
    networks: tuple[str, ...] = ()
    fixtures: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


@cache
def extensions() -> tuple[Extension, ...]:
    """Return what the core adds, then what each subpackage that is installed adds, in alphabetical order.

    >>> [extension.networks for extension in extensions()][0]
    ()
    """
    core = import_module(f"{_ROOT}.extension").EXTENSION
    return (core, *subpackages().values())


@cache
def subpackages() -> Mapping[str, Extension]:
    """Return the record of each subpackage that is installed with everything that it needs, by its name."""
    found: dict[str, Extension] = {}
    folders = [folder for folder in files(_ROOT).iterdir() if folder.is_dir()]  # in an archive, too
    for name in sorted(folder.name for folder in folders if folder.joinpath("extension.py").is_file()):
        found[name] = import_module(f"{_ROOT}.{name}.extension").EXTENSION
    return with_their_needs(found)


def with_their_needs(found: Mapping[str, Extension]) -> Mapping[str, Extension]:
    """Return the subpackages that have all they need among these, directly and through others.

    >>> found = {"course": Extension(needs=("diagnose",)), "diagnose": Extension(needs=("train",)), "box": Extension()}
    >>> list(with_their_needs(found))
    ['box']
    """
    usable = {name: extension for name, extension in found.items() if found.keys() >= set(extension.needs)}
    if len(usable) < len(found):
        return with_their_needs(usable)
    return MappingProxyType(usable)


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


def check_unclaimed(what: str, name: str, new: Callable[..., Any], known: Callable[..., Any] | None) -> None:
    """Raise ValueError if a function of another module has this name; the same module may register it again.

    >>> check_unclaimed("command", "doctor", extensions, load)
    >>> check_unclaimed("command", "doctor", extensions, len)
    Traceback (most recent call last):
    ValueError: builtins has a command 'doctor' already, and so has rankscope.common.extensions
    """
    if known is not None and known.__module__ != new.__module__:
        raise ValueError(f"{known.__module__} has a {what} {name!r} already, and so has {new.__module__}")
