"""Tables of test cases that each test package contributes, if the part of the library that it tests is installed.

The tests in `tests.box` are of `rankscope.box`, and so on. A battery that every explorer, figure or stored value must
pass lies with the core. Its cases lie in a module of each test package, which all have the same name.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from rankscope.common.extensions import subpackages

TESTS = Path(__file__).parent


def installed(name: str) -> bool:
    """Whether a part of the library is there, and, if it is a subpackage, everything that it needs."""
    spec = find_spec(f"rankscope.{name}")
    is_subpackage = spec is not None and find_spec(f"rankscope.{name}.extension") is not None
    return spec is not None and (not is_subpackage or name in subpackages())


def contributed(module: str) -> list[ModuleType]:
    """Return the modules of this name in the test packages of all parts that are installed, the core's first.

    >>> [found.__name__ for found in contributed("explorer_cases")][0]
    'tests.explorers.explorer_cases'
    """
    packages = [file.parent.name for file in sorted(TESTS.glob(f"*/{module}.py"))]
    found = [package for package in packages if installed(package)]
    found.sort(key=lambda package: package in subpackages())
    return [import_module(f"tests.{package}.{module}") for package in found]
