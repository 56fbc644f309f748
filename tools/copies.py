"""Copies of the notebooks, which belong to their reader: running and changing them leaves the repository as it is.

`refresh` copies notebooks/ into my_notebooks/, which git ignores, and records by hash what it copied. A copy that its
reader has changed is never overwritten or deleted. `trust` signs notebooks, so that JupyterLab shows their pictures.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import nbformat
from nbformat.sign import NotebookNotary

from rankscope.common.storage import write_atomically

RECORD = ".copied.json"  # in the folder of copies


class Copied(NamedTuple):
    """What was copied: the hash of the original, and that of the copy, which differ for notebooks."""

    original: str
    copy: str


def refresh(source: Path, target: Path) -> list[str]:
    """Bring the copies in `target` up to date with `source`, and return a line for each that cannot be.

    A file without a copy is copied. A copy that is as it was made follows its original; if the original is gone, the
    copy is deleted. A copy that the reader has changed stays, and a line says so if the original has changed, too.
    Raises FileExistsError if `target` is not a folder.
    """
    if os.path.lexists(target) and not target.is_dir():
        raise FileExistsError(f"{target.name} must be a folder, and is not: move it elsewhere, or rename it")
    target.mkdir(exist_ok=True)
    before = _read_record(target / RECORD)
    after: dict[str, Copied] = {}
    lines = []
    for name in names(source):
        original = (source / name).read_bytes()
        content = as_copied(name, original)
        fresh = Copied(_hash(original), _hash(content))
        known = before.get(name)
        copy = target / name
        present_hash = _hash_of_file(copy)
        if present_hash == fresh.copy:
            after[name] = fresh
        elif present_hash is None or (known is not None and present_hash == known.copy):
            copy.parent.mkdir(parents=True, exist_ok=True)
            _write(copy, content)
            after[name] = fresh
        else:
            if known is not None:
                after[name] = known
            if known is None or known.original != fresh.original:
                lines.append(
                    f"{target.name}/{name} is kept, because it is not as it was copied; {source.name}/{name} is newer: "
                    "rename yours to get that one, too"
                )
    for name in before.keys() - after.keys():
        if _hash_of_file(target / name) == before[name].copy:
            (target / name).unlink()
    record = {name: copied._asdict() for name, copied in after.items()}
    _write(target / RECORD, f"{json.dumps(record, indent=1, sort_keys=True)}\n".encode())
    return lines


def unchanged(target: Path) -> list[Path]:
    """Return the copied notebooks that are as they were copied."""
    record = _read_record(target / RECORD)
    paths = [target / name for name, copied in record.items() if _hash_of_file(target / name) == copied.copy]
    return sorted(path for path in paths if path.suffix == ".ipynb")


def names(folder: Path) -> list[str]:
    """Return the files below a folder, as relative names, without hidden ones and those that Python makes."""
    relative_names = []
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        is_made = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if path.is_file() and not is_made:
            relative_names.append("/".join(parts))
    return relative_names


def as_copied(name: str, original: bytes) -> bytes:
    """Return the content of a copy: the original, to which a notebook adds the version of this Python.

    JupyterLab writes the version of its kernel's Python into each notebook that it opens. A notebook that already has
    it is not modified by being opened.
    """
    if not name.endswith(".ipynb"):
        return original
    try:
        notebook = nbformat.v4.reads(original.decode())
        notebook["metadata"]["language_info"]["version"] = sys.version.split()[0]  # as ipykernel states it
        return f"{nbformat.v4.writes(notebook)}\n".encode()
    except (ValueError, KeyError, AttributeError):  # not a notebook like those of this repository
        return original


def trust(notebooks: Iterable[Path], data_dir: Path) -> None:
    """Sign notebooks as `jupyter trust` does. A JupyterLab with the same `data_dir` then shows all their outputs."""
    data_dir.mkdir(parents=True, exist_ok=True)
    notary = NotebookNotary(data_dir=str(data_dir))
    for path in notebooks:
        with suppress(ValueError):  # not a notebook
            notary.sign(nbformat.read(path, as_version=4))
    notary.store.close()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _hash_of_file(path: Path) -> str | None:
    """Return the hash of a file; None if there is nothing of that name, and "" for what is no plain file."""
    if not os.path.lexists(path):
        return None
    return _hash(path.read_bytes()) if path.is_file() and not path.is_symlink() else ""


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda file: file.write(content))


def _read_record(path: Path) -> dict[str, Copied]:
    """Return what was copied: nothing if there is no record that can be read, so that every file is the reader's."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        copies = {name: Copied(copied["original"], copied["copy"]) for name, copied in record.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {name: copied for name, copied in copies.items() if _is_inside(name)}


def _is_inside(name: str) -> bool:
    """Whether a relative name stays in its folder, whatever the record says: copies may be deleted by these names."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts
