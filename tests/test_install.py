"""What pip builds and installs is a `rankscope` that works, with the bank and all other data files.

`pip install .` and `pip install dist/*.whl` install the same wheel; the former builds it first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from rankscope import __version__

ROOT = Path(__file__).parents[1]
LIB = ROOT / "lib"
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE")
NOT_SHIPPED = shutil.ignore_patterns("__pycache__", "*.egg-info")
# What is installed here is used: setuptools to build, and the packages that rankscope needs. Nothing is downloaded.
OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "-q")


def run(*words: str | Path, folder: Path) -> str:
    """Run a program and return its output. It knows nothing of this checkout."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the package is built from, because setuptools leaves a folder `build` behind."""
    copy = tmp_path_factory.mktemp("source")
    shutil.copytree(LIB, copy / "lib", ignore=NOT_SHIPPED)
    for name in BUILT_FROM:
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    run(sys.executable, "-m", "pip", "wheel", *OFFLINE, "--wheel-dir", "dist", ".", folder=source)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.mark.oracle
def test_the_wheel_has_every_file_of_the_library(wheel: Path) -> None:
    tracked = {path for path in LIB.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    expected = {path.relative_to(LIB).as_posix() for path in tracked if "rankscope.egg-info" not in path.parts}
    with zipfile.ZipFile(wheel) as archive:
        assert expected <= set(archive.namelist())


@pytest.mark.oracle
def test_an_installed_rankscope_works_away_from_the_clone(wheel: Path, tmp_path: Path) -> None:
    clean = tmp_path / "clean"
    venv.create(clean, symlinks=True)
    python = clean / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", *OFFLINE, wheel, folder=tmp_path)
    # Packages of this environment can be imported there, except rankscope itself: it is installed as a link here, and
    # links of a folder that a .pth file names are not followed.
    packages = Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=tmp_path).strip()
    )
    (packages / "needed.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")

    place = run(python, "-c", "from rankscope import explorers; print(explorers.__file__)", folder=tmp_path)
    assert Path(place.strip()).is_relative_to(packages)
    command = clean / "bin" / "rankscope"
    assert run(command, "--version", folder=tmp_path) == f"rankscope {__version__}\n"
    assert "GB/s" in run(command, "show", "bank:dgx_h100_8", folder=tmp_path)
