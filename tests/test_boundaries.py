"""The house holds: pure modules stay light, and no arrow runs back up.

Each check is a function from a source root to a list of problems, so that it can be seen to fail on a wrong one.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from conftest import LONGEST

LIB = Path(__file__).parents[1] / "lib"
NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
PACKAGE = "rankscope"

HEAVY = ("torch", "matplotlib", "ipywidgets")
# Every module is pure but these, and each of these may load one heavy package only.
RUNNERS = {
    "rankscope.sampling.torch_samplers": "torch",
    "rankscope.sampling.loader_audit": "torch",
    "rankscope.collectives.local": "torch",
    "rankscope.collectives.wire.group": "torch",
    "rankscope.collectives.wire.run": "torch",
    "rankscope.machine.measuring.rank": "torch",
    "rankscope.machine.measuring.t*": "torch",
    "rankscope.parts.datasets": "torch",
    "rankscope.pipeline.dataloader": "torch",
    "rankscope.transfer.batches": "torch",
    "rankscope.transfer.pre*": "torch",
    "rankscope.transfer.record": "torch",
    "rankscope.gradients": "torch",
    "rankscope.ddp.followed": "torch",
    "rankscope.diagnose.live": "torch",
    "rankscope.diagnose.patches": "torch",
    "rankscope.ddp.run": "torch",
    "rankscope.zero.run": "torch",
    "rankscope.uneven.run": "torch",
    "rankscope.course.*": "torch",
    "rankscope.pipeline_parallel.run": "torch",
    "rankscope.figures.axes": "matplotlib",
    "rankscope.figures.lines": "matplotlib",
    "rankscope.figures.profiles": "matplotlib",
    "rankscope.yours": "torch",
    "rankscope.explorers.*panel": "ipywidgets",
}

TOPICS = {"ddp", "nccl", "gradients", "data_parallel", "zero", "uneven", "pipeline_parallel"}
TOPICS |= {"diagnose"}
FLOORS = [
    {"values"},
    {"timeline", "cluster", "networks", "workers", "ranks"},
    {"sampling", "pipeline", "parts", "transfer", "collectives"},
    {"machine"},
    TOPICS,
    {"figures"},
    {"explorers", "cli", "course", "doctor", "exercises", "yours", "pytest_plugin"},
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
STRANGERS = FLOORS[2]  # neighbours that do not import one another…
# …but a part file is a shard, and loads in the times of a `Service`; a pipeline's items are a rank's indices
ACQUAINTED = {("pipeline", "sampling"), ("transfer", "pipeline"), ("parts", "sampling"), ("parts", "pipeline")}
ONLY = {"matplotlib": "figures", "ipywidgets": "explorers"}
NO_PROCESS_GROUP = {"figures", "explorers"}
MOST_NAMES = 15  # that a room offers
# the last: machine.bank, explorers.boxes, nccl, player, data_parallel; nccl, four; exercises.score; audits, three;
# diagnose, six: read_traces, diagnose, what_if, read_dumps, explain_hang, watch
MOST_NAMES_IN_ALL = 167


def modules(root: Path) -> dict[str, Path]:
    """Every module below a source root, by its dotted name."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


# ---- what importing a module loads


IMPORTS = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sys.modules)
"""


def loads(root: Path, names: Sequence[str]) -> set[str]:
    """The heavy packages that a new interpreter has loaded once it imported all of these modules."""
    command, paths = [sys.executable, "-c", IMPORTS, *names], {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, env=paths, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return set(HEAVY) & set(done.stdout.split())


def allowed(module: str) -> frozenset[str]:
    return frozenset(heavy for pattern, heavy in RUNNERS.items() if fnmatch(module, pattern))


def weight_problems(root: Path) -> list[str]:
    """Modules that may load the same are imported together, and one by one only if they load more than they may."""
    names = [name for name in modules(root) if not name.endswith(".__main__")]
    groups = [(may, [name for name in names if allowed(name) == may]) for may in set(map(allowed, names))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        together = pool.map(lambda group: loads(root, group[1]), groups)
        doubtful = [name for (may, group), found in zip(groups, together, strict=True) if found - may for name in group]
        alone = list(pool.map(lambda name: loads(root, [name]) - allowed(name), doubtful))
    return sorted(f"import {name} loads {one}" for name, extra in zip(doubtful, alone, strict=True) for one in extra)


# ---- who imports whom


def imports(path: Path, package: list[str]) -> Iterator[tuple[int, str]]:
    """Every import in a file, inside functions too, as (line, absolute dotted name)."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name, argument = ast.unparse(node.func).split(".")[-1], str(node.args[0].value)
            if name in {"import_module", "__import__"}:
                dots = len(argument) - len(argument.lstrip("."))
                above = package[: len(package) - dots + 1] if dots else []
                yield node.lineno, ".".join([*above, argument.lstrip(".")])
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.distributed":
            yield node.lineno, "torch.distributed"


