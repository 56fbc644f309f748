"""Which package may import which, what importing one loads, and what packages offer.

The contracts between packages stand in pyproject.toml, under ``[tool.importlinter]``, and are seen to fail on a
copy of the library that breaks them.
"""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
LIB = ROOT / "lib"
PACKAGE = "rankscope"


def modules(root: Path) -> dict[str, Path]:
    """Every module below a source root, by its dotted name."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


# ---- contracts


def lint_imports(root: Path) -> str:
    """Return what import-linter says of the contracts in pyproject.toml about the packages below a source root."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    command += ["--config", str(ROOT / "pyproject.toml"), "--no-cache", "--no-logo"]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode == 0:
        return ""
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_contracts_between_packages_hold() -> None:
    report = lint_imports(LIB)
    assert not report, (
        f"{report}\nA module imports what its package may not import. Remove the import, or move the code to a package "
        "that may; the contracts, and why they are there, are in pyproject.toml under [tool.importlinter]."
    )


class WrongImport(NamedTuple):
    """A line that breaks a contract if it is added to a module, and what import-linter then reports."""

    module: str
    line: str
    report: str


WRONG_IMPORTS = [
    WrongImport("sampling/files.py", "from .. import figures", "sampling.files -> rankscope.figures"),
    WrongImport("sampling/kinds.py", "def later():\n    from ..box import Profile", "sampling.kinds -> rankscope.box"),
    WrongImport("timeline/events.py", "import rankscope.train.zero.model", "timeline.events -> rankscope.train.zero"),
    WrongImport("train/zero/model.py", "from ...box import Profile", "train.zero.model -> rankscope.box"),
    WrongImport("box/fit.py", "from ..train import zero", "box.fit -> rankscope.train"),
    WrongImport("box/fit.py", "from ..diagnose import diagnose", "box.fit -> rankscope.diagnose"),
    WrongImport("diagnose/trace.py", "from ..box import Profile", "diagnose.trace -> rankscope.box"),
    WrongImport("collectives/cost.py", "from ..sampling import assign", "collectives.cost -> rankscope.sampling"),
    WrongImport("pipeline/queues.py", "from ..collectives import verify", "pipeline.queues -> rankscope.collectives"),
    WrongImport("sampling/files.py", "from matplotlib import pyplot", "sampling.files -> matplotlib"),
    WrongImport("figures/svg.py", "import ipywidgets", "figures.svg -> ipywidgets"),
    WrongImport("explorers/core/samplers.py", "from torch import distributed", "explorers.core.samplers -> torch"),
    WrongImport("train/zero/model.py", "from . import run", "No cycles are allowed in rankscope.train.zero"),
    WrongImport("cellar.py", "", "cellar"),
]


@pytest.fixture(scope="module")
def report_of_all(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What import-linter says of a copy of the library into which all wrong imports were put at once."""
    root = tmp_path_factory.mktemp("spoilt")
    shutil.copytree(LIB / PACKAGE, root / PACKAGE, ignore=shutil.ignore_patterns("__pycache__", "*.json"))
    for wrong in WRONG_IMPORTS:
        with (root / PACKAGE / wrong.module).open("a", encoding="utf-8") as file:
            file.write(f"\n{wrong.line}\n")
    return lint_imports(root)


@pytest.mark.oracle
@pytest.mark.parametrize("wrong", WRONG_IMPORTS, ids=lambda wrong: wrong.report)
def test_an_import_that_breaks_a_contract_is_caught(report_of_all: str, wrong: WrongImport) -> None:
    assert wrong.report in report_of_all, (
        f"import-linter does not report {wrong.report!r}, although lib/rankscope/{wrong.module} contains "
        f"{wrong.line!r}. A contract in pyproject.toml under [tool.importlinter] must forbid it. The whole report:\n"
        + report_of_all
    )


# ---- what importing a package loads


@pytest.mark.parametrize("package", ["sampling", "pipeline", "collectives", "timeline", "figures", "explorers"])
def test_a_package_loads_no_heavy_one(package: str) -> None:
    code = f"import sys, rankscope.{package}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert not {"torch", "matplotlib", "ipywidgets"} & set(done.stdout.split())


# ---- what packages offer


def public_names(root: Path) -> dict[str, list[str]]:
    """What each package and module lists in ``__all__``."""
    found = {}
    for name, path in modules(root).items():
        text = path.read_text(encoding="utf-8")
        if "__all__" not in text:
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                found[name] = ast.literal_eval(node.value)
    return found


@pytest.mark.parametrize("name", public_names(LIB))
def test_every_public_name_is_there_and_in_dir(name: str) -> None:
    package = importlib.import_module(name)
    missing = set(package.__all__) - set(dir(package))
    assert not missing, (
        f"dir({name}) lacks {sorted(missing)}, which {name}.__all__ lists: define or import each, name its module in "
        "the call of `lazy`, or take it out of __all__."
    )
    for public in package.__all__:
        assert getattr(package, public) is not None, f"{name}.{public} is None: take it out of {name}.__all__."
