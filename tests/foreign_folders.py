"""Folders of other people, with names like ours, in a place for temporary files, and whether they are as they were."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rankscope.common import folders

_FOLDERS = (
    "rankscope-0.9",
    "rankscope-main",
    "rankscope-thesis-data",
    "rankscope-notebook",  # of the pattern of mkdtemp: eight letters
    "rankscope-0123456789abcdef",  # of our pattern, but with another checksum
    "rankscope-a1b2c3_4",
    "rankscope-otherone",
    "rankscope-emptyone",
    "rankscope-isfolder",
    "rankscope-ismarked",
    "rankscope-ispipe00",
    "rankscope-longerone",
    "rankscope-UPPERONE",
    "elsewhere",
)


class Entry(NamedTuple):
    """What is at a path."""

    mode: int  # its kind and its permissions
    changed_ns: int
    data: bytes  # of a file, or the target of a link


def plant(place: Path) -> list[Path]:
    """Make folders in `place` that are not for rankscope to touch, all of them old; return their paths.

    What an earlier call has made there is replaced.
    """
    paths = [place / name for name in (*_FOLDERS, "rankscope-linkname", "rankscope-dangling", "rankscope-filename")]
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for name in _FOLDERS:
        (place / name).mkdir()
        (place / name / "results.csv").write_text(f"the only copy, in {name}\n")
    (place / "rankscope-0.9" / "setup.py").write_text("from setuptools import setup\n")
    (place / "rankscope-main" / ".git").mkdir()
    (place / "rankscope-main" / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    for name in ("rankscope-longerone", "rankscope-UPPERONE", "elsewhere"):  # with our marker, which is not enough
        (place / name / ".owner").write_bytes(folders._marker_text((place / name).stat().st_ino))
    for name in ("rankscope-main", "rankscope-otherone"):
        (place / name / ".owner").write_text("the department's backup\n")
    (place / "rankscope-emptyone" / ".owner").write_text("")  # as rankscope wrote it once
    (place / "rankscope-isfolder" / ".owner").mkdir()
    (place / "rankscope-ismarked" / ".owner").symlink_to(place / "elsewhere" / ".owner")
    os.mkfifo(place / "rankscope-ispipe00" / ".owner")
    (place / "rankscope-linkname").symlink_to(place / "elsewhere")
    (place / "rankscope-dangling").symlink_to(place / "none")
    (place / "rankscope-filename").write_text("a file\n")
    for path in paths:
        for inside in reversed(_below(path)):
            os.utime(inside, (0, 0), follow_symlinks=False)
    return paths


def contents(paths: Iterable[Path]) -> dict[str, Entry]:
    """What is at each of these paths and below them, by path."""
    entries: dict[str, Entry] = {}
    for path in paths:
        for inside in _below(path):
            about = inside.lstat()
            if stat.S_ISLNK(about.st_mode):
                data = os.fsencode(os.readlink(inside))
            elif stat.S_ISREG(about.st_mode):
                data = inside.read_bytes()
            else:
                data = b""
            entries[str(inside)] = Entry(about.st_mode, about.st_mtime_ns, data)
    return entries


def _below(path: Path) -> list[Path]:
    """A path, if there is anything, and all paths below it, without following links."""
    if not os.path.lexists(path):
        return []
    if path.is_symlink() or not path.is_dir():
        return [path]
    return [path, *sorted(path.rglob("*"))]


class ForeignFolders:
    """Folders of others in some places, and next to them one of ours whose owner, this process, lives."""

    def __init__(self, *places: Path) -> None:
        self._places = places
        self._held = [folders.make_folder(place) for place in places]
        self._plant()

    def _plant(self) -> None:
        self._paths = list(self._held)
        for place in self._places:
            self._paths += plant(place)
        self._before = contents(self._paths)

    def changed(self) -> list[str]:
        """Return the paths that were changed, deleted or added since the last call; if there are any, plant anew."""
        after = contents(self._paths)
        paths = sorted(self._before.keys() | after.keys())
        changed = [path for path in paths if self._before.get(path) != after.get(path)]
        if changed:
            self._plant()
        return changed

    def others(self, place: Path) -> list[Path]:
        """Return all paths below a place, except for what was planted."""
        planted = set(self._paths)
        return [path for path in place.glob("**/*") if planted.isdisjoint([path, *path.parents])]

    def release(self) -> None:
        """Delete our own folders."""
        for folder in self._held:
            folders.delete_folder(folder)
