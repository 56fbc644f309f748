"""Each test runs in exactly one of `make test` and `make oracles`; `.ci/run` runs both; and the order of test files."""

from __future__ import annotations

import inspect
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from nbval import kernel, plugin

import conftest
from tests.tools.execute_notebooks import every_notebook

ROOT = Path(__file__).parents[1]
PYTEST = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
MARKERS = [line.partition(":")[0] for line in PYTEST["markers"]]


class Selection(NamedTuple):
    """Which tests a target gives to pytest: files and folders, and an expression of markers."""

    paths: list[str]
    markers: str


def selection(target: str) -> Selection:
    """Return the tests that a target would run, as `make --dry-run` prints its recipe."""
    command = ["make", "--dry-run", "--always-make", "--no-print-directory", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True)
    lines = done.stdout.replace("\\\n", " ").splitlines()
    (line,) = [line for line in lines if "-m pytest" in line]
    words = shlex.split(line[line.index("-m pytest") + len("-m pytest") :].partition(";")[0])
    markers = words[words.index("-m") + 1]
    after = words[words.index("-m") + 2 :]
    return Selection([word for word in after if not word.startswith("-")], markers)


def all_marks() -> Iterator[dict[str, bool]]:
    """Yield every set of markers that a test can have."""
    for values in product([False, True], repeat=len(MARKERS)):
        yield dict(zip(MARKERS, values, strict=True))


def is_chosen(markers: str, marks: dict[str, bool]) -> bool:
    """Whether an expression of `pytest -m`, which has the form of Python's own, chooses a test with these marks."""
    return bool(eval(markers, {"__builtins__": {}}, marks))


def test_each_test_runs_in_exactly_one_of_make_test_and_make_oracles() -> None:
    selections = {"make test": selection("test"), "make oracles": selection("oracles")}
    for marks in all_marks():
        targets = [target for target, chosen in selections.items() if is_chosen(chosen.markers, marks)]
        names = [name for name, has in marks.items() if has]
        assert len(targets) == 1, (
            f"A test marked {names} runs in {' and '.join(targets) or 'neither make test nor make oracles'}. Each test "
            "must run in exactly one of the two: in the Makefile, make ORACLES the opposite of PRODUCT."
        )


def test_make_test_is_given_every_place_with_tests() -> None:
    notebooks = {f"{path.parent.relative_to(ROOT)}/*.ipynb" for path in every_notebook()}
    missing = {*PYTEST["testpaths"], *notebooks} - set(selection("test").paths)
    assert notebooks, "every_notebook() in tests/tools/execute_notebooks.py finds no notebook."
    assert not missing, f"make test leaves out {sorted(missing)}: add them to its recipe in the Makefile."


