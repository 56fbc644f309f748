"""What each part of the library adds: explorers, figures, networks, commands and pytest fixtures.

The core and each subpackage have a module `extension` with an `Extension`. The explorers' catalogue, the command line
and the other tables are made of these records. So no module of the core imports a subpackage, and one that is not
installed, or that lacks another one that it needs, adds nothing.

A module that a record names may fail to import. The rule is:

- If it needs a package that is not part of rankscope and is not installed, such as one of an extra, then this module
  adds nothing, and everything else works. `left_out` lists such modules with the package that each one needs.
- Any other error is a fault of that module. It is raised as an ImportError that names the module and the error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pkgutil import iter_modules
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

_ROOT = __name__.partition(".")[0]
_left_out: dict[str, str] = {}  # modules, and the package that each one needs and that is not installed


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
    core = _read(f"{_ROOT}.extension")
    return (core, *subpackages().values())


@cache
def subpackages() -> Mapping[str, Extension]:
    """Return the record of each subpackage that is installed with everything that it needs, by its name."""
    # `files` also lists a package that is imported from an archive, which has no folder on disk.
    folders = [folder for folder in files(_ROOT).iterdir() if folder.is_dir()]
    names = sorted(folder.name for folder in folders if folder.joinpath("extension.py").is_file())
    return with_their_needs({name: _read(f"{_ROOT}.{name}.extension") for name in names})


def with_their_needs(installed: Mapping[str, Extension]) -> Mapping[str, Extension]:
    """Return the subpackages that have all they need among these, directly and through others.

    >>> needy = {"site": Extension(needs=("diagnose",)), "diagnose": Extension(needs=("train",))}
    >>> list(with_their_needs({**needy, "box": Extension()}))
    ['box']
    """
    usable = {name: extension for name, extension in installed.items() if installed.keys() >= set(extension.needs)}
    if len(usable) < len(installed):
        return with_their_needs(usable)
    return MappingProxyType(usable)


def _read(module: str) -> Extension:
    """Return the record of a module."""
    try:
        extension: Extension = import_module(module).EXTENSION
    except Exception as error:
        raise _fault(module, error) from error
    return extension


@cache
def import_all(package: str) -> None:
    """Import every module of a package, so that each can declare what it adds.

    Modules that need a package which is not installed are left out. Raises ImportError, which names the module, for
    any other error.
    """
    imported = import_or_leave_out(package)
    if imported is None:
        return
    for module in iter_modules(imported.__path__):
        import_or_leave_out(f"{package}.{module.name}")


def import_or_leave_out(module: str) -> ModuleType | None:
    """Return a module, or None if it needs a package that is not installed and not part of rankscope.

    Raises ImportError, which names the module, for any other error.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]  # "" if the module itself raised an error without a name
        if package and package != _ROOT and not _is_installed(package):
            _left_out[module] = package
            return None
        raise _fault(module, error) from error
    except Exception as error:
        raise _fault(module, error) from error


def _is_installed(package: str) -> bool:
    """Return whether a package can be imported, so that what is missing is only a module in it."""
    if sys.modules.get(package) is not None:  # `find_spec` would raise ValueError if it was loaded without a spec
        return True
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # from an import hook that refuses the package
        return False


def left_out() -> Mapping[str, str]:
    """Return the modules that were left out so far, each with the package that it needs and that is not installed."""
    return MappingProxyType(_left_out)


def left_out_reasons() -> dict[str, str]:
    """Return, for each module that was left out so far, a sentence that says why."""
    return {module: f"{module} needs {package}, which is not installed" for module, package in _left_out.items()}


def _fault(module: str, error: Exception) -> ImportError:
    return ImportError(f"{module} cannot be imported: {type(error).__name__}: {error}", name=module)


def load(place: str) -> Any:
    """Return what "module:name" names, or None if that module is left out as `import_or_leave_out` does.

    Raises ImportError, which names the module, for any other error.

    >>> load("math:pi")
    3.141592653589793
    """
    name_of_module, _, name = place.partition(":")
    module = import_or_leave_out(name_of_module)
    if module is None:
        return None
    if not hasattr(module, name):
        raise ImportError(f"{name_of_module} has no {name!r}, which an EXTENSION names", name=name_of_module)
    return getattr(module, name)


def check_unclaimed(what: str, name: str, new: Callable[..., Any], known: Callable[..., Any] | None) -> None:
    """Raise ValueError if a function of another module has this name.

    The same module may register it again, as a notebook's cell does that runs twice.

    >>> check_unclaimed("command", "doctor", extensions, load)
    >>> check_unclaimed("command", "doctor", extensions, len)
    Traceback (most recent call last):
    ValueError: builtins has a command 'doctor' already, and so has rankscope.common.extensions
    """
    if known is not None and known.__module__ != new.__module__:
        raise ValueError(f"{known.__module__} has a {what} {name!r} already, and so has {new.__module__}")
