"""The library without some of its subpackages: what is left imports, and the core passes its own tests.

A copy of the library lacks their folders, and an interpreter of its own imports that copy.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from rankscope.cli.registry import commands
from rankscope.common.extensions import Extension, subpackages, with_their_needs
from rankscope.explorers.entries import catalogue

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "lib" / "rankscope"
SUBPACKAGES = ("box", "course", "diagnose", "train")
REMOVED = [removed for count in range(1, 5) for removed in combinations(SUBPACKAGES, count)]
# without one of them, and without all, every explorer is opened, and torch is there, which takes long to import
THOROUGH = [removed for removed in REMOVED if len(removed) in (1, 4)]
FAST_TESTS = "not slow and not oracle and not browser and not gpu"

LEFT = """
import contextlib, importlib, io, json, sys

import rankscope

names = json.loads(sys.argv[1])
thorough = json.loads(sys.argv[2])
if not thorough:
    sys.modules["torch"] = None

from rankscope.cli import app, main

text = io.StringIO()
with contextlib.redirect_stdout(text):
    code = main(["--help"])

from rankscope import explorers

gallery = explorers.gallery()
entries = [name for _, name in gallery.children[0].options]
without_picture = []
for name in entries if thorough else entries[:1]:
    gallery.children[0].value = name
    if "<svg" not in gallery.still():
        without_picture.append(name)

failed = {}
for name in names:
    try:
        importlib.import_module(name)
    except Exception as error:
        lacks = getattr(error, "name", None) or ""
        if thorough or lacks.partition(".")[0] != "torch":
            failed[name] = repr(error)

print(json.dumps({
    "file": rankscope.__file__,
    "code": code,
    "help": text.getvalue(),
    "commands": [command.name for command in app.registered_commands],
    "explorers": entries,
    "without_picture": without_picture,
    "failed": failed,
    "watch": "watch" in dir(rankscope),
}))
"""


def copy_without(removed: tuple[str, ...], folder: Path) -> Path:
    """Copy the library without some subpackages into a folder, compiled modules and all."""
    copy = folder / "rankscope"
    shutil.copytree(LIBRARY, copy)
    for name in removed:
        shutil.rmtree(copy / name)
    return copy


def usable_without(removed: tuple[str, ...]) -> set[str]:
    """Return the subpackages that are left with everything that they need."""
    left = {name: extension for name, extension in subpackages().items() if name not in removed}
    return set(with_their_needs(left))


def part_of(module: str) -> str:
    """Return the part of the library that a module is in.

    >>> part_of("rankscope.box.commands.nccl")
    'box'
    """
    return module.split(".")[1]


def modules_left(copy: Path, usable: set[str]) -> list[str]:
    """Return the names of all modules of a copy, except those of a subpackage that lacks another one."""
    names = []
    for path in sorted(copy.rglob("*.py")):
        parts = path.relative_to(copy.parent).with_suffix("").parts
        if len(parts) > 2 and parts[1] in SUBPACKAGES and parts[1] not in usable:
            continue
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def environment(copy: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(copy.parent)}


def left_in(copy: Path, usable: set[str], thorough: bool) -> dict[str, Any]:
    """Import all that is left, ask for help and open the gallery in an interpreter that has only this copy.

    Only where that is `thorough` is torch there, and each explorer is opened.
    """
    names = json.dumps(modules_left(copy, usable))
    command = [sys.executable, "-c", LEFT, names, json.dumps(thorough)]
    done = subprocess.run(command, cwd=copy.parent, env=environment(copy), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert Path(found["file"]).parent == copy
    return found


def look(removed: tuple[str, ...], folder: Path) -> dict[str, Any]:
    folder.mkdir()
    copy = copy_without(removed, folder)
    found = left_in(copy, usable_without(removed), removed in THOROUGH)
    shutil.rmtree(folder)
    return found


@pytest.fixture(scope="module")
def looks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, ...], Future[dict[str, Any]]]]:
    """What is found without each set of subpackages, two at a time; those that nobody waits for are given up."""
    folder = tmp_path_factory.mktemp("left")
    pool = ThreadPoolExecutor(2)
    yield {removed: pool.submit(look, removed, folder / "-".join(removed)) for removed in REMOVED}
    pool.shutdown(cancel_futures=True)


@pytest.mark.oracle
@pytest.mark.parametrize("removed", REMOVED, ids="-".join)
def test_what_is_left_imports_and_shows_what_is_installed(
    removed: tuple[str, ...], looks: dict[tuple[str, ...], Future[dict[str, Any]]]
) -> None:
    found = looks[removed].result()
    assert found["failed"] == {}

    parts = {name: part_of(function.__module__) for name, function in commands().items()}
    gone = set(SUBPACKAGES) - usable_without(removed)
    assert found["code"] == 0
    assert set(found["commands"]) == {name for name, part in parts.items() if part not in gone}
    for name, part in parts.items():
        listed = re.search(rf"(│ |rankscope ){name} ", found["help"]) is not None
        assert listed == (part not in gone), f"the help lists {name} of {part}: {listed}"
    assert found["watch"] == ("diagnose" not in removed)

    expected = {entry.name for entry in catalogue() if part_of(entry.show.__module__) not in gone}
    assert set(found["explorers"]) == expected
    assert found["without_picture"] == []


def test_every_subpackage_is_left_out_once() -> None:
    """So that a new one, which has an `extension`, cannot be forgotten here."""
    assert set(subpackages()) == set(SUBPACKAGES), (
        f"A folder with an extension.py is a subpackage: {sorted(subpackages())}. Name each in SUBPACKAGES in "
        "tests/test_subpackages.py, so that the library is tried without it."
    )
    assert len(REMOVED) == 2 ** len(SUBPACKAGES) - 1


def test_a_subpackage_without_what_it_needs_adds_nothing() -> None:
    found = {
        "a": Extension(needs=("b", "c")),
        "b": Extension(needs=("c",)),
        "c": Extension(needs=("nowhere",)),
        "d": Extension(),
    }
    assert list(with_their_needs(found)) == ["d"]
    assert list(with_their_needs(found | {"nowhere": Extension()})) == ["a", "b", "c", "d", "nowhere"]


def test_all_commands_are_there_whichever_module_is_imported_first() -> None:
    """A module with commands imported the program, which then listed the commands of that module's unfinished half."""
    code = "import rankscope.box.commands.machines\nfrom rankscope.cli import app\n"
    code += "print(*[command.name for command in app.registered_commands])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert set(done.stdout.split()) == set(commands())


