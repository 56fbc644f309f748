"""`make setup` works only in a .venv that it created, and changes no other; programs start as they need it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("is_link", [True, False])
def test_a_foreign_environment_stays_as_it_is(tmp_path: Path, is_link: bool) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("lib", "tests", "notebooks", "docs"):
        (tmp_path / name).mkdir()
    foreign = tmp_path / ("elsewhere" if is_link else ".venv")
    foreign.mkdir()
    (foreign / "precious").write_text("mine")
    if is_link:
        (tmp_path / ".venv").symlink_to(foreign)
    for target in ("setup", "clean"):
        done = subprocess.run(["make", target], cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert (done.returncode != 0) == (target == "setup"), done.stdout + done.stderr
        assert [path.name for path in foreign.iterdir()] == ["precious"]
    assert (tmp_path / ".venv").is_symlink() == is_link


def test_programs_do_not_see_what_ends_jupyter() -> None:
    """Without docstrings, or beside nothing, JupyterLab and the tools end with a traceback."""
    environment = {**os.environ, "PYTHONOPTIMIZE": "2", "PYTHONSAFEPATH": "1", "PYTHONUTF8": "1"}
    command = ["make", "--eval", "seen:; @env", "seen"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
    seen = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert seen & {"PYTHONOPTIMIZE", "PYTHONSAFEPATH", "PYTHONUTF8"} == {"PYTHONUTF8"}, done.stderr
