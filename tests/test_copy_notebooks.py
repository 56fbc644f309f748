"""`make lab` copies what the reader lacks, whole or not at all, keeps what the reader has, and says what is behind."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.copy_notebooks import copy_missing

SCRIPT = Path(__file__).parent / "tools" / "copy_notebooks.py"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    originals = tmp_path / "notebooks"
    for name in ("a.ipynb", "appendix/b.ipynb", "__pycache__/c.pyc"):
        path = originals / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"first {name}\n" * 1000)
    return originals, tmp_path / "my notebooks"


def test_copies_that_are_behind_are_named_and_stay_as_they_are(folders: tuple[Path, Path]) -> None:
    originals, copies = folders
    assert copy_missing(originals, copies) == []
    assert [path.name for path in sorted(copies.rglob("[!.]*.*")) if ".originals" not in path.parts] == [
        "a.ipynb",
        "b.ipynb",
    ]
    (copies / "a.ipynb").write_text("the reader's own")
    assert copy_missing(originals, copies) == []  # a change of the reader's is none of the original
    for path in originals.rglob("*.ipynb"):
        path.write_text("second")
    os.utime(copies / "a.ipynb")  # saved after the originals changed
    assert copy_missing(originals, copies) == ["a.ipynb", "appendix/b.ipynb"]
    assert (copies / "a.ipynb").read_text() == "the reader's own"
    (copies / "a.ipynb").unlink()
    (copies / "appendix" / "b.ipynb").write_text("")  # as an earlier `make lab` left it on a full disk
    assert copy_missing(originals, copies) == []
    assert [(copies / name).read_text() for name in ("a.ipynb", "appendix/b.ipynb")] == ["second"] * 2


def test_without_a_copy_of_the_original_the_newer_file_tells(folders: tuple[Path, Path]) -> None:
    originals, copies = folders
    copies.mkdir()
    for at_s, expected in ((1.0, ["a.ipynb"]), (2e9, [])):
        (copies / "a.ipynb").write_text("the reader's own")
        os.utime(copies / "a.ipynb", (at_s, at_s))
        assert copy_missing(originals, copies) == expected


def test_a_full_disk_is_an_error_and_leaves_no_part_of_a_file(folders: tuple[Path, Path]) -> None:
    originals, copies = folders

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))  # a longer file is an error, as on a full disk

    command = [sys.executable, "-B", str(SCRIPT), str(originals), str(copies)]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=fill)
    assert done.returncode == 1
    assert "a.ipynb" in done.stderr
    assert not [path for path in copies.rglob("*") if path.is_file()]
    assert subprocess.run(command).returncode == 0
    assert (copies / "a.ipynb").read_bytes() == (originals / "a.ipynb").read_bytes()