# ---- the core's own tests


def core_alone(folder: Path) -> Path:
    """Copy the library and its tests without any subpackage, and return the folder of the copy."""
    (folder / "lib").mkdir()
    copy_without(SUBPACKAGES, folder / "lib")
    tests = folder / "tests"
    shutil.copytree(ROOT / "tests", tests, ignore=shutil.ignore_patterns("__pycache__"))
    for name in SUBPACKAGES:
        shutil.rmtree(tests / name)
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "notebooks" / "profiles", folder / "notebooks" / "profiles")  # what was recorded
    return folder


def core_tests(folder: Path) -> list[str]:
    """Return the tests of the parts that are in a copy: the folder or file in `tests` that is named after each."""
    paths = []
    for part in sorted((folder / "lib" / "rankscope").iterdir()):
        for test in (folder / "tests" / part.name, folder / "tests" / f"test_{part.name}"):
            is_folder = test.is_dir() and (test / "__init__.py").exists()
            if is_folder or test.name == "test_cluster.py":
                paths.append(str(test.relative_to(folder)))
    return paths


def run_core_tests(folder: Path, *paths: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n2", "--dist=loadfile", "-m", FAST_TESTS]
    command += ["-p", "no:cacheprovider", *paths]
    where = {**os.environ, "PYTHONPATH": str(folder / "lib")}
    for name in [name for name in where if name.startswith("PYTEST_")]:
        del where[name]  # of the run that this one is in
    return subprocess.run(command, cwd=folder, env=where, capture_output=True, text=True, timeout=1800)


@pytest.mark.oracle
def test_the_core_passes_its_own_tests_alone(tmp_path: Path) -> None:
    folder = core_alone(tmp_path)
    paths = core_tests(folder)
    assert {"tests/sampling", "tests/figures", "tests/explorers", "tests/test_cluster.py"} <= set(paths)
    done = run_core_tests(folder, *paths)
    assert done.returncode == 0, done.stdout[-6000:]
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) > 500, done.stdout[-1000:]


def with_one_wrong_import(library: Path) -> None:
    """Have a module of the core import a subpackage."""
    module = library / "sampling" / "assignment.py"
    line = "from ..common.checks"
    text = module.read_text(encoding="utf-8")
    assert f"\n{line}" in text
    module.write_text(text.replace(f"\n{line}", f"\nfrom ..box import Profile\n{line}", 1), encoding="utf-8")


def test_an_import_of_a_subpackage_is_caught(tmp_path: Path) -> None:
    copy = copy_without(("box",), tmp_path)
    with_one_wrong_import(copy)
    with pytest.raises(AssertionError, match="No module named 'rankscope.box'"):
        left_in(copy, usable_without(("box",)), thorough=False)


@pytest.mark.oracle
def test_an_import_of_a_subpackage_fails_the_tests_of_the_core(tmp_path: Path) -> None:
    folder = core_alone(tmp_path)
    assert run_core_tests(folder, "tests/sampling/test_audit.py").returncode == 0
    with_one_wrong_import(folder / "lib" / "rankscope")
    done = run_core_tests(folder, "tests/sampling/test_audit.py")
    assert done.returncode != 0
    assert "No module named 'rankscope.box'" in done.stdout
