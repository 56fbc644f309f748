"""The commands of the command line: functions that are marked with `command`, in packages that extensions name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..common.extensions import check_unclaimed, extensions, import_all, left_out_reasons

Function = TypeVar("Function", bound=Callable[..., Any])

_COMMANDS: dict[str, Callable[..., Any]] = {}


def command(name: str) -> Callable[[Function], Function]:
    """Make a function a command under this name. Its type hints say what it takes, its docstring is its help."""

    def decorate(function: Function) -> Function:
        check_unclaimed("command", name, function, _COMMANDS.get(name))
        _COMMANDS[name] = function
        return function

    return decorate


def commands() -> dict[str, Callable[..., Any]]:
    """Return the commands of each subpackage that is installed, by name.

    >>> "show" in commands()
    True
    """
    for extension in extensions():
        for package in extension.commands:
            import_all(package)
    return dict(_COMMANDS)


def reasons_of_left_out_commands() -> list[str]:
    """Return why each module of commands that was left out is missing."""
    packages = [package for extension in extensions() for package in extension.commands]
    prefixes = tuple(f"{package}." for package in packages)  # with the dot, so that a.bc is not in a.b
    reasons = []
    for module, reason in left_out_reasons().items():
        if f"{module}.".startswith(prefixes):
            reasons.append(reason)
    return reasons
