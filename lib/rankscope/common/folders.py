"""Temporary folders that are deleted with their owner; one that is killed may leave its folder behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_owners: dict[Path, int] = {}  # the process that made each folder


def make_folder(parent: Path | None = None) -> Path:
    """Make a folder for this user only in `parent`, by default in the place for temporary files."""
    folder = Path(tempfile.mkdtemp(prefix="rankscope-", dir=parent))
    _owners[folder] = os.getpid()
    return folder


def delete_folder(folder: Path) -> None:
    """Delete a folder that `make_folder` made in this process, with its content; a forked process leaves it alone."""
    if _owners.pop(folder) == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def memory() -> Path | None:
    """Return the place for files in memory, or None if the system has none."""
    place = Path("/dev/shm")
    if not place.is_dir() or not os.access(place, os.W_OK):
        return None
    return place
