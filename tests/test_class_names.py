"""A class name stands for one thing in the whole library, with or without a leading underscore."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

LIBRARY = Path(__file__).parents[1] / "lib"


def classes(folder: Path) -> dict[str, list[str]]:
    """Where each class of a folder's modules is defined, by its name without a leading underscore."""
    found = defaultdict[str, list[str]](list)
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(f"{path.relative_to(folder)}:{node.lineno}")
    return found


def test_a_class_name_exists_once_in_the_library() -> None:
    twice = [f"{name}: {', '.join(places)}" for name, places in classes(LIBRARY).items() if len(places) > 1]
    assert not twice, (
        "Several classes have one name. Give each a name of its own, which says what it is:\n" + "\n".join(twice)
    )


def test_a_name_that_is_there_twice_is_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Row: ...\n")
    (tmp_path / "other.py").write_text("def make():\n    class _Row: ...\n")
    assert classes(tmp_path) == {"Row": ["one.py:1", "other.py:2"]}
