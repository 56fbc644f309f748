"""Where an extra is missing: what needs none of it works, and everything else says which extra to install."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rankscope.common.extras import EXTRAS

from .box import logs_made
from .diagnose.made_dumps import sick, write

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
INSTALL = re.compile(r" needs \w+, which is not installed: pip install 'rankscope\[(\w+)\]'$")

# What is imported of packages whose own name does not say it.
BRINGS = {"scikit-learn": ("sklearn",), "matplotlib": ("matplotlib", "PIL"), "ipykernel": ("ipykernel", "IPython")}

# None of the packages of extras can be imported, as after a plain `pip install .`.
WITHOUT_EXTRAS = f"import sys\nsys.modules.update(dict.fromkeys({sorted(EXTRAS)}))\n"


def python(code: str, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter that has none of the extras."""
    command = [sys.executable, "-c", WITHOUT_EXTRAS + code, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_each_package_of_an_extra_that_the_library_imports_has_that_extra_in_the_table() -> None:
    known = {}
    for extra in ("torch", "notebooks"):
        for line in PROJECT["optional-dependencies"][extra]:
            name = canonicalize_name(Requirement(line).name)
            if name == "rankscope":
                continue
            for module in BRINGS.get(name, (name,)):
                known[module] = extra
    assert known == EXTRAS, (
        f"EXTRAS in lib/rankscope/common/extras.py must say which extra of pyproject.toml has each package: {known}"
    )


NAMES = """
import importlib, json, pkgutil
import rankscope

places = []
for module in pkgutil.iter_modules(rankscope.__path__, "rankscope."):
    if module.name not in ("rankscope.__main__", "rankscope.pytest_plugin"):
        places.append(module.name)
for subpackage in ("train", "box", "diagnose", "course"):
    package = importlib.import_module(f"rankscope.{subpackage}")
    places += [inner.name for inner in pkgutil.iter_modules(package.__path__, f"{package.__name__}.") if inner.ispkg]

found = {}
for place in places:
    try:
        package = importlib.import_module(place)
    except ModuleNotFoundError as error:
        found[place] = str(error)
        continue
    for name in getattr(package, "__all__", ()):
        try:
            getattr(package, name)
        except ModuleNotFoundError as error:
            found[f"{place}.{name}"] = str(error)
print(json.dumps(found))
"""


@pytest.mark.slow
def test_every_package_imports_and_each_public_name_is_there_or_names_its_extra() -> None:
    done = python(NAMES)
    assert done.returncode == 0, done.stderr
    failed = json.loads(done.stdout)
    assert {"rankscope.sampling.DistributedSampler", "rankscope.diagnose.watch"} <= set(failed)
    assert [place for place in failed if place.endswith(("train", "box", "diagnose", "course"))] == []
    for place, message in failed.items():
        assert INSTALL.search(message), f"{place}: {message}"
        assert message.startswith((place, "rankscope.figures needs")), message


# What is tried without extras, and what the error then begins with.
NEEDS = {
    "import rankscope; rankscope.watch": "rankscope.diagnose.watch needs torch",
    "from rankscope.sampling import DistributedSampler": "rankscope.sampling.DistributedSampler needs torch",
    "from rankscope.ranks import launch; launch(print, 2)": "rankscope.ranks needs torch",
    "from rankscope.box import measure; measure('a.json')": "rankscope.box.measure needs torch",
    "from rankscope import figures, sampling; figures.assignment(sampling.assign(10, 2))": (
        "rankscope.figures needs matplotlib"
    ),
    "import rankscope.train.gradients": "rankscope.train.gradients needs torch",
    "from rankscope import explorers; explorers.zero()": "rankscope.explorers.zero needs ipywidgets",
    "from rankscope import explorers; explorers.player()": "rankscope.explorers.player needs ipywidgets",
    "from rankscope import explorers; explorers.gallery()": "rankscope.explorers.gallery needs ipywidgets",
}
ELSEWHERE = "from rankscope.common.extras import naming_extras\nwith naming_extras('it'):\n    import nowhere"
ERRORS = """
import json

errors = {}
for code in json.loads(sys.argv[1]):
    try:
        exec(code, {})
    except ModuleNotFoundError as error:
        errors[code] = str(error)
print(json.dumps(errors))
"""


def test_the_error_names_the_extra_and_another_missing_package_keeps_its_own() -> None:
    done = python(ERRORS, json.dumps([*NEEDS, ELSEWHERE]))
    assert done.returncode == 0, done.stderr
    expected = {ELSEWHERE: "No module named 'nowhere'"}
    for code, needs in NEEDS.items():
        extra = "torch" if "torch" in needs else "notebooks"
        expected[code] = f"{needs}, which is not installed: pip install 'rankscope[{extra}]'"
    assert json.loads(done.stdout) == expected


STILLS = """
from rankscope import explorers
from rankscope.explorers.explorer import explorer_of

for name in explorers.__all__:
    if name != "gallery":
        explorer = explorer_of(getattr(explorers, name))
        now = explorer.at()
        print(name, explorer.still(now).startswith("<svg"), bool(explorer.report(now)))
"""


@pytest.mark.slow
def test_settings_pictures_and_reports_of_explorers_need_no_extra() -> None:
    done = python(STILLS)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) > 10
    assert [line for line in lines if not line.endswith("True True")] == []


COMMAND = "from rankscope.cli import main\nsys.exit(main(sys.argv[1:]))"


def commands() -> list[str]:
    """Every command of `rankscope --help`."""
    from rankscope.cli.program import app

    return [one.name or one.callback.__name__ for one in app.registered_commands]


# What each command is called with, and the extra that it needs.
BOX = "bank:dgx_h100_8"
MEASURED = str(ROOT / "notebooks" / "profiles" / "emulated_100mbit_5ms_4_ranks.json")
USES: dict[str, tuple[list[str], str]] = {
    "profile": (["-o", "box.json"], "torch"),
    "doctor": ([], ""),
    "diagnose": (["dumps"], ""),
    "bank": ([], ""),
    "show": ([BOX], ""),
    "compare": ([BOX, "bank:h100_8"], ""),
    "predict": ([BOX, "--num-bytes", "1MiB"], ""),
    "nccl": (["h100x8"], ""),
    "import": (["all_reduce.log", "-o", "box.json"], ""),
    "trace": ([MEASURED, "--algorithm", "ring", "--num-bytes", "1MiB", "-o", "ring.json"], ""),
}


def test_every_command_is_tried_without_extras() -> None:
    assert set(commands()) == set(USES), (
        "USES in tests/test_extras.py must say for each command what it is called with here, and which extra it needs."
    )


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("command", USES)
def test_a_command_works_without_extras_or_names_the_one_to_install(command: str, tmp_path: Path) -> None:
    arguments, extra = USES[command]
    (tmp_path / "all_reduce.log").write_text("\n".join(logs_made.table()), encoding="utf-8")
    (tmp_path / "dumps").mkdir()
    write(tmp_path / "dumps", sick("missing", 4, 2))
    done = python(COMMAND, command, *arguments, folder=tmp_path)
    named = INSTALL.search(done.stderr.strip())
    assert (named[1] if named else "") == extra, done.stderr
    assert done.returncode == (2 if extra else 0), done.stderr


@pytest.mark.slow
def test_doctor_says_which_extra_to_install() -> None:
    code = "from rankscope.doctor import examine\nfor one in examine(): print(one.name, one.remedy, sep=': ')"
    lines = python(code).stdout.splitlines()
    for name in ("Gloo", "NCCL"):
        assert f"{name}: pip install 'rankscope[torch]'" in lines
