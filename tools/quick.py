"""Run the tests nearest to what has changed since the last commit: fast ones only, and for a few seconds.

    python tools/quick.py [--list] [--seconds N]

A test file is near to a changed module if few imports lead from one to the other; the graph of imports says so.
Code that a test reaches without an import, as through the command line in another process, is not seen here.

It prints how many tests it leaves out; `make check` runs all fast ones, `make test` and `make oracles` the others.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import conftest  # noqa: E402 (of the root folder)

SOURCES = ("lib", "site", "tools", ".")  # the folders that modules are imported from, those inside others first
PACKAGES = ("rankscope", "tests", "pages")
FAST = "not (slow or browser or oracle)"
MARKERS = ["slow", "browser", "oracle"]
MOST_FILES = 12  # collecting a file costs up to a second
SECONDS = 6.0  # after which no further test begins
NO_TESTS_COLLECTED = 5  # pytest's exit status

EXAMPLE = re.compile(r"^\s*>>> ", re.MULTILINE)


class NearTest(NamedTuple):
    """A test file, and how many imports lead from it to what has changed. It sorts by what to run first."""

    distance: int
    is_elsewhere: bool  # not in the folder of the tests of the changed package
    path: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="only list the test files, nearest first")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="begin no test after so many seconds")
    options = parser.parse_args()

    changed = changed_files(ROOT)
    tests = near_tests(changed, ROOT)
    if options.list:
        print(*tests, sep="\n")
        return 0
    if not changed:
        print("quick: no file differs from the last commit, so there is no test to run")
        return 0
    if not tests:
        print("quick: no test imports or names what has changed; make check runs all fast tests")
        return 0
    fast = [test for test in tests if conftest.may_choose(FAST, (ROOT / test).read_text(encoding="utf-8"), MARKERS)]
    chosen = fast[:MOST_FILES]
    print(
        f"quick: {len(tests)} test files depend on what has changed, {len(tests) - len(fast)} of them slow;"
        f" these are the {len(chosen)} nearest:",
        *chosen,
        sep="\n  ",
        flush=True,
    )
    if not chosen:
        return 0
    # Without pytest's cache, conftest.py records no durations. Those of files that are cut short would spoil the order
    # of `make check`, which has the same markers.
    options_of_pytest = ["-q", "-p", "no:cacheprovider", "-m", FAST]
    status = pytest.main([*options_of_pytest, *chosen], plugins=[TimeLimit(options.seconds)])
    return 0 if status == NO_TESTS_COLLECTED else int(status)


def changed_files(root: Path) -> list[str]:
    """Return the files that differ from the last commit, and the new ones that git does not ignore."""
    differing = ["git", "diff", "--name-only", "--no-renames", "HEAD"]
    new = ["git", "ls-files", "--others", "--exclude-standard"]
    names = set[str]()
    for command in (differing, new):
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
        names.update(done.stdout.splitlines())
    return sorted(names)


def near_tests(changed: Iterable[str], root: Path) -> list[str]:
    """Return what pytest can run for these files, nearest first: test files, and modules and pages with examples."""
    graph = import_graph(root)
    near = set[NearTest]()
    for file in changed:
        if has_examples(root / file):
            near.add(NearTest(0, False, file))
        module = module_name(file)
        if module in graph.modules:
            near.update(importing_tests(graph, module, root))
        else:
            near.update(naming_tests(file, root))
    paths = dict.fromkeys(test.path for test in sorted(near))  # each once, where it is nearest
    return list(paths)


def import_graph(root: Path) -> grimp.ImportGraph:
    for folder in SOURCES:
        sys.path.insert(0, str(root / folder))
    return grimp.build_graph(*PACKAGES, cache_dir=str(root / ".import_linter_cache"))


def module_name(file: str) -> str:
    """Return the name that a file is imported by.

    >>> module_name("lib/rankscope/box/__init__.py")
    'rankscope.box'
    """
    path = Path(file)
    for source in SOURCES:
        if path.is_relative_to(source):
            path = path.relative_to(source)
            break
    parts = path.with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts)


def importing_tests(graph: grimp.ImportGraph, module: str, root: Path) -> set[NearTest]:
    """Return the test files that import a module, directly or through others, and itself if it is one."""
    part = part_of(module)
    tests = set[NearTest]()
    distances = distances_to(graph, module)
    for importer, distance in distances.items():
        path = Path(*importer.split(".")).with_suffix(".py")
        if path.name.startswith("test_") and (root / path).exists():
            tests.add(NearTest(distance, part not in (part_of(importer), part_of(importer, of_file=True)), str(path)))
    return tests


def distances_to(graph: grimp.ImportGraph, module: str) -> dict[str, int]:
    """Return each module that imports this one, by how many imports lead to it."""
    distances = {module: 0}
    latest = {module}
    while latest:
        importers = set[str]()
        for imported in latest:
            importers |= graph.find_modules_that_directly_import(imported)
        latest = importers - distances.keys()
        distance = max(distances.values()) + 1
        distances.update(dict.fromkeys(latest, distance))
    return distances


def part_of(module: str, of_file: bool = False) -> str:
    """Return the part of the library that a module or a test belongs to by its name.

    >>> part_of("rankscope.collectives.best"), part_of("tests.collectives.test_best")
    ('collectives', 'collectives')
    >>> part_of("tests.test_doctor", of_file=True)
    'doctor'
    """
    part = module.split(".")[1] if "." in module else module
    return part.removeprefix("test_") if of_file else part


def naming_tests(file: str, root: Path) -> set[NearTest]:
    """Return the test files whose text has the name of a file that is in no package, such as constraints.txt."""
    path = Path(file)
    is_telling = path.suffix != "" or path.parent == Path()
    names = {path.name if is_telling else file}
    if path.suffix == ".py":
        names |= {f"from {path.stem} import", f"import {path.stem}\n"}
    if path.suffix == ".ipynb":
        names.add("every_notebook")  # of tests that look into every notebook
    tests = set[NearTest]()
    for test in (root / "tests").rglob("test_*.py"):
        text = test.read_text(encoding="utf-8")
        if any(name in text for name in names):
            tests.add(NearTest(1, False, str(test.relative_to(root))))
    return tests


def has_examples(path: Path) -> bool:
    """Whether pytest is told to run the examples of this file."""
    is_read = path.suffix == ".py" or path.name in ("README.md", "CONTRIBUTING.md")
    return is_read and path.exists() and EXAMPLE.search(path.read_text(encoding="utf-8")) is not None


class TimeLimit:
    """Lets pytest begin no further test after some seconds, and says how many it has left out."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.spent_s = 0.0
        self.num_left_out = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool | None:
        if self.spent_s < self.seconds:
            return None
        self.num_left_out += 1
        return True  # nobody else has to run this test

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.spent_s += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.num_left_out:
            terminalreporter.write_line(
                f"quick: {self.seconds:g} s are over; {self.num_left_out} tests were left to make check"
            )


if __name__ == "__main__":
    sys.exit(main())
