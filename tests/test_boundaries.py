"""Which package may import which, what importing one loads, and what packages offer.

The contracts between packages stand in pyproject.toml, under ``[tool.importlinter]``. Each check here is also seen to
fail on a small package that breaks it.
"""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
LIB = ROOT / "lib"
PACKAGE = "rankscope"

HEAVY = ("torch", "matplotlib", "ipywidgets")


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


# ---- what importing a module loads


def own_imports(path: Path) -> Iterator[str]:
    """The packages that a module imports itself when it is imported: not in functions, and not for type checkers."""
    nodes: list[ast.AST] = list(ast.parse(path.read_text(encoding="utf-8")).body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes += ast.iter_child_nodes(node)


IMPORTS = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sys.modules)
"""


def loads(root: Path, names: Sequence[str]) -> set[str]:
    """The heavy packages that a new interpreter has loaded once it imported all of these modules."""
    command = [sys.executable, "-c", IMPORTS, *names]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return set(HEAVY) & set(done.stdout.split())


def weight_problems(root: Path) -> list[str]:
    """Modules that load a heavy package which they do not import themselves: whoever imports them pays for it.

    Those that may load the same are imported together, and one by one only if they load more than they may.
    """
    groups: dict[frozenset[str], list[str]] = {}
    for name, path in modules(root).items():
        if not name.endswith(".__main__"):
            own = frozenset(HEAVY) & frozenset(own_imports(path))
            groups.setdefault(own, []).append(name)
    problems = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        together = list(pool.map(lambda names: loads(root, names), groups.values()))
        for (own, names), loaded in zip(groups.items(), together, strict=True):
            if loaded <= own:
                continue
            for name, alone in zip(names, pool.map(lambda name: loads(root, [name]), names), strict=True):
                problems += [f"import {name} loads {heavy}" for heavy in alone - own]
    return sorted(problems)


@pytest.mark.oracle
def test_only_modules_that_import_a_heavy_package_load_it() -> None:
    problems = weight_problems(LIB)
    assert not problems, "\n".join(
        [
            *problems,
            f"A module may load {', '.join(HEAVY)} only if it imports it itself, at its top. Move the import that "
            "brings it into the function that needs it, or give the name to `lazy` in the package's __init__.py.",
        ]
    )


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"rankscope/__init__.py": "", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if path.parent != root and not (path.parent / "__init__.py").exists():
            (path.parent / "__init__.py").write_text("")
    return root


def test_a_heavy_package_that_comes_through_another_module_is_caught(tmp_path: Path) -> None:
    files = {
        "torch.py": "",
        "rankscope/timeline.py": "import torch",
        "rankscope/sampling/files.py": "import rankscope.timeline",
        "rankscope/sampling/lazy.py": "def later():\n    import torch",
        "rankscope/sampling/typed.py": "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    import torch",
        "rankscope/zero/__init__.py": "from ..timeline import torch",
    }
    assert weight_problems(tree(tmp_path, files)) == [
        "import rankscope.sampling.files loads torch",
        "import rankscope.zero loads torch",
    ]


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
