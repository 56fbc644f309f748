"""The API's pages, as reStructuredText: one for each package, with every public name that it has, from docstrings."""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
from importlib import import_module
from types import ModuleType
from typing import get_origin

import rankscope

_INDEX = """API reference
=============

Every public name, by package. Every example (a line after ``>>>``) is tested.

"""


def packages() -> list[ModuleType]:
    """The public packages: those right below rankscope, and below its packages, that list their public names.

    A package whose public names are all packages, as `rankscope.train`, has no page of its own; those packages have.
    """
    places = [rankscope, *(import_module(f"rankscope.{name}") for name in ("box", "train"))]
    with_names = []
    for place in places:
        for entry in pkgutil.iter_modules(place.__path__, f"{place.__name__}."):
            if not entry.name.rpartition(".")[2].startswith("_"):
                package = import_module(entry.name)
                if any(not inspect.ismodule(getattr(package, name)) for name in getattr(package, "__all__", ())):
                    with_names.append(package)
    return with_names


def pages() -> dict[str, str]:
    """The API's index and the page of each package, by file name."""
    names = [package.__name__ for package in packages()]
    heads = [(inspect.getdoc(package) or "").partition("\n")[0] for package in packages()]
    index = _INDEX + "".join(f":doc:`{name}`\n   {head}\n\n" for name, head in zip(names, heads, strict=True))
    index += ".. toctree::\n   :hidden:\n\n" + "".join(f"   {name}\n" for name in names)
    return {"index.rst": index, **{f"{package.__name__}.rst": package_page(package) for package in packages()}}


def type_aliases() -> dict[str, str]:
    """What packages call a longer type: signatures show its name."""
    packages()  # which loads their modules
    modules = [module for name, module in sys.modules.items() if name.startswith("rankscope.")]
    names = {name for module in modules for name, value in vars(module).items() if get_origin(value) is not None}
    return {name: name for name in names}


def package_page(package: ModuleType) -> str:
    """What the package is for, then its functions, classes, errors and constants."""
    sections: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors": [], "Constants": []}
    for name in sorted(package.__all__, key=str.lower):
        if inspect.ismodule(getattr(package, name)):  # it has a page of its own
            continue
        section, text = _entry(package, name)
        sections[section].append(text)
    text = (
        f"{package.__name__}\n{'=' * len(package.__name__)}\n\n.. automodule:: {package.__name__}\n   :no-members:\n\n"
    )
    for title, entries in sections.items():
        if entries:
            text += f"{title}\n{'-' * len(title)}\n\n" + "\n".join(entries) + "\n"
    return text


def _entry(package: ModuleType, name: str) -> tuple[str, str]:
    """The section of a public name, and what shows it."""
    thing, place = getattr(package, name), f"{package.__name__}::{name}"
    if inspect.isclass(thing):
        if issubclass(thing, BaseException):
            return "Errors", f".. autoexception:: {place}\n"
        return "Classes", f".. autoclass:: {place}\n   :members:\n   :undoc-members:\n"
    if callable(thing):
        return "Functions", f".. autofunction:: {place}\n"
    values = "".join(f"   - ``{value}``\n" for value in thing)  # of a table, its keys
    return "Constants", f".. py:data:: {name}\n\n   {_said_of(package, name)}\n\n{values}"


def _said_of(package: ModuleType, name: str) -> str:
    """The comment above a constant, in the module that assigns it."""
    own = sorted(sys.modules, key=lambda module: not module.startswith(package.__name__))
    for module in [module for module in own if module.startswith("rankscope.")]:
        assigned = re.search(rf"((?:^# .*\n)*)^{name}\b(?:: .+)? = ", inspect.getsource(sys.modules[module]), re.M)
        if assigned:
            return " ".join(re.findall(r"^# (.*)$", assigned[1], re.M)).replace("*", r"\*")
    raise ValueError(f"{name} of {package.__name__} is assigned in no module")
