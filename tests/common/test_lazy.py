"""What Tab completes: the public names of a package, and the public packages and modules in a subpackage."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import rankscope
from rankscope.common.extensions import subpackages
from rankscope.common.lazy import lazy

SHOW = """
import importlib, json, sys
package = importlib.import_module(sys.argv[1])
names = dir(package)
print(json.dumps({name: getattr(package, name).__name__ for name in sys.argv[2:] if name in names}))
"""


def public_modules(subpackage: str) -> list[str]:
    """The names of the modules and packages right below a subpackage that say what is public in them."""
    folder = Path(rankscope.__file__).parent / subpackage
    names = []
    for path in [*folder.glob("*.py"), *folder.glob("*/__init__.py")]:
        name = path.parent.name if path.name == "__init__.py" else path.stem
        targets = [
            ast.unparse(node.targets[0]) for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign)
        ]
        if "__all__" in targets and name != subpackage:
            names.append(name)
    return sorted(names)


@pytest.mark.slow
@pytest.mark.parametrize("subpackage", subpackages())
def test_tab_completes_the_public_modules_of_a_subpackage(subpackage: str) -> None:
    """In an interpreter that has imported the subpackage alone, because Python adds what was imported to it."""
    names = public_modules(subpackage)
    command = [sys.executable, "-c", SHOW, f"rankscope.{subpackage}", *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert json.loads(done.stdout) == {name: f"rankscope.{subpackage}.{name}" for name in names}


def test_a_name_that_a_module_has_cannot_be_lazy() -> None:
    with pytest.raises(ValueError, match="got 'assign' in 'rankscope.sampling'"):
        lazy("rankscope.sampling", {"assign": "assign"})