def room_of(module: str) -> str | None:
    """`rankscope.sampling.files` stands in `sampling`, `__main__` in `cli`; the package and strangers in none."""
    parts = module.split(".")
    if parts == [PACKAGE, "__main__"]:
        return "cli"
    inside = parts[0] == PACKAGE and len(parts) > 1 and not parts[1].startswith("__")
    return parts[1] if inside else None


def arrow_problem(own: str | None, target: str) -> str | None:
    """What is wrong with a module in room `own` importing `target`, if anything is."""
    top = target.split(".")[0]
    if top in ONLY and own != ONLY[top]:
        return f"only {ONLY[top]} imports {top}"
    if own in NO_PROCESS_GROUP and f"{target}.".startswith("torch.distributed."):
        return f"{own} never imports a process group"
    other = room_of(target)
    if other is None or other == own:
        return None
    if other not in FLOOR:
        return f"{other} stands on no floor: name it in FLOORS"
    if own is None or FLOOR[other] > FLOOR[own]:
        return "the arrow runs up"
    if {own, other} <= STRANGERS and (own, other) not in ACQUAINTED:
        return f"{own} and {other} do not import each other"
    return None


def arrow_problems(root: Path) -> list[str]:
    problems = []
    for name, path in modules(root).items():
        own = room_of(name)
        if own is not None and own not in FLOOR:
            problems.append(f"{name}: {own} stands on no floor: name it in FLOORS")
            continue
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for line, target in sorted(set(imports(path, package))):
            problem = arrow_problem(own, target)
            if problem:
                problems.append(f"{name}:{line} imports {target}: {problem}")
    return problems


def circle_problems(root: Path) -> list[str]:
    """Circles of modules that import each other, at the top of a file or inside a function."""
    known, graph = modules(root), TopologicalSorter[str]()
    for name, path in known.items():
        is_package = path.name == "__init__.py"
        package = name.split(".") if is_package else name.split(".")[:-1]
        for _, target in imports(path, package):
            found = next((one for one in (target, target.rpartition(".")[0]) if one in known), name)
            # a package's face gathers its own modules: that is no circle, since none of them needs the face
            if found != name and not (is_package and found.startswith(f"{name}.")):
                graph.add(name, found)
    try:
        graph.prepare()
    except CycleError as error:
        return [" imports ".join(reversed(error.args[1]))]
    return []


# ---- what rooms offer


def faces(root: Path) -> dict[str, list[str]]:
    """What each room, a package or a single file, lists in ``__all__``."""
    found = {}
    for name, path in modules(root).items():
        if name.count(".") == 1:
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                    found[name] = ast.literal_eval(node.value)
    return found


def face_problems(root: Path) -> list[str]:
    found = faces(root)
    problems = [f"{room} offers {len(names)} names" for room, names in found.items() if len(names) > MOST_NAMES]
    total = sum(map(len, found.values()))
    return problems + [f"the rooms offer {total} names"] * (total > MOST_NAMES_IN_ALL)


