"""Temporary folders that go with their owner; where it was killed, the next process that needs one deletes them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where nothing is swept
    fcntl = None  # type: ignore[assignment]

_PREFIX, _LOCK = "rankscope-", ".owner"
_YOUNG_S = 60.0  # a folder this new may not be locked yet
_owned: dict[Path, tuple[int, int]] = {}  # by which process, and the descriptor of the lock
_swept: set[Path] = set()


def make_folder(parent: Path | None = None) -> Path:
    """Make a folder in `parent`, by default the place for temporary files, after deleting those of dead processes.

    A folder belongs to whoever holds the lock of a file in it: this process and those that it forks.
    """
    place = Path(tempfile.gettempdir() if parent is None else parent)
    if fcntl and place not in _swept:
        _swept.add(place)
        _sweep(place)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    if fcntl:
        fcntl.flock(lock, fcntl.LOCK_EX)
    _owned[folder] = os.getpid(), lock
    return folder


def delete_folder(folder: Path) -> None:
    """Delete a folder that `make_folder` made in this process, whatever is in it; one that was forked only lets go."""
    owner, lock = _owned.pop(folder)
    if owner == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def memory() -> Path | None:
    """Return the place for files that are memory, not disk, or None where the system has none."""
    place = Path("/dev/shm")
    return place if place.is_dir() and os.access(place, os.W_OK) else None


def _sweep(place: Path) -> None:
    for folder in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:  # another user's, locked, or going just now
            marker = folder / _LOCK
            if marker.exists():
                lock = os.open(marker, os.O_RDWR | os.O_NOFOLLOW)
                stack.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            else:  # its owner was killed before it could lock it, or is about to
                marker = folder
            if time.time() - marker.stat().st_mtime > _YOUNG_S:
                shutil.rmtree(folder, ignore_errors=True)
