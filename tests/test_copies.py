"""The reader's copies of the notebooks: they follow their originals until the reader changes them, and never after."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from copies import RECORD, as_copied, names, refresh, trust, unchanged
from nbformat.sign import NotebookNotary

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "notebooks"
    (folder / "profiles").mkdir(parents=True)
    (folder / "a.py").write_text("first", encoding="utf-8")
    (folder / "profiles" / "b.json").write_text("{}", encoding="utf-8")
    return folder


@pytest.fixture
def target(tmp_path: Path, source: Path) -> Path:
    """A folder of fresh copies."""
    folder = tmp_path / "my_notebooks"
    assert refresh(source, folder) == []
    return folder


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_everything_is_copied_except_hidden_files_and_what_python_makes(source: Path, tmp_path: Path) -> None:
    for made in ("__pycache__", ".ipynb_checkpoints"):
        (source / made).mkdir()
        (source / made / "c.pyc").touch()
    refresh(source, tmp_path / "copies")
    assert names(tmp_path / "copies") == ["a.py", "profiles/b.json"]


def test_a_copy_that_is_as_it_was_made_follows_its_original(source: Path, target: Path) -> None:
    (source / "a.py").write_text("second", encoding="utf-8")
    assert refresh(source, target) == []
    assert text(target / "a.py") == "second"


def test_a_copy_that_the_reader_changed_is_kept_without_a_word(source: Path, target: Path) -> None:
    (target / "a.py").write_text("mine", encoding="utf-8")
    assert refresh(source, target) == []
    assert text(target / "a.py") == "mine"


def test_if_the_original_changed_too_one_line_says_so_until_the_reader_renames_the_copy(
    source: Path, target: Path
) -> None:
    (target / "a.py").write_text("mine", encoding="utf-8")
    (source / "a.py").write_text("second", encoding="utf-8")
    for _ in range(2):
        (line,) = refresh(source, target)
        assert line.startswith("my_notebooks/a.py is kept, because it is not as it was copied; notebooks/a.py is newer")
        assert text(target / "a.py") == "mine"
    (target / "a.py").rename(target / "mine.py")
    assert refresh(source, target) == []
    assert [text(target / name) for name in ("a.py", "mine.py")] == ["second", "mine"]


def test_a_copy_that_the_reader_deleted_is_made_again(source: Path, target: Path) -> None:
    (target / "a.py").unlink()
    assert refresh(source, target) == []
    assert text(target / "a.py") == "first"


def test_where_an_original_is_gone_only_a_copy_that_nobody_changed_is_deleted(source: Path, target: Path) -> None:
    (target / "a.py").write_text("mine", encoding="utf-8")
    (target / "profiles" / "own.json").write_text("[]", encoding="utf-8")
    (source / "a.py").unlink()
    (source / "profiles" / "b.json").unlink()
    assert refresh(source, target) == []
    assert names(target) == ["a.py", "profiles/own.json"]


@pytest.mark.parametrize("damage", [None, "", "[]", '{"a.py": 3}', '{"a.py": {"copy": 3}}'])
def test_without_a_record_nothing_that_differs_is_overwritten(damage: str | None, source: Path, target: Path) -> None:
    if damage is None:
        (target / RECORD).unlink()
    else:
        (target / RECORD).write_text(damage, encoding="utf-8")
    (source / "a.py").write_text("second", encoding="utf-8")
    (line,) = refresh(source, target)
    assert "my_notebooks/a.py is kept" in line
    assert text(target / "a.py") == "first"
    assert refresh(source, target) == [line]


def test_a_record_that_names_files_elsewhere_deletes_none_of_them(source: Path, target: Path, tmp_path: Path) -> None:
    outside = tmp_path / "thesis.txt"
    outside.write_text("first", encoding="utf-8")
    of_a = json.loads(text(target / RECORD))["a.py"]
    record = {"../thesis.txt": of_a, str(outside): of_a}
    (target / RECORD).write_text(json.dumps(record), encoding="utf-8")
    refresh(source, target)
    assert outside.exists()


def test_links_and_folders_of_the_reader_stay(source: Path, target: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text("mine", encoding="utf-8")
    (target / "a.py").unlink()
    (target / "a.py").symlink_to(tmp_path / "elsewhere.py")
    (target / "profiles" / "b.json").unlink()
    (target / "profiles" / "b.json").mkdir()
    (source / "a.py").write_text("second", encoding="utf-8")
    assert len(refresh(source, target)) == 1
    assert (target / "a.py").is_symlink()
    assert text(tmp_path / "elsewhere.py") == "mine"
    assert (target / "profiles" / "b.json").is_dir()


def link_to_nothing(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("make", [Path.touch, link_to_nothing])
def test_what_is_no_folder_where_copies_go_is_one_line_and_stays(make: Callable[[Path], None], tmp_path: Path) -> None:
    for name in ("tools", "notebooks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.json"))
    place = tmp_path / "my_notebooks"
    make(place)
    command = [sys.executable, tmp_path / "tools" / "lab.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    message = "lab: my_notebooks must be a folder, and is not: move it elsewhere, or rename it\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", message)
    assert not place.is_dir()
    assert os.path.lexists(place)


# ---- notebooks


def test_a_copied_notebook_differs_by_the_version_of_this_python_alone() -> None:
    for path in NOTEBOOKS.rglob("*.ipynb"):
        original = path.read_bytes()
        copy = json.loads(as_copied(path.name, original))
        assert copy["metadata"]["language_info"].pop("version") == sys.version.split()[0]
        assert copy == json.loads(original)


@pytest.mark.parametrize("content", ["no JSON", "{}", '{"metadata": {}, "cells": [], "nbformat": 4}'])
def test_what_is_no_notebook_like_ours_is_copied_as_it_is(content: str) -> None:
    assert as_copied("a.ipynb", content.encode()) == content.encode()


def test_copies_are_trusted_and_what_the_reader_changed_is_not(tmp_path: Path) -> None:
    copies, data = tmp_path / "copies", tmp_path / "data"
    refresh(NOTEBOOKS, copies)
    changed = copies / "01_who_reads_what.ipynb"
    changed.write_text(text(changed).replace("Which rank", "Which of the ranks"), encoding="utf-8")
    (copies / "own.ipynb").write_text(text(NOTEBOOKS / "appendix/a1_libtorch_samplers.ipynb"), encoding="utf-8")
    trust(unchanged(copies), data)
    notary = NotebookNotary(data_dir=str(data))
    trusted = {path for path in copies.rglob("*.ipynb") if notary.check_signature(nbformat.read(path, 4))}
    notary.store.close()
    assert trusted == set(copies.rglob("*.ipynb")) - {changed, copies / "own.ipynb"}


# ---- where the copies are


def test_git_ignores_the_copies_and_clean_leaves_them() -> None:
    assert "my_notebooks/" in text(ROOT / ".gitignore").splitlines()
    recipe = re.search(r"^clean:.*\n(?:\t.*\n)+", text(ROOT / "Makefile"), re.MULTILINE)
    assert recipe
    assert "my_notebooks" not in recipe[0]


def test_the_version_of_python_is_not_saved_while_editing() -> None:
    hook = """
import runpy, sys
from traitlets.config import Config
found = Config()
file = runpy.run_path(sys.argv[1], {"get_config": lambda: found})
model = {"type": "notebook", "content": {"metadata": {"language_info": {"name": "python", "version": "3.11.7"}}}}
found.ContentsManager.pre_save_hook(model, path="a.ipynb", contents_manager=None)
print(model["content"])
"""
    config = ROOT / "tools" / "editing" / "jupyter_server_config.py"
    done = subprocess.run([sys.executable, "-c", hook, config], capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "{'metadata': {'language_info': {'name': 'python'}}}", done.stderr