def deep_imports(notebook: Path) -> list[str]:
    """Imports of a notebook from inside a room, where its face should do."""
    sources = ["".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"]]
    return re.findall(rf"(?:from|import) +({PACKAGE}\.\w+\.[\w.]+)", "\n".join(sources))


# ---- the library itself


def test_pure_modules_load_nothing_heavy() -> None:
    found = weight_problems(LIB)
    assert not found, "\n".join(found)


def test_no_arrow_runs_back_up() -> None:
    found = arrow_problems(LIB)
    assert not found, "\n".join(found)


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert not circle_problems(LIB)


def test_rooms_have_small_faces() -> None:
    found = face_problems(LIB)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("room", faces(LIB))
def test_every_public_name_is_there_and_in_dir(room: str) -> None:
    face = importlib.import_module(room)
    assert set(face.__all__) <= set(dir(face))
    for name in face.__all__:
        assert getattr(face, name) is not None


def test_no_notebook_imports_from_inside_a_room() -> None:
    found = {path.name: names for path in sorted(NOTEBOOKS.glob("*.ipynb")) if (names := deep_imports(path))}
    assert not found


# ---- each check, seen to fail


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"rankscope/__init__.py": "", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if path.parent != root and not (path.parent / "__init__.py").exists():
            (path.parent / "__init__.py").write_text("")
    return root


def test_a_heavy_import_is_caught_directly_and_through_another_module(tmp_path: Path) -> None:
    files = {
        "torch.py": "",
        "rankscope/timeline.py": "import torch",
        "rankscope/sampling/files.py": "import rankscope.timeline",
        "rankscope/sampling/torch_samplers.py": "import torch",
        "rankscope/sampling/lazy.py": "def later():\n    import torch",
    }
    assert weight_problems(tree(tmp_path, files)) == [
        "import rankscope.sampling.files loads torch",
        "import rankscope.timeline loads torch",
    ]


def test_a_runner_may_load_its_own_heavy_package_and_no_other(tmp_path: Path) -> None:
    files = {"torch.py": "", "matplotlib.py": "", "rankscope/figures/axes.py": "import matplotlib, torch"}
    assert weight_problems(tree(tmp_path, files)) == ["import rankscope.figures.axes loads torch"]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("sampling/a.py", "from rankscope.figures import assignment", "the arrow runs up"),
        ("sampling/a.py", "from rankscope import figures", "the arrow runs up"),
        ("sampling/a.py", "from .. import machine", "the arrow runs up"),
        ("sampling/a.py", "from ..machine.fit import line", "the arrow runs up"),
        ("sampling/deep/a.py", "from ...machine import fit", "the arrow runs up"),
        ("sampling/__init__.py", "from ..zero import memory", "the arrow runs up"),
        ("timeline.py", "from . import cli", "the arrow runs up"),
        ("timeline.py", "def f():\n    import rankscope.zero.model", "the arrow runs up"),
        ("timeline.py", "import importlib\nimportlib.import_module('rankscope.cli')", "the arrow runs up"),
        ("sampling/a.py", "__import__('rankscope.cli')", "the arrow runs up"),
        ("machine/a.py", "import importlib\nimportlib.import_module('..cli', __package__)", "the arrow runs up"),
        ("__init__.py", "from .sampling import assign", "the arrow runs up"),
        ("collectives/a.py", "from rankscope.sampling import assign", "do not import each other"),
        ("sampling/a.py", "import rankscope.pipeline", "do not import each other"),
        ("sampling/a.py", "import rankscope.cellar", "stands on no floor"),
        ("cellar/a.py", "", "stands on no floor"),
        ("sampling/a.py", "import matplotlib.pyplot as plt", "only figures imports matplotlib"),
        ("explorers/a.py", "from matplotlib import pyplot", "only figures imports matplotlib"),
        ("figures/a.py", "from ipywidgets import HTML", "only explorers imports ipywidgets"),
        ("figures/a.py", "import torch.distributed as dist", "never imports a process group"),
        ("figures/a.py", "from torch import distributed", "never imports a process group"),
        ("explorers/a.py", "import torch\ntorch.distributed.get_rank()", "never imports a process group"),
        ("explorers/a.py", "from torch.distributed import get_rank", "never imports a process group"),
    ],
)
def test_a_wrong_arrow_is_caught(tmp_path: Path, name: str, text: str, problem: str) -> None:
    found = arrow_problems(tree(tmp_path, {f"rankscope/{name}": text}))
    assert found
    assert all(problem in line for line in found)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("parts/datasets.py", "from rankscope.sampling import shard_files"),
        ("cluster.py", "from .timeline import Timeline\nfrom rankscope import __version__"),
        ("zero/a.py", "import torch.distributed\nfrom ..collectives import verify"),
        ("explorers/a.py", "import ipywidgets\nfrom ..figures import assignment"),
        ("sampling/a.py", "from .files import shard_files\nfrom . import files"),
        ("__main__.py", "from .cli import main"),
    ],
)
def test_a_right_arrow_is_let_through(tmp_path: Path, name: str, text: str) -> None:
    assert arrow_problems(tree(tmp_path, {f"rankscope/{name}": text})) == []


def test_a_circle_is_caught(tmp_path: Path) -> None:
    files = {
        "rankscope/zero/__init__.py": "from .model import memory",
        "rankscope/zero/model.py": "from . import run",
        "rankscope/zero/run.py": "def later():\n    from ..zero.model import memory",
    }
    (circle,) = circle_problems(tree(tmp_path, files))
    assert set(circle.split(" imports ")) == {"rankscope.zero.model", "rankscope.zero.run"}


def test_a_large_face_is_caught(tmp_path: Path) -> None:
    files = {"rankscope/zero/__init__.py": f"__all__ = {[f'name{number}' for number in range(16)]}"}
    assert face_problems(tree(tmp_path, files)) == ["rankscope.zero offers 16 names"]


@pytest.mark.parametrize(
    "line",
    [
        "from rankscope.zero.model import memory",
        "import rankscope.zero.model as model",
        "from rankscope.a.b.c import d",
    ],
)
def test_an_import_from_inside_a_room_is_caught(tmp_path: Path, line: str) -> None:
    notebook = tmp_path / "deep.ipynb"
    notebook.write_text(json.dumps({"cells": [{"source": ["from rankscope.zero import memory\n", line]}]}))
    assert len(deep_imports(notebook)) == 1


def test_the_files_that_tests_begin_with_are_there() -> None:
    assert [name for name in LONGEST if not (LIB.parent / name).exists()] == []
