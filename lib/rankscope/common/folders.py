"""Temporary folders that are deleted with their owner; if it was killed, the next process that makes one deletes them.

Other programs have folders in the same place, with similar names, which must not be deleted. So a folder is swept only
if all of these conditions hold: its name is one that `tempfile.mkdtemp` makes with our prefix; it is a folder, not a
link to one; it and the marker in it belong to this user; the marker contains our text with the name of this machine and
the folder's inode, which a copy of the folder does not have; no process holds the marker's lock. The marker is locked
before the folder gets its name, so a folder is never without its lock while its owner lives.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import stat
import tempfile
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where nothing is swept
    fcntl = None  # type: ignore[assignment]

_PREFIX = "rankscope-"
_HIDDEN_PREFIX = ".rankscope-"  # while the folder is being made
_NAME = re.compile(r"rankscope-[a-z0-9_]{8}")  # what tempfile.mkdtemp makes of our prefix
_MARKER = ".owner"
# Of each folder: the process that made it, and the descriptor of its marker, or None if it has none.
_owned: dict[Path, tuple[int, int | None]] = {}
_swept: set[Path] = set()  # the places that this process has swept


def make_folder(parent: Path | None = None) -> Path:
    """Make a folder in `parent`, by default the place for temporary files, after deleting those of ended processes.

    A folder belongs to the processes that hold the lock of its marker: this one and those that it forks. On a file
    system without locks the folder has no marker, and only its owner deletes it.
    """
    place = Path(tempfile.gettempdir() if parent is None else parent)
    if fcntl and place not in _swept:
        _swept.add(place)
        _sweep(place)
    draft = Path(tempfile.mkdtemp(prefix=_HIDDEN_PREFIX, dir=place))
    folder = None
    try:
        marker = _make_marker(draft)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))  # reserves a name
        if marker is not None:
            draft.rename(folder)  # which replaces our own empty folder, and no other
    except BaseException:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # if it was renamed, nothing has this path
    _owned[folder] = os.getpid(), marker
    return folder


def delete_folder(folder: Path) -> None:
    """Delete a folder that `make_folder` made in this process, with its content; in a forked process, only close it."""
    owner, marker = _owned.pop(folder)
    if owner == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)
    if marker is not None:
        os.close(marker)


def memory() -> Path | None:
    """Return the place for files in memory, or None if the system has none."""
    place = Path("/dev/shm")
    if not place.is_dir() or not os.access(place, os.W_OK):
        return None
    return place


def _marker_text(inode: int) -> bytes:
    """Return the content of the marker in the folder with this inode."""
    # On a shared file system a lock may be known to one machine only, so each sweeps its own folders.
    return f"temporary folder of rankscope on {platform.node()}, inode {inode}\n".encode(errors="replace")


def _make_marker(folder: Path) -> int | None:
    """Make the marker, locked, and return its descriptor, or None if it cannot be locked here."""
    if fcntl is None:
        return None
    marker = os.open(folder / _MARKER, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(marker, _marker_text(folder.stat().st_ino))
    except OSError:
        os.close(marker)
        os.unlink(folder / _MARKER)
        return None
    return marker


def _sweep(place: Path) -> None:
    """Delete the folders in `place` that are ours and whose owners have ended."""
    names = list[str]()
    with contextlib.suppress(OSError):  # if the place cannot be listed
        names = [name for name in os.listdir(place) if _NAME.fullmatch(name)]
    for name in names:
        # An OSError means that the folder is not ours, that its owner holds the lock, or that it was just deleted.
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            folder = os.open(place / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            stack.callback(os.close, folder)
            # An exclusive lock on NFS needs a file that is open for writing. A FIFO or a device that another program
            # gave this name must not block the sweep.
            marker = os.open(_MARKER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            stack.callback(os.close, marker)
            if _is_ours(folder, marker):
                fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _delete(place / name, folder)


def _is_ours(folder: int, marker: int) -> bool:
    """Whether a folder and the marker in it, both open, are this user's, and the marker is of this folder."""
    user = os.geteuid()
    about_folder = os.fstat(folder)
    about_marker = os.fstat(marker)
    if about_folder.st_uid != user or about_marker.st_uid != user:
        return False
    if not stat.S_ISREG(about_marker.st_mode):
        return False
    text = _marker_text(about_folder.st_ino)
    return os.pread(marker, len(text) + 1, 0) == text


def _delete(path: Path, folder: int) -> None:
    """Delete an open folder, the marker last, so that a sweep that is interrupted can be finished by another.

    It uses the descriptor, so if the name has been given to another folder meanwhile, that one stays. Raises OSError if
    something in the folder cannot be deleted; the marker then stays.
    """
    names = [name for name in os.listdir(folder) if name != _MARKER]
    for name in names:
        about = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(about.st_mode):
            shutil.rmtree(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
    os.unlink(_MARKER, dir_fd=folder)
    if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(folder)):
        path.rmdir()
