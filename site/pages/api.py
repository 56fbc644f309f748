"""The API's pages, as reStructuredText: one for each room, with every public name that it has, from docstrings."""

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

Every public name, by room. Every line behind ``>>>`` is tested.

"""


def rooms() -> list[ModuleType]:
    """Every package and module right below rankscope that says, by ``__all__``, what is public in it."""
    names = [entry.name for entry in pkgutil.iter_modules(rankscope.__path__) if not entry.name.startswith("_")]
    modules = (import_module(f"rankscope.{name}") for name in names)
    return [module for module in modules if getattr(module, "__all__", None)]


def pages() -> dict[str, str]:
    """The API's index and the page of each room, by file name."""
    names = [room.__name__ for room in rooms()]
    heads = [(inspect.getdoc(room) or "").partition("\n")[0] for room in rooms()]
    index = _INDEX + "".join(f":doc:`{name}`\n   {head}\n\n" for name, head in zip(names, heads, strict=True))
    index += ".. toctree::\n   :hidden:\n\n" + "".join(f"   {name}\n" for name in names)
    return {"index.rst": index, **{f"{room.__name__}.rst": room_page(room) for room in rooms()}}


def type_aliases() -> dict[str, str]:
    """What rooms call a longer type: signatures show its name."""
    rooms()  # which loads their modules
    modules = [module for name, module in sys.modules.items() if name.startswith("rankscope.")]
    names = {name for module in modules for name, value in vars(module).items() if get_origin(value) is not None}
    return {name: name for name in names}


def room_page(room: ModuleType) -> str:
    """What the room is for, then its functions, classes, errors and constants."""
    sections: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors": [], "Constants": []}
    for name in sorted(room.__all__, key=str.lower):
        section, text = _entry(room, name)
        sections[section].append(text)
    text = f"{room.__name__}\n{'=' * len(room.__name__)}\n\n.. automodule:: {room.__name__}\n   :no-members:\n\n"
    for title, entries in sections.items():
        if entries:
            text += f"{title}\n{'-' * len(title)}\n\n" + "\n".join(entries) + "\n"
    return text


def _entry(room: ModuleType, name: str) -> tuple[str, str]:
    """The section of a public name, and what shows it."""
    thing, place = getattr(room, name), f"{room.__name__}::{name}"
    if inspect.isclass(thing):
        if issubclass(thing, BaseException):
            return "Errors", f".. autoexception:: {place}\n"
        return "Classes", f".. autoclass:: {place}\n   :members:\n   :undoc-members:\n"
    if callable(thing):
        return "Functions", f".. autofunction:: {place}\n"
    values = "".join(f"   - ``{value}``\n" for value in thing)  # of a table, its keys
    return "Constants", f".. py:data:: {name}\n\n   {_said_of(room, name)}\n\n{values}"


def _said_of(room: ModuleType, name: str) -> str:
    """The comment above a constant, in the module that assigns it."""
    own = sorted(sys.modules, key=lambda module: not module.startswith(room.__name__))
    for module in [module for module in own if module.startswith("rankscope.")]:
        found = re.search(rf"((?:^# .*\n)*)^{name}\b(?:: .+)? = ", inspect.getsource(sys.modules[module]), re.M)
        if found:
            return " ".join(re.findall(r"^# (.*)$", found[1], re.M)).replace("*", r"\*")
    raise ValueError(f"{name} of {room.__name__} is assigned in no module")