def test_make_oracles_is_given_every_place_that_can_hold_an_oracle() -> None:
    """Examples in docstrings and pages, and cells of notebooks, have no markers: they belong to `make test`."""
    paths = selection("oracles").paths
    assert "tests" in paths, f"make oracles only looks into {paths}: add tests to its recipe in the Makefile."
    others = [path for path in PYTEST["testpaths"] if path not in paths and (ROOT / path).is_dir()]
    for folder in others:
        marked = [str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py") if has_markers(path)]
        assert not marked, (
            f"{marked} mark tests, and make oracles only looks into {paths}: move these tests to tests/, or add "
            f"{folder} to the recipe of oracles in the Makefile."
        )


def has_markers(path: Path) -> bool:
    return "pytest.mark." in path.read_text(encoding="utf-8")


def test_make_check_is_part_of_make_test() -> None:
    fast = selection("check")
    product_tests = selection("test")
    fast_paths = fast.paths or PYTEST["testpaths"]  # where pytest looks when it is given none
    only_fast = sorted(set(fast_paths) - set(product_tests.paths))
    assert not only_fast, f"make check looks into {only_fast}, and make test does not: add them to its recipe."
    for marks in filter(partial(is_chosen, fast.markers), all_marks()):
        names = [name for name, has in marks.items() if has]
        assert is_chosen(product_tests.markers, marks), (
            f"A test marked {names} runs in make check and not in make test: in the Makefile, let FAST choose only "
            "tests that PRODUCT chooses."
        )
        assert not marks["slow"], (
            f"make check runs a test marked {names}: in the Makefile, let FAST leave slow tests out."
        )


# ---- files that are not imported, because no test in them is chosen


@pytest.mark.parametrize(
    ("expression", "text", "chosen"),
    [
        ("not slow", "def test_all(): pass", True),
        ("not slow", "pytestmark = pytest.mark.slow\n@pytest.mark.gpu", False),
        ("not slow", "pytestmark = [\n    pytest.mark.slow,\n    pytest.mark.usefixtures('a'),\n]\n", False),
        ("not slow", "@pytest.mark.slow\ndef test_all(): pass", True),
        ("browser or oracle", "pytestmark = pytest.mark.slow", False),
        ("browser or oracle", "pytestmark = pytest.mark.slow\n@pytest.mark.oracle", True),
        ("browser or oracle", "@SAMPLE_OR_EVERYTHING\ndef test_all(everything): pass", True),
        ("not (browser or oracle)", "pytestmark = [pytest.mark.slow, pytest.mark.oracle]", False),
        ("someone", "def test_all(): pass", True),
        ("slow(why='long')", "def test_all(): pass", True),
        ("not", "def test_all(): pass", True),
    ],
)
def test_a_file_is_left_out_only_if_no_test_in_it_can_be_chosen(expression: str, text: str, chosen: bool) -> None:
    assert conftest.may_choose(expression, text, MARKERS) is chosen, (
        f"With -m {expression!r}, conftest.py must {'read' if chosen else 'leave out'} a file with this text: {text!r}"
    )


def test_every_mark_that_a_test_file_imports_is_known_to_conftest() -> None:
    defined = tuple(text for name in conftest.IMPORTED_MARKS for text in (f"def {name}(", f"\n{name} = "))
    marking = []
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        marks = any(f"pytest.mark.{marker}" in text for marker in MARKERS)
        if marks and not path.name.startswith("test_") and not any(words in text for words in defined):
            marking.append(str(path))
    assert not marking, (
        f"{marking} mark tests of other files, which conftest.py leaves out unread if no test in them can be chosen: "
        "name what these files import in its IMPORTED_MARKS."
    )


# ---- notebooks


def test_a_kernel_that_does_not_answer_is_started_once_more_and_its_stderr_is_closed() -> None:
    """A machine that is suspended lets each wait end at once when it goes on."""
    calls = list[str]()
    num_needed = 1

    def start(**options: Any) -> str:
        assert not options["stderr"].closed
        calls.append(options["kernel_name"])
        if len(calls) < num_needed:
            raise RuntimeError("Kernel didn't respond in 300 seconds")
        return "a kernel"

    for num_needed in (1, 2):
        calls.clear()
        errors = io.StringIO()
        assert conftest.starting_twice(start)(kernel_name="python", stderr=errors) == "a kernel"
        assert calls == ["python"] * num_needed
        assert errors.closed
    num_needed = 3
    calls.clear()
    with pytest.raises(RuntimeError, match="Kernel didn't respond"):
        conftest.starting_twice(start)(kernel_name="python", stderr=io.StringIO())
    assert len(calls) == 2


def test_nbval_starts_kernels_as_conftest_expects() -> None:
    source = inspect.getsource(kernel.RunningKernel)
    assert "self.km, self.kc = start_new_kernel(" in source
    assert "stderr=open(os.devnull, 'w')" in source
    assert "self.output_timeout = 5" in inspect.getsource(plugin.IPyNbCell)


# ---- .ci/run


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of programs that do nothing, and a `make` that writes down what it is called with."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("apt-get", "sudo"):
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
    (folder / "make").write_text('#!/bin/sh\necho "$@" >>"$CALLS"\ncase "$FAILING" in *"$1"*) exit 2;; esac\n')
    for program in folder.iterdir():
        program.chmod(0o755)
    return folder


@pytest.mark.parametrize(("failing", "status"), [("", 0), ("test", 1), ("oracles", 1), ("test oracles", 1)])
def test_ci_runs_both_whatever_fails_and_says_which(failing: str, status: int, programs: Path, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "CALLS": str(calls), "FAILING": failing}
    done = subprocess.run(
        [ROOT / ".ci" / "run", "TORCH=2.11.0"], env=environment, capture_output=True, text=True, timeout=100
    )
    assert calls.read_text().splitlines() == ["test TORCH=2.11.0", "oracles TORCH=2.11.0"], done.stderr
    assert done.returncode == status
    assert ("ci: failed: " + failing in done.stderr) == bool(failing)


# ---- the order of files, and where examples are sought


class FakeItem:
    def __init__(self, nodeid: str, is_slow: bool = False) -> None:
        self.nodeid = nodeid
        self.is_slow = is_slow

    def get_closest_marker(self, name: str) -> Any:
        return name if name == "slow" and self.is_slow else None


def test_the_seconds_of_a_file_are_those_of_its_last_run_or_a_guess() -> None:
    items = [
        FakeItem("tests/test_a.py::test_1"),
        FakeItem("tests/test_b.py::test_1", is_slow=True),
        FakeItem("tests/test_b.py::test_2", is_slow=True),
        FakeItem("notebooks/a.ipynb::Cell 0"),
        FakeItem("tests/test_c.py::test_1", is_slow=True),
    ]
    seconds = conftest.expected_seconds(items, {"tests/test_c.py": 100.0})
    assert seconds == {
        "tests/test_a.py": 0.0,
        "tests/test_b.py": 2 * conftest.SLOW_S,
        "notebooks/a.ipynb": conftest.SLOW_S,
        "tests/test_c.py": 100.0,
    }


@pytest.fixture
def small_project(tmp_path: Path) -> Path:
    """A project with this one's conftest.py and two test files, of which the second takes longer."""
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text(encoding="utf-8"))
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --doctest-modules\n")
    (tmp_path / "test_a.py").write_text("def test_short(): pass\n")
    (tmp_path / "test_b.py").write_text("import time\n\ndef test_long():\n    time.sleep(0.2)\n")
    (tmp_path / "plain.py").write_text("raise SystemExit('doctest imports this')\n")
    (tmp_path / "example.py").write_text('"""\n>>> 1 + 1\n2\n"""\n')
    return tmp_path


def run_pytest(folder: Path, *words: str) -> list[str]:
    """Return the tests that pytest ran in a folder, in order."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # importing the plug-ins takes longer than the tests
    command = [sys.executable, "-m", "pytest", "-v", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r"^(\S+::\S+) PASSED", done.stdout, re.MULTILINE)


@pytest.mark.slow
def test_the_file_that_took_longest_is_first_the_next_time(small_project: Path) -> None:
    assert run_pytest(small_project) == ["example.py::example", "test_a.py::test_short", "test_b.py::test_long"]
    assert run_pytest(small_project)[0] == "test_b.py::test_long"
    assert run_pytest(small_project, "-p", "no:cacheprovider")[0] == "example.py::example"


@pytest.mark.slow
def test_a_module_without_examples_is_not_imported_for_them(small_project: Path) -> None:
    assert "example.py::example" in run_pytest(small_project)
