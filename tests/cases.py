"""What each room of the tests adds to a battery: the records in its `figure_cases`, or in its `explorer_cases`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).parent


def cases_of_rooms(name: str) -> list[ModuleType]:
    """Return the modules of this name in all folders of the tests."""
    modules = []
    for path in sorted(TESTS.rglob(f"{name}.py")):
        folders = path.relative_to(TESTS.parent).parent.parts
        modules.append(import_module(".".join([*folders, name])))
    return modules
