"""`make quick`: which test files are near to what has changed, and where it stops."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import quick

ROOT = Path(__file__).parents[1]


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, timeout=100)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit of two files."""
    (tmp_path / ".gitignore").write_text("*.log\n")
    (tmp_path / "a.py").write_text("A = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_what_has_changed_is_what_differs_from_the_last_commit_or_is_new(repository: Path) -> None:
    assert quick.changed_files(repository) == []
    (repository / "a.py").write_text("A = 2\n")
    (repository / "b.py").write_text("")
    (repository / "c.log").write_text("")
    (repository / "d.py").write_text("")
    git(repository, "add", "d.py")
    assert quick.changed_files(repository) == ["a.py", "b.py", "d.py"]
    (repository / "a.py").unlink()
    assert "a.py" in quick.changed_files(repository)


@pytest.fixture(scope="module", autouse=True)
def _one_graph() -> Iterator[None]:
    """The graph of imports is made once for all tests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quick, "import_graph", cache(quick.import_graph))
        yield


def near(*changed: str) -> list[str]:
    return quick.near_tests(changed, ROOT)


def test_the_tests_of_a_module_come_before_those_of_modules_that_use_it() -> None:
    tests = near("lib/rankscope/collectives/best.py")
    assert tests[0] == "lib/rankscope/collectives/best.py"  # its examples
    assert "tests/collectives/test_best.py" in tests[:4]
    assert tests.index("tests/collectives/test_best.py") < tests.index("tests/test_cli.py")
    assert "tests/sampling/test_assignment.py" not in tests[: quick.MOST_FILES]


def test_a_changed_test_file_is_the_first() -> None:
    assert near("tests/collectives/test_verify.py")[0] == "tests/collectives/test_verify.py"


def test_helpers_of_tests_lead_to_the_tests_that_import_them() -> None:
    assert "tests/box/test_verdict.py" in near("tests/box/made.py")


@pytest.mark.parametrize(
    ("changed", "test"),
    [
        ("constraints.txt", "tests/test_environment.py"),
        (".ci/run", "tests/test_targets.py"),
        ("tools/copies.py", "tests/test_copies.py"),
        ("site/pages/links.py", "tests/test_site.py"),
        ("notebooks/appendix/a6_your_own.ipynb", "tests/course/test_your_own.py"),
        ("notebooks/04_collectives.ipynb", "tests/test_notebooks.py"),
    ],
)
def test_other_files_lead_to_the_tests_that_import_or_name_them(changed: str, test: str) -> None:
    assert test in near(changed)


def test_a_file_that_is_gone_and_that_nothing_names_leads_nowhere() -> None:
    name = "_".join(["nowhere", "at", "all"])  # so that this file does not name it
    assert near(f"lib/rankscope/{name}.py") == []


TESTS = """
import time
import pytest

@pytest.mark.parametrize("number", range(20))
def test_one(number):
    time.sleep(0.1)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "status"), [("", 0), ("    assert number != 1\n", 1)])
def test_no_test_begins_after_the_time_is_over_and_what_ran_decides(ending: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(TESTS + ending)
    code = "import pytest, quick, sys\nsys.exit(pytest.main(['-q', 'test_a.py'], plugins=[quick.TimeLimit(0.35)]))"
    command = [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(ROOT / 'tools')!r})\n{code}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    (left_out,) = [line for line in done.stdout.splitlines() if line.startswith("quick: ")]
    number = int(left_out.split()[5])
    assert 16 <= number < 20
    assert left_out == f"quick: 0.35 s are over; {number} tests were left to make check"
    num_run = sum(int(count) for count in re.findall(r"(\d+) (?:passed|failed)", done.stdout))
    assert num_run == 20 - number
    assert done.returncode == status


def test_no_durations_are_recorded_of_files_that_may_be_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make check` has the same markers, and begins with the files that took longest."""
    calls: list[list[str]] = []

    def noted_main(arguments: list[str], plugins: list[object]) -> int:
        calls.append(arguments)
        return 0

    monkeypatch.setattr(sys, "argv", ["quick.py"])
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(quick, "changed_files", lambda root: ["tests/test_quick.py"])
    monkeypatch.setattr(pytest, "main", noted_main)
    assert quick.main() == 0
    (arguments,) = calls
    assert arguments[-1].startswith("tests/")
    assert "no:cacheprovider" in arguments
