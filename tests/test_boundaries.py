"""Which package may import which, what importing one needs, and what packages offer.

The contracts between packages stand in pyproject.toml, under ``[tool.importlinter]``, and are seen to fail on a
copy of the library that breaks them.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import grimp
import pytest

import rankscope

ROOT = Path(__file__).parents[1]
LIB = ROOT / "lib"
PACKAGE = "rankscope"
MODULES = ("__version__", "watch", "cluster", "gradients")  # these are no packages
PACKAGES = [PACKAGE, f"{PACKAGE}.box.nccl"]
PACKAGES += [f"{PACKAGE}.{name}" for name in rankscope.__all__ if name not in MODULES]
PACKAGES += [f"{PACKAGE}.train.{name}" for name in rankscope.train.__all__ if name not in MODULES]


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


WRONG_IMPORTS = [  # a line that breaks a contract if it is added to a module, and what import-linter then reports
    ("sampling/kinds.py", "def later():\n    from ..box import Profile", "sampling.kinds -> rankscope.box"),
    ("timeline/events.py", "import rankscope.train.zero.model", "timeline.events -> rankscope.train.zero"),
    ("panel/explorer.py", "from ..diagnose import diagnose", "panel.explorer -> rankscope.diagnose"),
    ("train/zero/model.py", "from ...box import Profile", "train.zero.model -> rankscope.box"),
    ("box/fit.py", "from ..train import zero", "box.fit -> rankscope.train"),
    ("timeline/picture.py", "from ..explorers import samplers", "timeline.picture -> rankscope.explorers"),
    ("cellar.py", "", "cellar"),
]


@pytest.mark.oracle
def test_an_import_that_breaks_a_contract_is_caught(tmp_path: Path) -> None:
    shutil.copytree(LIB / PACKAGE, tmp_path / PACKAGE, ignore=shutil.ignore_patterns("__pycache__", "*.json"))
    for module, line, _ in WRONG_IMPORTS:
        with (tmp_path / PACKAGE / module).open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
    report = lint_imports(tmp_path)
    assert [expected for _, _, expected in WRONG_IMPORTS if expected not in report] == []


# ---- circles, and names of modules in strings

TABLES = ("rankscope.figures", "rankscope.explorers", "rankscope.cli.program")  # which name what they offer
GRAPH = grimp.build_graph(PACKAGE, cache_dir=None)


def package_of(module: str) -> str:
    return module.rpartition(".")[0]


def circles(graph: grimp.ImportGraph) -> list[str]:
    """Return the imports, directly or not, of modules that import each other and lie in different rooms."""
    found = []
    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            is_circle = graph.chain_exists(importer=imported, imported=importer)
            if is_circle and package_of(imported) != package_of(importer):
                found.append(f"{importer} -> {imported}")
    return sorted(found)


def test_only_modules_of_one_room_import_each_other() -> None:
    assert circles(GRAPH) == []
    wrong = grimp.build_graph(PACKAGE, cache_dir=None)
    wrong.add_import(importer="rankscope.timeline.spans", imported="rankscope.collectives.simulate")
    assert "rankscope.timeline.spans -> rankscope.collectives.simulate" in circles(wrong)


def named_elsewhere(package: str, text: str) -> list[str]:
    """Return the strings of a module that name a module, or what is in one, outside the module's own package."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        named = f"{PACKAGE}.{node.value.replace(':', '.').lstrip('.').removeprefix('rankscope.')}"
        is_module = named in GRAPH.modules or package_of(named) in GRAPH.modules.difference({PACKAGE})
        is_written_so = "." in node.value or ":" in node.value  # else it is a word, such as the name of a lane
        if is_module and is_written_so and not f"{named}.".startswith(f"{package}."):
            found.append(node.value)
    return found


def test_no_string_names_a_module_of_another_room_but_in_the_tables() -> None:
    for module in GRAPH.modules.difference(TABLES):
        path = LIB.joinpath(*module.split("."))
        package = package_of(module)
        if path.is_dir():
            path /= "__init__"
            package = module
        assert named_elsewhere(package, path.with_suffix(".py").read_text()) == [], module
    for table in TABLES:
        path = LIB.joinpath(*table.split(".")).with_suffix(".py")
        assert named_elsewhere("rankscope.common", path.read_text()) != []
    for wrong in ("rankscope.box", "..box.profile", "box.profile:Profile", "rankscope.timeline.spans"):
        assert named_elsewhere("rankscope.sampling", f"import_module({wrong!r})") == [wrong]


# ---- what importing a package needs, and what packages offer

WITHOUT_EXTRAS = """
import sys
from importlib import import_module
class Missing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("torch", "cloudpickle", "matplotlib", "ipywidgets", "scipy"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing)
for package in sys.argv[1:]:
    import_module(package)
for use in (
    "from rankscope.sampling import audit_loader",
    "from rankscope.train import gradients",
    "from rankscope.ranks import launch; launch(int, 2)",
    "from rankscope import watch",
    "from rankscope.figures import curves",
    "from rankscope.explorers import zero; zero()",
):
    try:
        exec(use)
    except ModuleNotFoundError as error:
        print(error.name, *error.__notes__)
"""
LACKING = [
    ("torch", "torch"),
    ("torch", "torch"),
    ("cloudpickle", "torch"),
    ("torch", "torch"),
    ("matplotlib", "notebooks"),
    ("ipywidgets", "notebooks"),
]


def test_packages_import_nothing_heavy_and_a_name_that_lacks_an_extra_says_which() -> None:
    command = [sys.executable, "-c", WITHOUT_EXTRAS, *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    said = [f"{module} pip install 'rankscope[{extra}]'" for module, extra in LACKING]
    lines = done.stdout.splitlines()
    assert all(line.startswith(words) for line, words in zip(lines, said, strict=True)), lines


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_offers_its_public_names_and_no_others(name: str) -> None:
    package = import_module(name)
    assert set(dir(package)) == set(package.__all__)
    for public in package.__all__:
        assert getattr(package, public) is not None
    with pytest.raises(AttributeError, match="has no attribute 'find_spec'"):
        _ = package.find_spec
